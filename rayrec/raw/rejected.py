"""Rows that cannot be used: their place in the input, and the reason."""

from collections.abc import Sequence
from enum import StrEnum

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

MAX_TEXT = 10_000
"""Characters of a rejected row's text that are kept."""

REJECTED_SCHEMA = pa.schema(
    [
        pa.field("file", pa.string(), False),
        pa.field("line", pa.int64(), False),  # from 1
        pa.field("reason", pa.string(), False),
        pa.field("text", pa.string(), False),  # undecodable bytes as \xNN
    ]
)


class Reason(StrEnum):
    COLUMNS = "wrong column count"
    UTF8 = "invalid UTF-8"
    LABEL = "label other than 0 or 1"
    INTEGER = "not an integer"
    NUMBER = "not a number"
    TIME = "not a time"
    CARRIAGE_RETURN = "carriage return inside the row"
    EMPTY = "no user or no item"
    KEY = "no value in a column that needs one"
    LIST = "not (user,item) and its negatives"


def rejected_table(file: str, lines: NDArray[np.int64], reasons: Sequence[Reason], texts: Sequence[bytes]) -> pa.Table:
    """Rejected rows of one file; `lines` from 1."""
    shown = [text.decode("utf-8", "backslashreplace")[:MAX_TEXT] for text in texts]
    return pa.table([[file] * len(lines), lines, [str(r) for r in reasons], shown], schema=REJECTED_SCHEMA)
