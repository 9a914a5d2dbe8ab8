"""Lines of text, checked over their bytes before Arrow's CSV reader (C++) splits them.

That reader stops at the first row with a wrong number of fields or, if columns have types, at the first bad value. So
lines are checked before it reads them, and its columns, all strings, after.
"""

import csv as python_csv
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
from numpy.typing import NDArray

from rayrec.raw.blocks import ParsedLines, Reason
from rayrec.raw.input_files import BYTE_ORDER_MARK

NEWLINE, RETURN = 10, 13
_INTEGER = r"^-?[0-9]+$"
"""Arrow's own conversion would also read `0x1F`."""
_SAFE_DIGITS = 18
"""Integers of up to this many characters fit into int64."""
_CODES = tuple(Reason)
_GOOD = -1


class TextLines:
    """Whole lines, each ended by a newline (LF or CRLF), and what is wrong with each; the last reason given counts."""

    def __init__(self, data: bytes) -> None:
        self.data = data.replace(b"\r\n", b"\n") if b"\r" in data else data
        self.raw = np.frombuffer(self.data, np.uint8)
        self.ends = np.flatnonzero(self.raw == NEWLINE)
        self.starts = np.concatenate(([0], self.ends[:-1] + 1)) if len(self.ends) else self.ends
        self._reasons = np.full(len(self.ends), _GOOD, np.int8)

    def __len__(self) -> int:
        return len(self.ends)

    def reject(self, lines: NDArray[np.bool_] | NDArray[np.int64] | Sequence[int], reason: Reason) -> None:
        """Mark lines, given as a mask or as their numbers from 0."""
        self._reasons[lines] = _CODES.index(reason)

    def reject_undecodable(self) -> None:
        """Mark lines with a carriage return inside or with bytes that are not UTF-8."""
        if b"\r" in self.data:
            self.reject(np.searchsorted(self.ends, np.flatnonzero(self.raw == RETURN)), Reason.CARRIAGE_RETURN)
        if not _is_utf8(self.data):
            suspects = np.unique(np.searchsorted(self.ends, np.flatnonzero(self.raw > 127)))
            self.reject([i for i in suspects if not _is_utf8(self.line(i))], Reason.UTF8)

    def count(self, byte: int) -> NDArray[np.int64]:
        """(n,) how often a byte occurs in each line."""
        return np.diff(np.searchsorted(np.flatnonzero(self.raw == byte), self.ends), prepend=0)

    def equal_to(self, line: bytes) -> list[int]:
        """Return the numbers of the lines that are `line`, which is not empty."""
        found = np.flatnonzero(self.ends - self.starts == len(line))
        for place in {0, len(line) // 2, len(line) - 1}:  # a few bytes tell nearly all others apart
            found = found[self.raw[self.starts[found] + place] == line[place]]
        return [number for number in found.tolist() if self.line(number) == line]

    def line(self, number: int | np.integer) -> bytes:
        """Return a line without the newline."""
        return self.data[self.starts[number] : self.ends[number]]

    @property
    def good(self) -> NDArray[np.bool_]:
        """(n,) the lines that nothing is wrong with so far."""
        return self._reasons == _GOOD

    @property
    def bad(self) -> dict[int, Reason]:
        """Lines that something is wrong with, and what it is."""
        return {int(line): _CODES[self._reasons[line]] for line in np.flatnonzero(~self.good)}

    def bytes_of(self, mask: NDArray[np.bool_]) -> bytes:
        """Return the lines of a mask, each ended by a newline."""
        return self.data if mask.all() else self.raw[np.repeat(mask, self.ends - self.starts + 1)].tobytes()

    def parsed(
        self, rows: pa.RecordBatch, positions: NDArray[np.int64], texts: "TextLines | None" = None
    ) -> ParsedLines:
        """Return good rows with their lines, and the bad lines, with their texts taken from `texts`."""
        rejected = np.flatnonzero(~self.good)
        shown = texts or self
        return ParsedLines(
            rows=rows,
            positions=positions,
            num_lines=len(self),
            rejected_positions=rejected,
            rejected_reasons=[_CODES[code] for code in self._reasons[rejected]],
            rejected_texts=[shown.line(i) for i in rejected],
        )


def split_fields(
    data: bytes,
    names: Sequence[str],
    separator: str,
    null_values: Sequence[str] = ("",),
    *,
    wanted: Sequence[str] | None = None,
    has_quotes: bool = False,
) -> pa.RecordBatch:
    """Return the fields of all columns, or of the `wanted` ones, as strings; `null_values` are null.

    All lines have the right number of fields. `has_quotes`: double quotes may enclose a field, two in it stand for one;
    otherwise they mean nothing.
    """
    wanted = list(names if wanted is None else wanted)
    strings = pa.schema([(name, pa.string()) for name in wanted])
    if not data:
        return pa.RecordBatch.from_pylist([], schema=strings)
    if data.startswith(BYTE_ORDER_MARK):
        # Arrow leaves out one mark, which is a character where no file begins.
        data = BYTE_ORDER_MARK + data
    table = csv.read_csv(
        pa.BufferReader(data),
        read_options=csv.ReadOptions(column_names=list(names), use_threads=False, block_size=len(data) + 1),
        parse_options=csv.ParseOptions(
            delimiter=separator,
            quote_char='"' if has_quotes else False,
            double_quote=has_quotes,
            ignore_empty_lines=False,
        ),
        convert_options=csv.ConvertOptions(
            column_types=strings,
            include_columns=wanted,
            null_values=list(null_values),
            strings_can_be_null=True,
            check_utf8=False,
        ),
    )
    (batch,) = table.combine_chunks().to_batches()
    return batch


def to_integers(column: pa.StringArray) -> tuple[pa.Int64Array, NDArray[np.bool_]]:
    """Return the column as int64, null if it is empty or bad, and for each row whether it is empty or a good
    integer.
    """
    is_good = pc.fill_null(pc.match_substring_regex(column, _INTEGER), True)
    if (pc.max(pc.binary_length(column)).as_py() or 0) > _SAFE_DIGITS:
        is_good = pc.and_(is_good, _fits_int64(column))
    if not pc.all(is_good).as_py():
        column = pc.if_else(is_good, column, pa.scalar(None, pa.string()))
    return column.cast(pa.int64()), is_good.to_numpy(zero_copy_only=False)


def _fits_int64(column: pa.StringArray) -> pa.BooleanArray:
    """Return False for the integers that do not fit into 64 bits."""
    fits = np.ones(len(column), bool)
    long = pc.fill_null(pc.greater(pc.binary_length(column), _SAFE_DIGITS), False).to_numpy(zero_copy_only=False)
    for i in np.flatnonzero(long):
        digits = column[i].as_py().removeprefix("-").lstrip("0")
        fits[i] = len(digits) <= _SAFE_DIGITS + 1 and digits.isdecimal() and -(2**63) <= int(column[i].as_py()) < 2**63
    return pa.array(fits)


def _is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def unquoted_fields(line: str, separator: str) -> list[str] | None:
    """Return the fields of a line, without the double quotes that may enclose them; None if a quote is not closed."""
    try:
        return next(python_csv.reader([line], delimiter=separator, strict=True), [])
    except python_csv.Error:
        return None
