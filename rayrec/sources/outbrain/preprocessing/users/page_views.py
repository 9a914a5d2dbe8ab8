"""Page views: only those that a feature is made of are stored."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.features.keyed_table import UNKNOWN, KeyedTable
from rayrec.preprocessing.segments import Segment, read_piece
from rayrec.raw.blocks import RawBlock, RowReader
from rayrec.raw.files import Chunk
from rayrec.sources.outbrain.statistics import ASPECTS

PROFILE, TRAFFIC = 1, 2
"""Bits of the column `purpose`: a page view is kept for the user's profile, or for the traffic source of an event."""
VIEW_SCHEMA = pa.schema(
    [
        pa.field("user", pa.int64(), False),  # row of the table of users
        pa.field("document_id", pa.int64(), False),
        pa.field("timestamp", pa.int64(), False),
        pa.field("platform", pa.int8()),
        pa.field("geo_location", pa.string()),
        pa.field("traffic_source", pa.int8()),
        pa.field("purpose", pa.int8(), False),
    ]
)


@dataclass(frozen=True)
class ViewReader:
    """Reads chunks of page views and keeps those of use, with the user's number instead of the name."""

    reader: RowReader
    users: Path
    """Folder of the table of users."""
    documents: Path
    """Folder of the table of documents."""
    schema: pa.Schema = VIEW_SCHEMA
    dictionaries: tuple[str, ...] = ("platform", "geo_location", "traffic_source", "purpose")

    def read(self, chunk: Chunk) -> Iterator[RawBlock]:
        """The blocks of a chunk; lines that are not kept count as good."""
        users, documents = KeyedTable.cached(self.users), KeyedTable.cached(self.documents)
        for block in self.reader.read(chunk):
            user = users.find_texts("uuid", block.rows["uuid"])
            known = np.flatnonzero(user != UNKNOWN)
            views, user = block.rows.take(pa.array(known)), user[known]
            purpose = _purposes(users, documents, user, views)
            columns = [*(views[name] for name in VIEW_SCHEMA.names[1:-1]), pa.array(purpose)]
            rows = pa.RecordBatch.from_arrays([pa.array(user), *columns], schema=VIEW_SCHEMA)
            kept = purpose != 0
            yield replace(block, rows=rows.filter(pa.array(kept)), lines=block.lines[known[kept]])


def _purposes(
    users: KeyedTable, documents: KeyedTable, user: NDArray[np.int64], views: pa.RecordBatch
) -> NDArray[np.int8]:
    document = views["document_id"].to_numpy()
    first = users.numbers("first_event", user)
    counts = first.valid & (views["timestamp"].to_numpy() < first.values)
    found = documents.find({"document_id": document})
    counts &= np.logical_or.reduce([documents.lengths(aspect, found) > 0 for aspect in ASPECTS])
    is_landing = users.contains("landing", user, document)
    for name in ("platform", "geo_location", "traffic_source"):
        is_landing &= views[name].is_valid().to_numpy(zero_copy_only=False)
    return (counts * PROFILE + is_landing * TRAFFIC).astype(np.int8)


def read_views(segment: Segment, purpose: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The page views of a segment that are kept for a purpose."""
    for batch in read_piece(segment.piece, [*columns, "purpose"], ()):
        is_kept = batch["purpose"].to_numpy() & purpose != 0
        yield batch.select(list(columns)).filter(pa.array(is_kept))
