"""Third stage: parsed rows -> encoded rows -> the Parquet parts of a split, with exact rows and row groups.

Rows stay in the order of the input, or are sorted: what a row is sorted by determines its part too, so a task brings
the rows of a part together and sorts them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rayrec.config.preprocess import ShardLayoutConfig
from rayrec.features.encoder import FeatureEncoder, encoded_schema
from rayrec.features.schema import Schema
from rayrec.ingest.dataset import PartInfo, SplitInfo
from rayrec.preprocessing.engine import ShuffleInput, partition_by_hash
from rayrec.preprocessing.segments import (
    ReadRows,
    Segment,
    count_rows,
    cut_row_groups,
    group_starts,
    read_segment,
    segments_by_part,
)
from rayrec.preprocessing.sql import query
from rayrec.preprocessing.workspace import Workspace, counted_rows
from rayrec.random.arrays import mix
from rayrec.store.files import new_file, sha256_of

_PARTS_AIMED_AT = 16
_LEAST_ROW_GROUPS = 8


class WrittenPart(NamedTuple):
    info: PartInfo
    positives: float
    """Sum of the labels."""


def rows_of_a_part(rows: int, layout: ShardLayoutConfig) -> int:
    """Return the rows in each part of a split with `rows` rows, except for the last part: a multiple of the row group.

    Small data gets few parts, large data gets parts of `rows_per_part`, and data in between gets enough parts to read
    in parallel. The size depends on the data and the layout alone, so that any cluster writes the same files.
    """
    group = layout.rows_per_row_group
    wanted = max(-(-rows // _PARTS_AIMED_AT), _LEAST_ROW_GROUPS * group)
    return max(group, min(wanted, layout.rows_per_part) // group * group)


def write_part(
    dataset: Path,
    split: str,
    index: int,
    label: str,
    layout: ShardLayoutConfig,
    batches: Iterable[pa.RecordBatch],
    group: str | None = None,
) -> WrittenPart:
    """Write part `index` of a split from encoded rows (label and features) in row groups of the layout's size.

    `group`: a column whose equal neighbours stay together; row groups are as much longer as that takes.
    """
    path = Path(split) / f"part-{index:05d}.parquet"
    batches = iter(batches)
    first = next(batches)
    row_groups: list[int] = []
    # docs/preprocessing.md has the measurements behind these.
    options = {"compression": layout.compression, "use_dictionary": True, "write_statistics": False}
    positives, longest = 0.0, 0
    with new_file(dataset / path) as temporary:
        with pq.ParquetWriter(temporary, first.schema, **options) as writer:
            for table in cut_row_groups(chain([first], batches), layout.rows_per_row_group, group):
                writer.write_table(table, row_group_size=table.num_rows)
                row_groups.append(table.num_rows)
                positives += pc.sum(table[label]).as_py()
                if group is not None:
                    starts = group_starts(table[group].combine_chunks())
                    longest = max(longest, int(np.diff(starts, append=table.num_rows).max()))
        sha256, size = sha256_of(temporary), temporary.stat().st_size
    info = PartInfo(
        path=path.as_posix(),
        rows=sum(row_groups),
        row_groups=tuple(row_groups),
        bytes=size,
        sha256=sha256,
        longest_group=None if group is None else longest,
    )
    return WrittenPart(info, positives)


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
    workspace: Workspace,
    splits: Mapping[str, tuple[Encode, Sequence[Segment]]],
    label: str,
    layout: ShardLayoutConfig,
) -> list[SplitInfo]:
    """Write the rows of splits, each in the order of its segments. A task writes a part; nothing is shuffled.

    All are written at once, as most held-out splits have fewer parts than there are CPUs.
    """
    rows, dataset = {name: count_rows(segments) for name, (_, segments) in splits.items()}, workspace.folder
    items: list[tuple[str, int, list[Segment]]] = []
    for name, (_, segments) in splits.items():
        parts = segments_by_part(segments, rows_of_a_part(rows[name], layout))
        items += ((name, index, of_part) for index, of_part in enumerate(parts))
    encoders = {name: encode for name, (encode, _) in splits.items()}  # what a task is sent must not grow with the rows
    stage = f"encode {' and '.join(splits)}"
    with counted_rows(workspace.engine, workspace.progress, stage, sum(rows.values())) as counter:

        def run(item: tuple[str, int, list[Segment]]) -> tuple[str, WrittenPart]:
            name, index, of_part = item

            def batches() -> Iterator[pa.RecordBatch]:
                for segment in of_part:
                    yield from encoders[name](segment)
                    counter.add(segment.piece.rows)

            return name, write_part(dataset, name, index, label, layout, batches())

        written = workspace.engine.run(items, run)
    return [split_info([part for of, part in written if of == name]) for name in splits]


def split_info(parts: Sequence[WrittenPart]) -> SplitInfo:
    """Return what the manifest says about a split whose parts, in order, are `parts`."""
    return SplitInfo(
        rows=sum(part.info.rows for part in parts),
        positives=sum(part.positives for part in parts),
        parts=tuple(part.info for part in parts),
    )


NewPositions = Callable[[NDArray[np.int64]], NDArray[np.int64]]
"""The positions (n,) in the output of rows given by their positions (n,) in the input: a bijection."""


@dataclass(frozen=True)
class RandomGroups:
    """The groups of a split in a random order that depends on `seed`, and the rows of a group in their own order."""

    seed: int


def write_shuffled(
    workspace: Workspace,
    encoder: RowEncoder,
    split: str,
    segments: Sequence[Segment],
    order: NewPositions | RandomGroups,
    layout: ShardLayoutConfig,
    position: str | None = None,
) -> SplitInfo:
    """Write the rows of a split in another order than that of its segments.

    With `RandomGroups`, the rows of a group follow each other in the input and end up in one row group. Parts then have
    about the same number of rows, and row groups as many as the layout says, or a few more. `position`: the kept column
    (int64) that holds a row's position in the input, for segments in another order; it is not written to the parts.
    """
    label, group = encoder.schema.label, encoder.schema.group if isinstance(order, RandomGroups) else None
    rows = count_rows(segments)
    size = rows_of_a_part(rows, layout)
    parts = -(-rows // size)
    # Groups are in the order of a hash, a random order of all of them that needs no list of them.
    keys = ["place"] if group is None else ["hash", "place"]
    written = pa.schema([field for field in encoder.encoded_schema if field.name != position])
    # SQL takes names that differ in case alone for one, so the columns are numbered.
    numbered = [pa.field(f"c{number}", field.type, field.nullable) for number, field in enumerate(written)]
    sent = pa.schema([*(pa.field(key, pa.int64(), False) for key in keys), *numbered])
    with counted_rows(workspace.engine, workspace.progress, f"encode and shuffle {split}", rows) as counter:

        def encode(segment: Segment) -> Iterator[tuple[NDArray[np.int64], pa.RecordBatch]]:
            first = segment.first
            for batch in encoder.encode(segment):
                places = np.arange(first, first + batch.num_rows) if position is None else batch[position].to_numpy()
                first += batch.num_rows
                if isinstance(order, RandomGroups):
                    # Both steps are bijections, so no two groups have one hash.
                    key = mix(np.array([order.seed & (2**64 - 1)], np.uint64))
                    hashes = mix(batch[group].to_numpy().view(np.uint64) ^ key).view(np.int64)
                    part, sorted_by = partition_by_hash(hashes, parts), [hashes, places]
                else:
                    places = order(places)
                    part, sorted_by = places // size, [places]
                columns = [*map(pa.array, sorted_by), *(batch[name] for name in written.names)]
                yield part, pa.RecordBatch.from_arrays(columns, schema=sent)

        def write(part: int, tables: Mapping[str, pa.Table]) -> WrittenPart | None:
            encoded = tables["encoded"]
            if group is None:
                found = np.bincount(encoded["place"].to_numpy() - part * size)
                assert (found == 1).all() and len(found) == min(size, rows - part * size), "rows lost or repeated"
            if not encoded.num_rows:  # no group's hash is in the range of this part
                return None
            sql = f"select * exclude ({', '.join(keys)}) from encoded order by {', '.join(keys)}"
            ordered = query(sql, written, encoded=encoded)
            result = write_part(encoder.dataset, split, part, label, layout, ordered, group)
            counter.add(result.info.rows)
            return result

        found = workspace.engine.shuffle({"encoded": ShuffleInput(segments, sent, encode)}, parts, write)
    info = split_info([part for part in found if part is not None])
    assert info.rows == rows, f"{info.rows} rows written of {rows}"
    return info
