"""Lines of text, checked over their bytes before and after Arrow's CSV reader (C++) splits them.

That reader tells which lines have a wrong number of fields, but stops at bytes that are not UTF-8 or, if columns have
types, at the first bad value. So lines are checked before it reads them, and its columns, all strings, after.
"""

import csv as python_csv
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
from numpy.typing import NDArray

from rayrec.raw.blocks import ParsedLines, Reason, Rejected
from rayrec.raw.input_files import BYTE_ORDER_MARK

NEWLINE, RETURN = 10, 13
LONGEST_ROW = 2**17
"""Bytes of a row of several lines, at most; Python's reader of CSV takes no longer fields."""
_CODES = tuple(Reason)
_GOOD, _NO_ROW = -1, -2


class TextLines:
    """Whole lines, each ended by a newline (LF or CRLF), and what is wrong with each; the last reason given counts.

    A row is a line, or several that `join` found to be one: it begins in the first of them, and is known by its number.
    `plain` writes lines in the dialect that is parsed; they are shown as they were.
    """

    def __init__(self, data: bytes, plain: Callable[[bytes], bytes] | None = None) -> None:
        self.shown = data.replace(b"\r\n", b"\n") if b"\r" in data else data
        self.data = plain(self.shown) if plain else self.shown
        self.raw = np.frombuffer(self.data, np.uint8)
        self._reasons = np.full(self.data.count(b"\n"), _GOOD, np.int8)
        self._row_of: NDArray[np.int64] | None = None
        """(n,) the line in which the row of each line begins; None if every line is a row."""
        self.odd = np.zeros(0, np.int64)
        """The lines with an odd number of quotes, ascending."""
        self.open_row: int | None = None
        """The last of these if it is no row so far, and may be one with lines that follow."""

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """Return the place of each line's newline, (n,)."""
        return np.flatnonzero(self.raw == NEWLINE)

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """Return the place at which each line begins, (n,)."""
        return np.concatenate(([0], self.ends[:-1] + 1)) if len(self.ends) else self.ends

    @cached_property
    def _borders(self) -> NDArray[np.int64]:
        """Return the places in `shown` at which lines begin, and the end, (n + 1,)."""
        return np.append(0, np.flatnonzero(np.frombuffer(self.shown, np.uint8) == NEWLINE) + 1)

    def __len__(self) -> int:
        return len(self._reasons)

    def join(self, quote: str, comment: str | None, is_row: Callable[[bytes], bool]) -> None:
        """Make rows of the lines between two with an odd number of quotes, where together they are a row.

        So a quote that is never closed spoils one line, not all that follow. A line that begins with the `comment` may
        end a row, but begins none.
        """
        self.odd = np.flatnonzero(self.count(ord(quote)) % 2)
        row_of = np.arange(len(self))
        comments = set(np.flatnonzero(self.beginning_with(comment)).tolist()) if comment else set()
        waiting: int | None = None
        for line in self.odd.tolist():
            start, end = self.starts[line if waiting is None else waiting], self.ends[line]
            if waiting is not None and end - start <= LONGEST_ROW and is_row(self.data[start:end]):
                row_of[waiting : line + 1] = waiting
                self._reasons[waiting : line + 1] = _NO_ROW
                self._reasons[waiting] = _GOOD
                waiting = None
            elif line not in comments:
                self.reject([line], Reason.QUOTE)
                waiting = line
        if waiting is not None and len(self.data) - self.starts[waiting] <= LONGEST_ROW:
            self.open_row = waiting
        if len(self.odd) > 1:
            self._row_of = row_of

    @property
    def has_joined(self) -> bool:
        """Whether rows may have several lines."""
        return self._row_of is not None

    @property
    def has_blank(self) -> bool:
        """Whether there is an empty line."""
        is_newline = self.raw == NEWLINE
        return bool(is_newline[:1].any() or (is_newline[1:] & is_newline[:-1]).any())

    def reject(self, lines: NDArray[np.bool_] | NDArray[np.int64] | Sequence[int], reason: Reason) -> None:
        """Mark lines, given as a mask or as their numbers from 0."""
        self._reasons[lines] = _CODES.index(reason)

    def leave_out(self, lines: NDArray[np.bool_] | slice) -> None:
        """Mark lines that are no rows, though nothing is wrong with them."""
        self._reasons[lines] = _NO_ROW

    def reject_undecodable(self) -> None:
        """Mark rows with a carriage return inside or with bytes that are not UTF-8."""
        if b"\r" in self.data:
            self.reject(self._rows_with(self.raw == RETURN), Reason.CARRIAGE_RETURN)
        if not _is_utf8(self.data):
            self.reject([i for i in self._rows_with(self.raw > 127) if not _is_utf8(self.line(i))], Reason.UTF8)

    def _rows_with(self, bytes_: NDArray[np.bool_]) -> NDArray[np.int64]:
        lines = np.searchsorted(self.ends, np.flatnonzero(bytes_))
        rows = np.unique(lines if self._row_of is None else self._row_of[lines])
        return rows[self._reasons[rows] != _NO_ROW]

    def count(self, byte: int) -> NDArray[np.int64]:
        """Return how often a byte occurs in each line, (n,)."""
        return np.diff(np.searchsorted(np.flatnonzero(self.raw == byte), self.ends), prepend=0)

    def beginning_with(self, mark: str) -> NDArray[np.bool_]:
        """Return the lines that begin with a mark, (n,)."""
        found = np.ones(len(self), bool)
        for place, byte in enumerate(mark.encode()):  # a shorter line has its newline there
            found &= self.raw[np.minimum(self.starts + place, self.ends)] == byte
        return found

    def equal_to(self, line: bytes) -> list[int]:
        """Return the numbers of the lines that are `line`, which is not empty."""
        if line not in self.data:
            return []
        found = np.flatnonzero(self.ends - self.starts == len(line))
        for place in {0, len(line) // 2, len(line) - 1}:  # a few bytes tell nearly all others apart
            found = found[self.raw[self.starts[found] + place] == line[place]]
        return [number for number in found.tolist() if self.data[self.starts[number] : self.ends[number]] == line]

    def last_lines(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the last line of each row, given by its first."""
        return rows if self._row_of is None else np.searchsorted(self._row_of, rows, "right") - 1

    def line(self, row: int | np.integer, *, is_shown: bool = False) -> bytes:
        """Return a row, perhaps as the file shows it, without the newline at its end."""
        (last,) = self.last_lines(np.array([row]))
        return self.lines(range(int(row), last + 1))[:-1] if is_shown else self.data[self.starts[row] : self.ends[last]]

    def lines(self, numbers: range) -> bytes:
        """Return lines as the file shows them."""
        return self.shown[self._borders[numbers.start] : self._borders[numbers.stop]]

    @property
    def good(self) -> NDArray[np.bool_]:
        """Return the lines with which a row begins that nothing is wrong with so far, (n,)."""
        return self._reasons == _GOOD

    @property
    def bad(self) -> dict[int, Reason]:
        """Lines that something is wrong with, and what it is."""
        return {int(line): _CODES[self._reasons[line]] for line in np.flatnonzero(self._reasons >= 0)}

    def bytes_of(self, rows: NDArray[np.bool_]) -> bytes:
        """Return the rows of a mask, each ended by a newline."""
        mask = rows if self._row_of is None else rows[self._row_of]
        return self.data if mask.all() else self.raw[np.repeat(mask, self.ends - self.starts + 1)].tobytes()

    def parsed(self, rows: pa.RecordBatch, positions: NDArray[np.int64]) -> ParsedLines:
        """Return good rows with their lines, and the bad lines."""
        bad = {number: Rejected(reason, self.line(number, is_shown=True)) for number, reason in self.bad.items()}
        return ParsedLines(rows, positions, len(self), bad)


def split_fields(
    data: bytes,
    names: Sequence[str],
    separator: str,
    *,
    wanted: Sequence[str] | None = None,
    quote: str | None = None,
    has_joined: bool = False,
    skipped: list[int] | None = None,
) -> pa.RecordBatch:
    """Return the fields of all columns, or of the `wanted` ones, as strings; empty ones are null.

    `quote` may enclose a field, two in it stand for one; without it, none means anything. `has_joined`: newlines may
    stand in quotes. The numbers, from 0, of rows with another number of fields are added to `skipped`.
    """
    wanted = list(names if wanted is None else wanted)

    def skip(row: csv.InvalidRow) -> str:
        assert skipped is not None, "every row has the right number of fields"
        skipped.append(row.number - 1)
        return "skip"

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
            quote_char=quote or False,
            double_quote=quote is not None,
            ignore_empty_lines=False,
            newlines_in_values=has_joined,
            invalid_row_handler=skip,
        ),
        convert_options=csv.ConvertOptions(
            column_types=strings,
            include_columns=wanted,
            null_values=[""],
            strings_can_be_null=True,
            check_utf8=False,
        ),
    )
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=strings)


def _is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def unquoted_fields(row: str, separator: str, quote: str = '"') -> list[str] | None:
    """Return the fields of a row, without the quotes that may enclose them; None if a quote is not closed."""
    try:
        return next(python_csv.reader([row], delimiter=separator, quotechar=quote, strict=True), [])
    except python_csv.Error:
        return None
