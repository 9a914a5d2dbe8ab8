"""Third stage for rows in another order than the input's: parsed rows -> encoded rows -> parts.

What a row is sorted by determines its part too, so a task brings the rows of a part together and sorts them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.config.preprocess import ShardLayoutConfig
from rayrec.ingest.dataset import SplitInfo
from rayrec.preprocessing.engines.engine import Source, partition_by_hash
from rayrec.preprocessing.engines.sql import query
from rayrec.preprocessing.segments import Segment, count_rows
from rayrec.preprocessing.tasks import counted_rows
from rayrec.preprocessing.workspace import Workspace
from rayrec.preprocessing.write.encode import RowEncoder, split_info
from rayrec.preprocessing.write.shards import WrittenPart, rows_of_a_part, write_part
from rayrec.random.splitmix64 import mix

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
                    hashes = _hashes_of_groups(batch[group].to_numpy(), order.seed)
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

        found = workspace.engine.shuffle({"encoded": Source(segments, sent, encode)}, parts, write)
    info = split_info([part for part in found if part is not None])
    assert info.rows == rows, f"{info.rows} rows written of {rows}"
    return info


def _hashes_of_groups(groups: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Return (n,) hashes of groups (n,). Both steps are bijections, so no two groups have one hash."""
    key = mix(np.array([seed & (2**64 - 1)], np.uint64))
    return mix(groups.view(np.uint64) ^ key).view(np.int64)
