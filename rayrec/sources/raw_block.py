"""What a chunk of a raw file is read into, the same for every source."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.sources.parsed_lines import ParsedLines
from rayrec.sources.rejected import rejected_table


@dataclass(frozen=True)
class RawBlock:
    """Some rows of a chunk, and those among them that could not be used."""

    rows: pa.RecordBatch
    """Raw columns, the label (float32) first where the file has one."""
    lines: NDArray[np.int64]
    """Line of each row in the chunk, from 1."""
    num_lines: int
    """Lines of the block, good and bad."""
    text: bytes
    """The block itself: whole lines; empty for files that are no text."""
    rejected: pa.Table
    """As `rayrec.sources.rejected.REJECTED_SCHEMA`, lines as above."""

    @classmethod
    def of(cls, parsed: ParsedLines, file: str, first_line: int, text: bytes) -> "RawBlock":
        """What a parser made of the block that begins at `first_line` of its chunk."""
        rejected = rejected_table(
            file, parsed.rejected_positions + first_line, parsed.rejected_reasons, parsed.rejected_texts
        )
        return cls(parsed.rows, parsed.positions + first_line, parsed.num_lines, text, rejected)
