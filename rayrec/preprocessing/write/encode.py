"""Third stage: parsed rows -> encoded rows -> parts, in the order of the input."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from rayrec.config.preprocess import ShardLayoutConfig
from rayrec.features.encoder import FeatureEncoder, encoded_schema
from rayrec.features.schema import Schema
from rayrec.ingest.dataset import SplitInfo
from rayrec.preprocessing.segments import ReadRows, Segment, count_rows, read_segment, segments_by_part
from rayrec.preprocessing.tasks import counted_rows
from rayrec.preprocessing.workspace import Workspace
from rayrec.preprocessing.write.shards import WrittenPart, rows_of_a_part, write_part

Encode = Callable[[Segment], Iterator[pa.RecordBatch]]
"""Gives the rows of a segment, in order, as a dataset holds them."""


@dataclass(frozen=True)
class RowEncoder:
    """Reads the parsed rows of a segment and applies the schema to them."""

    schema: Schema
    dataset: Path
    """Folder that holds the vocabularies."""
    kept: tuple[pa.Field, ...]
    """The columns of parsed rows that stay as they are, such as the label."""
    read: ReadRows = read_segment

    @property
    def encoded_schema(self) -> pa.Schema:
        """Kept columns and the features."""
        return pa.schema([*self.kept, *encoded_schema(self.schema)])

    def encode(self, segment: Segment) -> Iterator[pa.RecordBatch]:
        """Yield the encoded rows of a segment, in order."""
        kept, schema = [field.name for field in self.kept], self.encoded_schema
        features = FeatureEncoder.cached(self.schema, self.dataset)
        read = list(dict.fromkeys((*kept, *features.reads)))
        for raw in self.read(segment, read, features.string_columns):
            encoded = features.encode_completed(raw)
            yield pa.RecordBatch.from_arrays([*(raw[n] for n in kept), *encoded.columns], schema=schema)


def write_in_order(
    workspace: Workspace, encode: Encode, label: str, split: str, segments: Sequence[Segment], layout: ShardLayoutConfig
) -> SplitInfo:
    """Write the rows of a split in the order of its segments. A task writes a part; nothing is shuffled."""
    rows, dataset = count_rows(segments), workspace.folder
    size = rows_of_a_part(rows, layout)
    with counted_rows(workspace.engine, workspace.progress, f"encode {split}", rows) as counter:

        def run(item: tuple[int, list[Segment]]) -> WrittenPart:
            index, of_part = item

            def batches() -> Iterator[pa.RecordBatch]:
                for segment in of_part:
                    yield from encode(segment)
                    counter.add(segment.piece.rows)

            return write_part(dataset, split, index, label, layout, batches())

        return split_info(workspace.engine.run(list(enumerate(segments_by_part(segments, size))), run))


def split_info(parts: Sequence[WrittenPart]) -> SplitInfo:
    """Return what the manifest says about a split whose parts, in order, are `parts`."""
    return SplitInfo(
        rows=sum(part.info.rows for part in parts),
        positives=sum(part.positives for part in parts),
        parts=tuple(part.info for part in parts),
    )
