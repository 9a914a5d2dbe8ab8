"""Delimited text: a row in each line, fields between separators."""

import csv
import io
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.config.table import FileFormat
from rayrec.raw.blocks import Reason
from rayrec.raw.formats.row_types import RawCells
from rayrec.raw.input_files import Chunk, InputFile, read_data_lines, read_lines
from rayrec.raw.text_lines import NEWLINE, TextLines, split_fields, unquoted_fields

_QUOTE = ord('"')
_OTHER_SEPARATORS = ";|"


@dataclass(frozen=True)
class DelimitedLayout:
    """The columns of a file of delimited text, and how its lines are split.

    A line is a row: a newline inside double quotes breaks the row in two bad ones. With `has_quotes`, double quotes may
    enclose a field, and two of them inside stand for one; quotes inside a field that does not begin with one are
    characters, if their number is even.
    """

    names: tuple[str, ...]
    separator: str
    has_quotes: bool
    null_values: tuple[str, ...]
    header: bytes | None
    """The first line, without what ends it, where it names the columns; None if it is a row."""

    @property
    def columns(self) -> pa.Schema:
        return pa.schema([(name, pa.string()) for name in self.names])

    @property
    def header_lines(self) -> int:
        return int(self.header is not None)

    def read(self, chunk: Chunk, wanted: Collection[str]) -> Iterator[tuple[bytes, RawCells]]:
        """Yield the text of each block with its rows, without the header; every column is text."""
        is_headed = self.header is not None and chunk.start == 0
        for text in read_data_lines(chunk):
            yield text, self.split(text.partition(b"\n")[2] if is_headed else text, wanted)
            is_headed = False

    def split(self, data: bytes, wanted: Collection[str]) -> RawCells:
        """Split whole lines, each ended by a newline (LF or CRLF)."""
        original = TextLines(data)
        has_quotes = self.has_quotes and b'"' in data
        lines, unclosed = _with_regular_quotes(original, self.separator) if has_quotes else (original, None)
        count = _count_outside_quotes(lines, self.separator) if has_quotes else lines.count(ord(self.separator))
        lines.reject_undecodable()
        lines.reject(count + 1 != len(self.names), Reason.COLUMNS)
        if unclosed is not None:
            lines.reject(unclosed, Reason.QUOTE)
        if self.header:
            lines.reject(original.equal_to(self.header), Reason.HEADER)  # as where files were joined to one
        names = [name for name in self.names if name in wanted]
        fields = split_fields(
            lines.bytes_of(lines.good),
            self.names,
            self.separator,
            self.null_values,
            wanted=names,
            has_quotes=has_quotes,
        )
        return RawCells(
            columns={name: fields.column(name) for name in names},
            positions=np.flatnonzero(lines.good),
            num_lines=len(lines),
            bad_lines=lines.bad,
            text=original.line,
        )


def _inside_quotes(lines: TextLines) -> NDArray[np.bool_]:
    """Return, for each byte, whether an odd number of quotes of its line are before it or are itself."""
    inside = np.logical_xor.accumulate(lines.raw == _QUOTE)
    is_begun_inside = np.concatenate(([False], inside[lines.ends[:-1]]))
    if is_begun_inside.any():
        inside ^= np.repeat(is_begun_inside, lines.ends - lines.starts + 1)
    return inside


def _count_outside_quotes(lines: TextLines, separator: str) -> NDArray[np.int64]:
    """(n,) how many separators of each line are outside of regular quotes."""
    places = np.flatnonzero((lines.raw == ord(separator)) & ~_inside_quotes(lines))
    return np.diff(np.searchsorted(places, lines.ends), prepend=0)


def _with_regular_quotes(lines: TextLines, separator: str) -> tuple[TextLines, NDArray[np.bool_]]:
    """Return the lines whose quotes all enclose whole fields or stand for one, and (n,) those with unclosed ones.

    Lines of other quotes are few; they are read one by one and written anew.
    """
    quotes = np.flatnonzero(lines.raw == _QUOTE)
    inside = _inside_quotes(lines)
    # The byte before an opening quote, and the byte after a closing one; each line ends with a newline.
    neighbours = lines.raw[np.where(inside[quotes], quotes - 1, quotes + 1)]
    if quotes[0] == 0:
        neighbours[0] = NEWLINE
    is_regular = (neighbours == ord(separator)) | (neighbours == NEWLINE) | (neighbours == _QUOTE)
    unclosed = inside[lines.ends]
    irregular = np.zeros(len(lines), bool)
    irregular[np.searchsorted(lines.ends, quotes[~is_regular])] = True
    parts, done = [], 0
    for number in np.flatnonzero(irregular & ~unclosed).tolist():
        # Latin-1 keeps every byte, whether it is UTF-8 or not.
        fields = unquoted_fields(lines.line(number).decode("latin-1"), separator)
        if fields is None:
            unclosed[number] = True
            continue
        parts += [lines.data[done : lines.starts[number]], _quoted(fields, separator)]
        done = int(lines.ends[number]) + 1
    return TextLines(b"".join([*parts, lines.data[done:]])) if parts else lines, unclosed


def _quoted(fields: list[str], separator: str) -> bytes:
    text = io.StringIO()
    csv.writer(text, delimiter=separator, quoting=csv.QUOTE_ALL, lineterminator="\n").writerow(fields)
    return text.getvalue().encode("latin-1")


def read_layout(file: InputFile, text_format: FileFormat, optional: Sequence[str]) -> DelimitedLayout | None:
    """Read the header of a file, or check its first line against the names given; None if the file is empty.

    A file without a header may lack the first of the columns `optional`, or all of them. Raises UserError.
    """
    line = first_line(file)
    if line is None:
        return None
    separator = text_format.separator or ("\t" if "\t" in line else ",")
    fields = unquoted_fields(line, separator) if text_format.quote else line.split(separator)
    given = text_format.header
    if given is None:
        names = _names(file, fields, text_format)
        return DelimitedLayout(names, separator, text_format.quote, text_format.null_values, line.encode())
    shorter, shortest = (tuple(name for name in given if name not in some) for some in (optional[:1], optional))
    fields = fields or []
    is_headed = set(shortest) <= set(fields) <= set(given) and len(set(fields)) == len(fields)
    fitting = (names for names in (given, shorter, shortest) if len(names) == len(fields))
    names = tuple(fields) if is_headed else next(fitting, given)
    header = line.encode() if is_headed else None
    return DelimitedLayout(names, separator, text_format.quote, text_format.null_values, header)


def first_line(file: InputFile) -> str | None:
    """Return the first line of a file, without what ends it; None if the file is empty. Raises UserError."""
    block = next(read_lines(Chunk(file, 0, 0, None if file.packing else min(file.bytes, 1))), b"")
    line = block.partition(b"\n")[0].removesuffix(b"\r")
    if b"\r" in line:
        raise UserError(f"{file.name}: its lines end with carriage returns only; convert them to newlines")
    try:
        return line.decode() if block else None
    except UnicodeDecodeError:
        raise UserError(
            f"{file.name}: its first line is not UTF-8 text; convert or unpack it, or set 'format'"
        ) from None


def _names(file: InputFile, fields: list[str] | None, text_format: FileFormat) -> tuple[str, ...]:
    if not fields:
        wrong = "is empty" if fields is not None else "has double quotes that are not closed"
        raise UserError(f"{file.name}: its first line {wrong}; it must name the columns, or give 'header'")
    names = tuple(field.strip() or f"column_{number}" for number, field in enumerate(fields, 1))
    if len(names) == 1 and text_format.separator is None:
        other = next((mark for mark in _OTHER_SEPARATORS if mark in names[0]), None)
        if other is not None:
            raise UserError(f"{file.name}: no tab and no comma in its first line; add separator: '{other}'")
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise UserError(
            f"{file.name}: two columns '{repeated}' in its first line; rename one, or list all names as 'header' if "
            "the file has none"
        )
    return names
