"""Users' profiles: the interests that follow from their page views."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.features.hashes import hash_texts
from rayrec.features.lookup_table import LookupTable
from rayrec.features.table_parts import write_file
from rayrec.preprocessing.runners.spark_runner import collect_rows, in_number_ranges
from rayrec.preprocessing.scratch_rows import frame_of_rows
from rayrec.preprocessing.segments import Segment
from rayrec.preprocessing.sorted_rows import whole_groups
from rayrec.preprocessing.vocabularies.hash_ranges import ROW_COUNT, range_count, row_count
from rayrec.preprocessing.workspace import Workspace
from rayrec.sources.outbrain.preprocessing.documents import inverse_frequency
from rayrec.sources.outbrain.preprocessing.row_files import RowFiles, list_column
from rayrec.sources.outbrain.preprocessing.users.users import PROFILE, read_views
from rayrec.sources.outbrain.statistics import ASPECTS, PROFILE_SCHEMA, Aspect

_VIEWED_AT_A_TIME = 65_536
"""Documents viewed whose values are held at a time."""
_VIEWED = pa.schema([("user", pa.int64()), ("document_id", pa.int64())])


@dataclass(frozen=True)
class ProfileJob:
    """The tables that profiles are made of."""

    users: Path
    documents: Path
    values: Path
    """Folders of the tables of users, of documents, and of the aspects' values."""
    num_documents: int


def write_profiles(workspace: Workspace, views: RowFiles, job: ProfileJob, folder: Path) -> None:
    """Write the table of profiles. No user's page views are in one place, only the distinct documents among them."""
    from pyspark.sql import functions as f

    def read(segment: Segment) -> Iterator[pa.RecordBatch]:
        return read_views(segment, PROFILE, _VIEWED.names)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield row_count(write_file(folder, PROFILE_SCHEMA, profiles(batches, job)))

    with frame_of_rows(workspace, "user profiles", [(views.segments(), read)], _VIEWED) as viewed:
        counted = viewed.groupBy(*_VIEWED.names).agg(f.count("*").alias("views"))
        # Users are numbered in the order of their hashes, which is that of the table to write.
        (users,) = workspace.runner.run([job.users], lambda folder: len(LookupTable.cached(folder)))
        partitioned = in_number_ranges(counted, range_count(workspace.runner, views.rows), "user", users)
        collect_rows(partitioned.sortWithinPartitions(*_VIEWED.names).mapInArrow(write, ROW_COUNT))


def profiles(batches: Iterator[pa.RecordBatch], job: ProfileJob) -> Iterator[pa.RecordBatch]:
    """Yield the profiles of users, from (user, document_id, views) sorted by the first two."""
    for viewed in whole_groups(batches, "user", _VIEWED_AT_A_TIME):
        yield _profiles(viewed, job)


@dataclass(frozen=True)
class _Values:
    """Values of an aspect in the documents that users have viewed, sorted by user and value; arrays of one length."""

    user: NDArray[np.int64]
    value: NDArray[np.int64]
    documents: NDArray[np.int64]
    """Number of documents viewed that have the value."""
    confidence: NDArray[np.float64]
    """The sum of the confidences of these documents."""

    @classmethod
    def of(cls, viewed: pa.RecordBatch, aspect: Aspect, job: ProfileJob) -> "_Values":
        """Return the values of rows of users and documents, read in slices, because a user may have many."""
        documents = LookupTable.cached(job.documents)
        none = np.empty(0, np.int64)
        values = cls(none, none, none, np.empty(0))
        for start in range(0, len(viewed), _VIEWED_AT_A_TIME):
            part = viewed.slice(start, _VIEWED_AT_A_TIME)
            lists = documents.lists(aspect, documents.find({"document_id": part["document_id"].to_numpy()}))
            user, ones = part["user"].to_numpy()[lists.owner], np.ones(len(lists.owner), np.int64)
            values += cls(user, lists.field("value"), ones, lists.field("confidence", np.float64))
        return values

    def __add__(self, other: "_Values") -> "_Values":
        """Return the sums of these values and others, which are in any order and may repeat."""
        user = np.concatenate((self.user, other.user))
        value = np.concatenate((self.value, other.value))
        order = np.lexsort((value, user))
        user, value = user[order], value[order]
        is_new = np.ones(len(user), bool)
        is_new[1:] = (user[1:] != user[:-1]) | (value[1:] != value[:-1])
        group = np.cumsum(is_new) - 1
        documents = np.concatenate((self.documents, other.documents))[order]
        confidence = np.concatenate((self.confidence, other.confidence))[order]
        # Added in the order of documents, so that the sum does not depend on how the rows come in batches.
        return _Values(
            user[is_new],
            value[is_new],
            np.bincount(group, documents).astype(np.int64),
            np.bincount(group, confidence).astype(np.float64),
        )


def _profiles(viewed: pa.RecordBatch, job: ProfileJob) -> pa.RecordBatch:
    """Return the documents viewed by whole users as rows of the table."""
    users, owner = np.unique(viewed["user"].to_numpy(), return_inverse=True)
    names = LookupTable.cached(job.users).column("uuid", users, pa.string())
    views = np.bincount(owner, viewed["views"].to_numpy()).astype(np.int64)
    columns = [
        pa.array(hash_texts(names)),
        names,
        pa.array(views),
        list_column(owner, viewed["document_id"], len(users)),
    ]
    norms = []
    for aspect in ASPECTS:
        values = _Values.of(viewed, aspect, job)
        inverse = inverse_frequency(job.values, aspect, values.value, job.num_documents)
        weight = values.documents * inverse * (values.confidence / values.documents)
        fields = list(PROFILE_SCHEMA.field(aspect).type.value_type)
        elements = pa.StructArray.from_arrays([pa.array(values.value), pa.array(weight)], fields=fields)
        of_user = np.searchsorted(users, values.user)
        columns.append(list_column(of_user, elements, len(users)))
        norms.append(pa.array(np.sqrt(np.bincount(of_user, weight**2, len(users)))))
    return pa.RecordBatch.from_arrays([*columns, *norms], schema=PROFILE_SCHEMA)
