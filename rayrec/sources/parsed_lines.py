"""What a parser makes of a block of text, the same for every source of text files."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.sources.rejected import Reason


@dataclass(frozen=True)
class ParsedLines:
    """The good rows of a block of lines, and the bad ones with the reason."""

    rows: pa.RecordBatch
    """The good rows, in order: the label (float32) where there is one, then the raw columns, null where missing."""
    positions: NDArray[np.int64]
    """For each good row, its line in the block, from 0."""
    num_lines: int
    rejected_positions: NDArray[np.int64]
    """Lines of the bad rows in the block, from 0, ascending."""
    rejected_reasons: Sequence[Reason]
    rejected_texts: Sequence[bytes]
    """Without the newline."""
