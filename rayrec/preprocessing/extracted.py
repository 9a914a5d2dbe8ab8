"""What the first stage leaves: for each chunk of the input, its good rows, its bad rows and its number of lines."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

from rayrec.raw.files import Chunk


@dataclass(frozen=True)
class ExtractedChunk:
    """The parsed rows of a chunk."""

    chunk: Chunk
    lines: int
    rows: dict[str, tuple[Path, int]]
    """File and number of rows by split; all rows under the empty name where splits are not by row."""
    rejected: dict[str, int]
    """Bad rows by reason."""
    rejected_path: Path
    """`REJECTED_SCHEMA`, lines counted from the chunk's first (1); exists where there are bad rows."""


def first_lines(extracted: Sequence[ExtractedChunk]) -> list[int]:
    """For each chunk (in order) the number of lines of its file that stand before it."""
    before: Counter[int] = Counter()
    result = []
    for chunk in extracted:
        result.append(before[chunk.chunk.file_index])
        before[chunk.chunk.file_index] += chunk.lines
    return result


def rows_before_line(chunk: ExtractedChunk, line: int) -> int:
    """Good rows among the first `line` lines of a chunk."""
    if not chunk.rejected:
        return line
    rejected = pq.read_table(chunk.rejected_path, columns=["line"]).column("line")
    return line - pc.sum(pc.less_equal(rejected, line)).as_py()
