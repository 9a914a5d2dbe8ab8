"""Text of raw files: its encoding, the whole lines of a chunk, and which of these cannot be read.

`read_lines` cuts a chunk into blocks of whole lines in UTF-8. `TextLines` checks the lines of a block, over all its
bytes at once, before Arrow's readers (C++) parse them: these stop at bytes that are not UTF-8 or, if columns have
types, at the first bad value.
"""

import codecs
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.common.disk_errors import unreadable
from rayrec.common.errors import UserError
from rayrec.raw.input_files import BYTE_ORDER_MARK, HEAD_BYTES, READ_ERRORS, Chunk, InputFile
from rayrec.raw.rows import ParsedLines, Reason, Rejected

MAX_LINE_BYTES = 2**24
BLOCK_BYTES, _LEAST_BLOCK = 2**23, 2**16
_NO_TEXT = {
    b"\xd0\xcf\x11\xe0": "a spreadsheet; save it as CSV",
    b"7z\xbc\xaf": "a 7z archive; unpack it",
    b"Rar!": "a rar archive; unpack it",
    b"ORC": "an ORC file; write it as Parquet",
    b"Obj\x01": "an Avro file; write it as Parquet",
    b"ARROW1": "an Arrow file; write it as Parquet",
    b"SQLite format 3": "a database of SQLite; write its table as CSV or Parquet",
}
"""What files are that hold no text, by their first bytes, and what to do."""
_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32-le",  # begins with the mark of UTF-16
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
"""Encodings by the byte order mark with which a text begins."""
_ASCII = bytes(range(128))
_MANY, _FEW = 0.1, 0.02
NEWLINE, RETURN = 10, 13
LONGEST_ROW = 2**17
"""Bytes of a row of several lines, at most; Python's reader of CSV takes no longer fields."""
_CODES = tuple(Reason)
_GOOD, _NO_ROW = -1, -2


@dataclass(frozen=True)
class TextEncoding:
    """How the bytes of a file are text."""

    encoding: str = "utf-8"
    has_returns: bool = False
    """Whether a carriage return alone ends a line."""

    @classmethod
    def of(cls, head: bytes, encoding: str | None) -> "TextEncoding":
        """Tell the form from the first bytes; a byte order mark counts more than the encoding that is given."""
        marked = next((name for mark, name in _MARKS.items() if head.startswith(mark)), None)
        found = marked or (codecs.lookup(encoding).name if encoding else _without_mark(head))
        form = cls(found.removesuffix("-sig"))
        text = b"".join(form.decoded([head], is_cut=True))
        return cls(form.encoding, b"\n" not in text and b"\r" in text.rstrip(b"\r"))

    @cached_property
    def is_whole(self) -> bool:
        """Whether a newline cannot be told by its byte, as in UTF-16, so that the text is read from its beginning."""
        return _ASCII.decode(self.encoding, "replace") != _ASCII.decode("ascii")

    def as_utf8(self, lines: bytes) -> bytes:
        """Return whole lines as UTF-8; a byte that is not of the encoding stays, which makes its line invalid."""
        if self.encoding == "utf-8":
            return lines
        return lines.decode(self.encoding, "surrogateescape").encode("utf-8", "surrogateescape")

    def decoded(self, blocks: Iterable[bytes], *, is_cut: bool = False) -> Iterator[bytes]:
        """Yield a text that comes in blocks as UTF-8, with newlines as the ends of lines.

        Raises UnicodeDecodeError, also if it breaks off, unless it `is_cut`.
        """
        # Halves of surrogate pairs stay halves, which are invalid in UTF-8, too.
        errors = "surrogatepass" if self.encoding.startswith(("utf-16", "utf-32")) else "surrogateescape"
        decoder = codecs.getincrementaldecoder(self.encoding)(errors)
        for block in blocks:
            text = block if self.encoding == "utf-8" else decoder.decode(block).encode("utf-8", errors)
            yield text.replace(b"\r", b"\n") if self.has_returns else text
        if self.encoding != "utf-8" and not is_cut:
            decoder.decode(b"", final=True)


UTF8 = TextEncoding()


def _without_mark(head: bytes) -> str:
    """Tell UTF-16 by its zeros: of letters and digits, every second byte is one."""
    half = max(len(head) // 2, 1)
    even, odd = head[::2].count(0) / half, head[1::2].count(0) / half
    if odd > _MANY and even < _FEW:
        return "utf-16-le"
    return "utf-16-be" if even > _MANY and odd < _FEW else "utf-8"


@contextmanager
def _reading(file: InputFile) -> Iterator[None]:
    """Raise what goes wrong while a packed file is read as UserError."""
    try:
        yield
    except READ_ERRORS as error:
        if file.packing is None:
            raise
        raise unreadable(file.name, error, "fetch it again", f"damaged {file.packing} file") from None


def read_head(
    file: InputFile, encoding: str | None = None, num_bytes: int = HEAD_BYTES, *, may_cut: bool = False
) -> tuple[TextEncoding, bytes] | None:
    """Tell how a file is text, and return whole lines that it begins with, as `read_lines` does; None if it is empty.

    There is at least one, unless it is longer than the first bytes and `may_cut` says that it may be cut. The text is
    in the `encoding` given, or else the one that the first bytes show. Raises UserError if the file is no text.
    """
    with _reading(file), file.open() as stream:
        head = stream.read(num_bytes)
        what = next((what for magic, what in _NO_TEXT.items() if head.startswith(magic)), None)
        if what is not None:
            raise UserError(f"{file.name}: {what}")
        if not head:
            return None
        form = TextEncoding.of(head, encoding)
        while True:
            text = b"".join(form.decoded([head], is_cut=True)).removeprefix(BYTE_ORDER_MARK)
            end = text.rfind(b"\n") + 1
            more = stream.read(1 if end or may_cut else len(head))
            if not more:
                return form, text if text.endswith(b"\n") or not text else text + b"\n"
            if end or may_cut:
                return form, text[:end] or text
            head += more
            _check_length(file, head)


def read_text(file: InputFile, form: TextEncoding = UTF8, block_bytes: int = BLOCK_BYTES) -> Iterator[bytes]:
    """Yield the whole text of a file in blocks, as UTF-8 without a byte order mark. Raises as `read_lines`."""
    with _reading(file), file.open() as stream:
        blocks = iter(lambda: stream.read(block_bytes), b"")
        is_first = True
        try:
            for block in form.decoded(blocks):
                yield block.removeprefix(BYTE_ORDER_MARK) if is_first else block
                is_first = False
        except UnicodeDecodeError as error:
            raise UserError(f"{file.name}: not {form.encoding} text ({error.reason}); set another 'encoding'") from None


def read_lines(chunk: Chunk, form: TextEncoding = UTF8) -> Iterator[bytes]:
    """Yield the blocks of whole lines, each ended by a newline, which together are exactly the lines of the chunk.

    They are UTF-8, with a byte that is not of the file's encoding as it is, and without a byte order mark at the start
    of the file. A file that cannot be entered midway (`TextEncoding.is_whole`) is read with its first chunk.

    Raises UserError on a damaged packed file or an endless line.
    """
    with _reading(chunk.file):
        if not form.is_whole:
            yield from map(form.as_utf8, _cut_lines(chunk, _read_from(chunk, form)))
        elif chunk.start == 0:
            yield from _cut_lines(replace(chunk, stop=None), read_text(chunk.file, form))


def _read_from(chunk: Chunk, form: TextEncoding) -> Iterator[bytes]:
    """Yield a file's bytes in blocks, from the byte before the chunk on."""
    # What is read past the end of a short chunk belongs to the next one.
    block_bytes = BLOCK_BYTES if chunk.stop is None else min(BLOCK_BYTES, max(chunk.stop - chunk.start, _LEAST_BLOCK))
    with chunk.file.open() as stream:
        if chunk.start > 1:
            stream.seek(chunk.start - 1)
        while block := stream.read(block_bytes):
            yield block.replace(b"\r", b"\n") if form.has_returns else block


def _cut_lines(chunk: Chunk, blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Cut a text that begins at the byte before the chunk into the chunk's lines."""
    offset = max(0, chunk.start - 1)
    # The line that begins before the chunk belongs to the chunk before.
    is_skipping = chunk.start > 0
    carried = b""
    for block in blocks:
        data = carried + block
        if is_skipping:
            cut = data.find(b"\n") + 1
            offset += cut or len(data)
            if chunk.stop is not None and offset >= chunk.stop:
                return
            if not cut:
                continue
            data, is_skipping = data[cut:], False
        elif offset == 0 and data.startswith(BYTE_ORDER_MARK):
            data, offset = data[len(BYTE_ORDER_MARK) :], len(BYTE_ORDER_MARK)
        if chunk.stop is not None and len(data) > (last := max(chunk.stop - 1 - offset, 0)):
            # The newline that ends the last line that begins before `stop`.
            end = data.find(b"\n", last) + 1
            if end:
                yield data[:end]
                return
        cut = data.rfind(b"\n") + 1
        if cut:
            yield data[:cut]
        offset += cut
        carried = data[cut:]
        _check_length(chunk.file, carried)
    if carried:
        yield carried + b"\n"


def _check_length(file: InputFile, line: bytes) -> None:
    if len(line) > MAX_LINE_BYTES:
        raise UserError(f"{file.name}: a line longer than {MAX_LINE_BYTES // 2**20} MiB; give one row a line")


def read_data_lines(chunk: Chunk, form: TextEncoding = UTF8) -> Iterator[bytes]:
    """Yield the blocks of `read_lines`, without the blank lines at the end of the file."""
    blank = b""
    for block in read_lines(chunk, form):
        end = len(block)
        if block.endswith((b"\n\n", b"\n\r\n")) or block in (b"\n", b"\r\n"):
            content = len(block.rstrip(b"\r\n"))
            end = block.find(b"\n", content) + 1 if content else 0
        if end:
            yield blank + block[:end] if blank else block[:end]
            blank = b""
        blank += block[end:]
    if blank and not (form.is_whole or _is_blank_from(chunk)):
        yield blank


def _is_blank_from(chunk: Chunk) -> bool:
    """Tell whether nothing but blank lines follows the chunk in its file."""
    if chunk.stop is None:
        return True
    with chunk.file.open() as stream:
        stream.seek(chunk.stop)
        while block := stream.read(_LEAST_BLOCK):
            if block.strip(b"\r\n"):
                return False
    return True


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


def _is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
