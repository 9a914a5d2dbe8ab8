"""Writes the text files of generators."""

import gzip
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
from numpy.typing import NDArray

from rayrec.common.errors import UserError

_BATCH_ROWS = 16_384


def rows_by_file(rows: int, days: int | None) -> list[int]:
    """Return the rows of each day, as equal as they can be, or of the one file.

    Raises UserError if a day would have none.
    """
    if days is None:
        return [rows]
    if not 1 <= days <= rows:
        raise UserError(f"days: {days}; give 1 to {rows}, the number of rows")
    return [rows * (day + 1) // days - rows * day // days for day in range(days)]


@contextmanager
def csv_file(
    path: Path, schema: pa.Schema, *, separator: str = ",", has_header: bool = True, quotes: bool = False
) -> Iterator[Callable[[pa.RecordBatch], None]]:
    """Yield a function that appends rows to the new file at `path`, gzip if it ends in `.gz`; `quotes`: of texts."""
    options = csv.WriteOptions(
        include_header=has_header,
        delimiter=separator,
        quoting_style="needed" if quotes else "none",
        quoting_header="needed" if quotes else "none",
        batch_size=_BATCH_ROWS,
    )
    with path.open("wb") as raw:
        # A fixed time keeps the same rows the same bytes; higher levels cost much time and save little on hexadecimals.
        packed = gzip.GzipFile("", "wb", compresslevel=1, fileobj=raw, mtime=0) if path.suffix == ".gz" else None
        with packed or nullcontext(raw) as sink, csv.CSVWriter(sink, schema, write_options=options) as writer:
            yield writer.write_batch


def to_hexadecimal(numbers: NDArray[np.unsignedinteger], missing: NDArray[np.bool_] | None = None) -> pa.StringArray:
    """Return the strings of lowercase hexadecimal digits, two a byte of the numbers' type; null if missing."""
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    data = numbers.astype(numbers.dtype.newbyteorder(">")).view(np.uint8)
    text = np.stack([digits[data >> 4], digits[data & 15]], axis=1)
    offsets = np.arange(len(numbers) + 1, dtype=np.int32) * 2 * numbers.itemsize
    valid = None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little"))
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(offsets), pa.py_buffer(text), valid)
