"""The end of the third stage: encoded rows -> the Parquet parts of a split, with exact rows and row groups."""

from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rayrec.config.preprocess import ShardLayoutConfig
from rayrec.ingest.dataset import PartInfo
from rayrec.preprocessing.sorted_rows import cut_row_groups, group_starts
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
