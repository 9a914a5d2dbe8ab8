"""Rows in scratch files, as the stages hand them to each other, and columns of such rows."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.config import Config
from rayrec.preprocessing.runners.spark_runner import SparkRows
from rayrec.preprocessing.scratch_rows import Write, write_partitions
from rayrec.preprocessing.segments import Piece, Segment, make_segments

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class RowFiles(Config):
    """Whole files in the order of their rows; empty files are left out."""

    pieces: tuple[Piece, ...] = ()

    @property
    def rows(self) -> int:
        return sum(piece.rows for piece in self.pieces)

    def segments(self) -> list[Segment]:
        """Return the rows in pieces for tasks."""
        return make_segments(self.pieces)


class SplitRows(Config):
    """Rows by split."""

    splits: dict[str, RowFiles]
    clicked: dict[str, int]
    """Number of clicked rows by split."""

    @property
    def rows(self) -> int:
        return sum(files.rows for files in self.splits.values())


def write_by_split(
    ordered: "DataFrame",
    folder: Path,
    names: Sequence[str],
    schema: pa.Schema,
    dictionaries: Sequence[str],
    label: str,
    compute: Callable[[pa.RecordBatch], tuple[NDArray[np.integer], pa.RecordBatch]],
) -> SplitRows:
    """Write a file for each split and partition of a sorted data frame.

    `compute`: gives the split (its position in `names`) of each row of a batch, and the rows as they are written.
    `label`: the column of 0 and 1 that is counted.
    """

    def work(batches: Iterator[pa.RecordBatch], write: Write) -> Counter[str]:
        clicked: Counter[str] = Counter()
        for batch in batches:
            split, computed = compute(batch)
            for number, name in enumerate(names):
                part = computed.filter(pa.array(split == number))
                write(name, part)
                clicked[name] += int(pc.sum(part[label]).as_py() or 0)
        return clicked

    pieces, clicked = write_partitions(SparkRows(ordered), folder, names, schema, dictionaries, work)
    return SplitRows(
        splits={name: RowFiles(pieces=tuple(of_split)) for name, of_split in pieces.items()},
        clicked={name: sum(of_partition[name] for of_partition in clicked) for name in names},
    )


def list_column(owner: NDArray[np.int64], elements: pa.Array, count: int) -> pa.Array:
    """`count` lists; `owner`: for each element, ascending, the list that it belongs to."""
    offsets = np.searchsorted(owner, np.arange(count + 1)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), elements)
