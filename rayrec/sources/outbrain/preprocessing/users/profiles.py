"""Users' profiles: what their page views say of their interests, a user after the other."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.features.keyed_table import KeyedTable, hash_texts, write_file
from rayrec.preprocessing.segments import Segment
from rayrec.preprocessing.spark_tasks import collect_rows, counted_rows, frame_of_tasks
from rayrec.preprocessing.vocabularies.hash_ranges import ROW_COUNT, in_number_ranges, range_count, row_count
from rayrec.preprocessing.workspace import Workspace
from rayrec.sources.outbrain.preprocessing.list_columns import list_column
from rayrec.sources.outbrain.preprocessing.row_files import RowFiles
from rayrec.sources.outbrain.preprocessing.users.page_views import PROFILE, read_views
from rayrec.sources.outbrain.preprocessing.values import value_table
from rayrec.sources.outbrain.statistics import ASPECTS, PROFILE_SCHEMA, Aspect
from rayrec.sources.outbrain.weights import profile_weights

_VIEWED_AT_A_TIME = 65_536
"""Documents viewed that are held before their users' profiles are written; more where a single user has more."""


@dataclass(frozen=True)
class ProfileJob:
    """What profiles are made of."""

    users: Path
    documents: Path
    values: Path
    """Folders of the tables of users, of documents, and of the aspects' values."""
    num_documents: int
    original: bool


def write_profiles(workspace: Workspace, views: RowFiles, job: ProfileJob, folder: Path) -> None:
    """Write the table of profiles. No user's page views are in one place, only the distinct documents among them."""
    from pyspark.sql import functions as f

    spark, segments = workspace.spark, views.segments()
    users = len(KeyedTable(job.users))
    with counted_rows(spark, workspace.progress, "profiles of users", views.rows) as counter:

        def read(segment: Segment) -> Iterator[pa.RecordBatch]:
            yield from read_views(segment, PROFILE, ("user", "document_id"))
            counter.add(segment.piece.rows)

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            rows = write_file(folder, PROFILE_SCHEMA, profiles(batches, job))
            yield row_count(rows)

        viewed = frame_of_tasks(spark, segments, read, "user long, document_id long")
        counted = viewed.groupBy("user", "document_id").agg(f.count("*").alias("views"))
        # Users are numbered in the order of their hashes, which is that of the table to write.
        dealt = in_number_ranges(counted, range_count(spark, views.rows), "user", users)
        ordered = dealt.sortWithinPartitions("user", "document_id")
        collect_rows(ordered.mapInArrow(write, ROW_COUNT))


def profiles(batches: Iterator[pa.RecordBatch], job: ProfileJob) -> Iterator[pa.RecordBatch]:
    """Profiles of users, from (user, document_id, views) sorted by the first two."""
    viewed = _Viewed.nothing()
    values = {aspect: _Values.nothing() for aspect in ASPECTS}
    for batch in batches:
        added = _Viewed(*(batch[name].to_numpy() for name in ("user", "document_id", "views")))
        viewed = viewed.extended(added)
        values = {aspect: values[aspect].extended(_values_of(added, aspect, job)) for aspect in ASPECTS}
        if len(viewed.user) >= _VIEWED_AT_A_TIME and viewed.user[0] != viewed.user[-1]:
            last = viewed.user[-1]
            yield _profiles(viewed.before(last), {a: values[a].before(last) for a in ASPECTS}, job)
            viewed, values = viewed.rest(last), {aspect: values[aspect].rest(last) for aspect in ASPECTS}
    if len(viewed.user):
        yield _profiles(viewed, values, job)


@dataclass(frozen=True)
class _Viewed:
    """Documents that users have viewed, sorted by user and document; arrays of one length."""

    user: NDArray[np.int64]
    document: NDArray[np.int64]
    views: NDArray[np.int64]

    @classmethod
    def nothing(cls) -> "_Viewed":
        none = np.empty(0, np.int64)
        return cls(none, none, none)

    def extended(self, other: "_Viewed") -> "_Viewed":
        pairs = ((self.user, other.user), (self.document, other.document), (self.views, other.views))
        return _Viewed(*(np.concatenate(pair) for pair in pairs))

    def before(self, user: int) -> "_Viewed":
        end = np.searchsorted(self.user, user)
        return _Viewed(self.user[:end], self.document[:end], self.views[:end])

    def rest(self, user: int) -> "_Viewed":
        start = np.searchsorted(self.user, user)
        return _Viewed(self.user[start:], self.document[start:], self.views[start:])


@dataclass(frozen=True)
class _Values:
    """Values of an aspect in the documents that users have viewed, sorted by user and value; arrays of one length."""

    user: NDArray[np.int64]
    value: NDArray[np.int64]
    documents: NDArray[np.int64]
    """Viewed ones that have the value."""
    confidence: NDArray[np.float64]
    """The sum over these."""

    @classmethod
    def nothing(cls) -> "_Values":
        none = np.empty(0, np.int64)
        return cls(none, none, none, np.empty(0))

    def extended(self, other: "_Values") -> "_Values":
        """With more, in any order; what belongs together is added up, these first."""
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

    def before(self, user: int) -> "_Values":
        end = np.searchsorted(self.user, user)
        return _Values(self.user[:end], self.value[:end], self.documents[:end], self.confidence[:end])

    def rest(self, user: int) -> "_Values":
        start = np.searchsorted(self.user, user)
        return _Values(self.user[start:], self.value[start:], self.documents[start:], self.confidence[start:])


def _values_of(viewed: _Viewed, aspect: Aspect, job: ProfileJob) -> _Values:
    """Each value of each viewed document."""
    documents = KeyedTable.cached(job.documents)
    lists = documents.lists(aspect, documents.find({"document_id": viewed.document}))
    ones = np.ones(len(lists.owner), np.int64)
    return _Values(viewed.user[lists.owner], lists.field("value"), ones, lists.field("confidence", np.float64))


def _profiles(viewed: _Viewed, values: dict[Aspect, _Values], job: ProfileJob) -> pa.RecordBatch:
    """Whole users as rows of the table."""
    users, place = np.unique(viewed.user, return_inverse=True)
    names = KeyedTable.cached(job.users).texts("uuid", users)
    views = np.bincount(place, viewed.views).astype(np.int64)
    columns = [
        pa.array(hash_texts(names)),
        names,
        pa.array(views),
        list_column(place, pa.array(viewed.document), len(users)),
    ]
    norms = []
    for aspect in ASPECTS:
        of_aspect = values[aspect]
        table = value_table(job.values, aspect)
        frequency = table.numbers("documents", table.find({"value": of_aspect.value})).values
        weight = profile_weights(
            of_aspect.documents,
            of_aspect.confidence / of_aspect.documents,
            frequency,
            job.num_documents,
            original=job.original,
        )
        fields = list(PROFILE_SCHEMA.field(aspect).type.value_type)
        elements = pa.StructArray.from_arrays([pa.array(of_aspect.value), pa.array(weight)], fields=fields)
        owner = np.searchsorted(users, of_aspect.user)
        columns.append(list_column(owner, elements, len(users)))
        norms.append(pa.array(np.sqrt(np.bincount(owner, weight**2, len(users)))))
    return pa.RecordBatch.from_arrays([*columns, *norms], schema=PROFILE_SCHEMA)
