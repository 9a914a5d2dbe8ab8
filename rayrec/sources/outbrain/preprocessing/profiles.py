"""Users' profiles: the interests that follow from their page views."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from rayrec.features.hashes import hash_texts
from rayrec.features.lookup_table import LookupTable
from rayrec.features.table_parts import HASH
from rayrec.preprocessing.engines.engine import Source
from rayrec.preprocessing.engines.sql import query
from rayrec.preprocessing.segments import Segment, batch_of
from rayrec.preprocessing.sorted_rows import range_count, write_sorted
from rayrec.preprocessing.workspace import Workspace
from rayrec.sources.outbrain.preprocessing.documents import inverse_frequency
from rayrec.sources.outbrain.preprocessing.row_files import Partitioned, RowFiles, shuffle_rows
from rayrec.sources.outbrain.preprocessing.users import PROFILE, USER, read_views, user_ranges
from rayrec.sources.outbrain.statistics import ASPECTS, PROFILE_SCHEMA

_VIEWED = pa.schema([(USER, pa.int64()), ("document_id", pa.int64())])
_INTERESTS = pa.schema(
    [
        *_VIEWED,
        ("views", pa.int64()),  # null but in rows of _DOCUMENT
        ("aspect", pa.int8()),
        ("value", pa.int64()),
        ("confidence", pa.float64()),
        ("inverse_frequency", pa.float64()),
    ]
)
_DOCUMENT = -1
"""The `aspect` of the document itself, beside the positions in ASPECTS."""
_COUNTED = f"select {USER}, document_id, count(*) as views from viewed group by all"
_OF_ASPECT = """
    coalesce(list({{value: value, weight: weight}} order by value) filter (aspect = {number}), []) as {aspect},
    coalesce(sqrt(sum(weight * weight order by value) filter (aspect = {number})), 0) as {aspect}_norm"""
_PROFILES = f"""
with counted as (
    -- Added in one order, because sums of floats depend on it.
    select {USER}, aspect, value, sum(views)::bigint as views, count(*)::double as documents,
        any_value(inverse_frequency) as inverse, sum(confidence order by document_id) as confidence
    from interests group by {USER}, aspect, value
), weighed as (select *, documents * inverse * (confidence / documents) as weight from counted)
select {USER}, sum(views)::bigint as views, list(value order by value) filter (aspect = {_DOCUMENT}) as viewed,
    {",".join(_OF_ASPECT.format(number=number, aspect=aspect) for number, aspect in enumerate(ASPECTS))}
from weighed group by {USER} order by {USER}
"""


@dataclass(frozen=True)
class ProfileJob:
    """The tables that profiles are made of."""

    users: Path
    documents: Path
    values: Path
    """Folders of the tables of users, of documents, and of the aspects' values."""
    num_documents: int


def write_profiles(workspace: Workspace, views: RowFiles, job: ProfileJob, folder: Path) -> None:
    """Write the table of profiles."""
    ranges = range_count(views.rows)

    def read(segment: Segment) -> Partitioned:
        # Rows of users are in the order of their hashes, which is that of the table to write.
        for batch in read_views(segment, PROFILE, _VIEWED.names):
            yield user_ranges(LookupTable.cached(job.users), batch[USER].to_numpy(), ranges), batch

    def write(_: int, rows: Mapping[str, pa.Table]) -> int:
        return write_sorted(profiles(rows["viewed"], job), folder, PROFILE_SCHEMA)

    viewed = Source(views.segments(), _VIEWED, read)
    shuffle_rows(workspace, "user profiles", {"viewed": viewed}, ranges, write)


def profiles(viewed: pa.Table, job: ProfileJob) -> Iterator[pa.RecordBatch]:
    """Yield the profiles of users, from all page views of theirs (`USER`, document_id)."""
    interests = pa.RecordBatchReader.from_batches(_INTERESTS, _interests(query(_COUNTED, viewed=viewed), job))
    for batch in query(_PROFILES, interests=interests):
        names = LookupTable.cached(job.users).column("uuid", batch[USER].to_numpy(), pa.string())
        yield batch_of(PROFILE_SCHEMA, {HASH: hash_texts(names), "uuid": names}, batch)


def _interests(counted: Iterable[pa.RecordBatch], job: ProfileJob) -> Iterator[pa.RecordBatch]:
    """Yield the values of the documents that users viewed, and the documents themselves with their views."""
    documents = LookupTable.cached(job.documents)
    for viewed in counted:
        own = {"aspect": np.full(len(viewed), _DOCUMENT), "value": viewed["document_id"]}
        yield batch_of(_INTERESTS, own, viewed)
        found = documents.find({"document_id": viewed["document_id"].to_numpy()})
        for number, aspect in enumerate(ASPECTS):
            lists = documents.lists(aspect, found)
            value = lists.field("value")
            columns = {
                "aspect": np.full(len(value), number),
                "value": value,
                "confidence": lists.field("confidence", np.float64),
                "inverse_frequency": inverse_frequency(job.values, aspect, value, job.num_documents),
            }
            yield batch_of(_INTERESTS, columns, viewed.select(_VIEWED.names).take(pa.array(lists.owner)))
