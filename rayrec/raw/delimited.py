"""Delimited text: a row in each line, or in several where newlines stand in quotes, with fields between separators."""

import csv
import io
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from rayrec.common.errors import UserError
from rayrec.config.table import FileFormat
from rayrec.raw.input_files import BYTE_ORDER_MARK, Chunk, InputFile
from rayrec.raw.rows import RawCells, Reason
from rayrec.raw.text import (
    LONGEST_ROW,
    NEWLINE,
    UTF8,
    TextEncoding,
    TextLines,
    read_data_lines,
    read_head,
    read_lines,
)

_SEPARATORS, _OTHER_SEPARATORS = ("\t", ",", "::"), ";|"
"""Those that need not be named, if the first line has one; and others, which must be."""
_SEPARATOR_LINE = re.compile(r'"?sep=([\x00-\x7f])"?', re.IGNORECASE)
_PAIRS = re.compile(r"[-+]?[0-9][-+.,0-9eE]*(?: +qid:[0-9]+)?((?:\s+[0-9]+:[-+.0-9eE]+)*)\s*(?:#.*)?")
"""A line of LIBSVM: `1 3:0.5 7:1`."""
_NAMESPACES = re.compile(r"(?:[-+]?[0-9][.0-9]*\s+){0,3}(?:'?[^\s|]+\s*)?\|(?:[^|]|(?<=\s)\|)*")
_NAMESPACE = re.compile(r"(?:^|\s)\|[A-Za-z_]|\s[A-Za-z_][^\s:|]*:[-+]?[.0-9]+(?:\s|$)")
"""A line of Vowpal Wabbit: `1 'tag |user age:30 vip |item b`; and what none of a table with pipes has."""
_UNIT = "\x1f"
"""ASCII's own separator, which stands for one of several characters while lines are parsed."""
_BEYOND = ""
"""The column after the last separator of rows that end with one."""


@dataclass(frozen=True)
class DelimitedLayout:
    """The columns of a file of delimited text, and how its lines are split.

    Quotes may enclose a field, and two of them inside stand for one; quotes inside a field that does not begin with one
    are characters, if their number is even. A newline inside of quotes is one of the field: the lines from one with an
    odd number of quotes to the next such line are a row, if they have its number of fields. Otherwise the first of
    them is bad alone.
    """

    names: tuple[str, ...]
    separator: str
    quote: str | None
    header: bytes | None
    """The line that names the columns, without what ends it; None if there is none."""
    text: TextEncoding = UTF8
    header_lines: int = 0
    """Lines at the beginning of the file that are no rows."""
    escape: str | None = None
    """What makes the quote, or the escape, that follows it a character."""
    comment: str | None = None
    """What lines begin with that are no rows."""
    has_last_separator: bool = False
    """Whether a separator ends each row."""

    @property
    def columns(self) -> pa.Schema:
        return pa.schema([(name, pa.string()) for name in self.names])

    @property
    def is_whole(self) -> bool:
        """Whether a file is read from its beginning, with its first chunk."""
        return self.text.is_whole

    def count_lines(self, chunk: Chunk) -> int:
        """Return the number of lines of a chunk that has others after it, as `read` numbers lines."""
        return sum(text.count(b"\n") for text in read_lines(chunk, self.text))

    def read(self, chunk: Chunk, wanted: Collection[str]) -> Iterator[tuple[bytes, RawCells]]:
        """Yield the text of each block with its rows, whose lines count from the chunk's first; every column is text.

        A row belongs to the chunk in which its first line begins.
        """
        # The border of chunks that are smaller than those of any job may cut the head of a file.
        skipped = self.header_lines if chunk.start < LONGEST_ROW else 0
        if skipped and chunk.start:
            skipped -= min(skipped, self.count_lines(replace(chunk, start=0, stop=chunk.start)))
        for lines, own in self._blocks(chunk):
            head = own[:skipped]
            skipped -= len(head)
            lines.leave_out(slice(head.start, head.stop))
            yield lines.shown if len(own) == len(lines) else lines.lines(own), self._split(lines, own, wanted)

    def split(self, data: bytes, wanted: Collection[str]) -> RawCells:
        """Split whole lines, each ended by a newline (LF or CRLF), that are rows."""
        lines = self._lines(data)
        return self._split(lines, range(len(lines)), wanted)

    def first_row(self, lines: Sequence[bytes]) -> tuple[int, bytes]:
        """Return how many lines the first row has, as quotes may be closed in a later one, and the row."""
        plain = [self._plain(line) for line in lines]
        for length in range(1, len(plain) + 1):
            row = b"\n".join(plain[:length])
            if self.quote is None or row.count(self.quote.encode()) % 2 == 0:
                return length, row
        return 1, plain[0]

    def fitted(self, rows: bytes) -> "DelimitedLayout":
        """Return the layout of files with such rows: some programs end rows, but not the header, with a separator."""
        other = replace(self, has_last_separator=True)
        return other if not len(self.split(rows, ()).positions) and len(other.split(rows, ()).positions) else self

    def _blocks(self, chunk: Chunk) -> Iterator[tuple[TextLines, range]]:
        """Yield blocks of lines, with the range of the lines whose rows the block has.

        Whether a line begins a row shows in the lines before it, back to the row's beginning. So a chunk that may begin
        inside of a row is read with lines before it, and one that ends inside of a row with lines after it.
        """
        carried, foreign = b"", 0  # the lines of a row that is not closed yet; some of them are of the chunk before
        is_small = chunk.stop is not None and chunk.stop - chunk.start < LONGEST_ROW
        for number, block in enumerate(read_data_lines(chunk, self.text)):
            lines = self._lines(carried + block)
            if self.quote and number == 0 and chunk.start:
                # An odd quote near the chunk's beginning may close a row that begins before it, which only the lines
                # before tell. No row is so long that it reaches further.
                is_odd_soon = len(lines.odd) > 0 and lines.starts[lines.odd[0]] < LONGEST_ROW
                if is_odd_soon or is_small:
                    start = max(chunk.start - LONGEST_ROW, 0)
                    before = b"".join(read_lines(replace(chunk, start=start, stop=chunk.start), self.text))
                    lines, foreign = self._lines(before + block), before.count(b"\n")
            if lines.open_row is None:
                yield lines, range(foreign, len(lines))
                carried, foreign = b"", 0
            elif lines.open_row >= foreign:
                # The last row goes on in the next block; those before it are whole.
                yield lines, range(foreign, lines.open_row)
                carried, foreign = lines.lines(range(lines.open_row, len(lines))), 0
            else:
                # The row that is open is the chunk before's: where the first one of this chunk begins is not known yet.
                carried = lines.shown
        if carried:
            # The chunk ends inside of its last row: read on, as far as a row may go.
            after = b""
            if chunk.stop is not None and chunk.stop < chunk.file.bytes:
                stop = min(chunk.stop + LONGEST_ROW, chunk.file.bytes)
                after = b"".join(read_lines(replace(chunk, start=chunk.stop, stop=stop), self.text))
            yield self._lines(carried + after), range(foreign, carried.count(b"\n"))

    def _lines(self, data: bytes) -> TextLines:
        """Return lines in the dialect that Arrow reads, those joined that are one row."""
        has_dialect = self.escape is not None or len(self.separator) > 1
        lines = TextLines(data, self._plain if has_dialect else None)
        if self.quote is not None and self.quote.encode() in lines.data:
            lines.join(self.quote, self.comment, self._has_fields)
        return lines

    def _plain(self, data: bytes) -> bytes:
        """Write an escaped quote as two, and a separator of several characters as one."""
        if len(self.separator) > 1:
            data = data.replace(self.separator.encode(), _UNIT.encode())
        if self.escape is None or self.quote is None:
            return data
        escape, quote = self.escape.encode(), self.quote.encode()
        if escape * 2 not in data:
            return data.replace(escape + quote, quote * 2)
        pattern = b"%b([%b])" % (re.escape(escape), re.escape(escape + quote))
        return re.sub(pattern, lambda found: quote * 2 if found[1] == quote else escape, data)

    @property
    def _mark(self) -> str:
        """The separator in lines that are parsed."""
        return self.separator if len(self.separator) == 1 else _UNIT

    @property
    def _num_fields(self) -> int:
        return len(self.names) + self.has_last_separator

    def fields(self, row: bytes) -> list[str] | None:
        """Return the fields of a row, any bytes of which that are not UTF-8 stay; None if a quote is not closed."""
        text = row.decode("utf-8", "surrogateescape")
        if self.quote is None:
            return text.split(self._mark)
        try:
            return next(csv.reader([text], delimiter=self._mark, quotechar=self.quote, strict=True), [])
        except csv.Error:
            return None

    def _has_fields(self, row: bytes) -> bool:
        return len(self.fields(row.replace(b"\r", b" ")) or ()) == self._num_fields

    def _split(self, lines: TextLines, own: range, wanted: Collection[str]) -> RawCells:
        """Return the rows that begin in the lines `own`, except for those left out already."""
        # What is no row, and what cannot be parsed.
        lines.leave_out(slice(0, own.start))
        lines.leave_out(slice(own.stop, None))
        if self.comment:
            lines.leave_out(lines.beginning_with(self.comment))
        if self.header:  # as where files were joined to one
            lines.reject([number for number in lines.equal_to(self.header) if lines.good[number]], Reason.HEADER)
        lines.reject_undecodable()
        for number, reason in lines.bad.items():
            if reason in (Reason.UTF8, Reason.CARRIAGE_RETURN) and not self._has_fields(lines.line(number)):
                lines.reject([number], Reason.COLUMNS)
        if self._num_fields > 1 and lines.has_blank:  # no rows, as for every other reader
            lines.leave_out(lines.good & (lines.starts == lines.ends))
        # Arrow's reader tells rows with another number of fields.
        data = lines.bytes_of(lines.good)
        if self.quote is not None and self.quote.encode() in data:
            data = self._with_regular_quotes(lines, data)
        positions = np.flatnonzero(lines.good)
        names = [name for name in self.names if name in wanted]
        beyond = [_BEYOND] if self.has_last_separator else []
        skipped: list[int] = []
        fields = _split_fields(
            data,
            [*self.names, *beyond],
            self._mark,
            wanted=[*names, *beyond],
            quote=self.quote,
            has_joined=lines.has_joined,
            skipped=skipped,
        )
        lines.reject(positions[skipped], Reason.COLUMNS)
        positions = np.delete(positions, skipped)
        if beyond:
            is_empty = pc.equal(pc.fill_null(fields.column(_BEYOND), ""), "")
            lines.reject(positions[~is_empty.to_numpy(zero_copy_only=False)], Reason.COLUMNS)
            fields, positions = fields.filter(is_empty), np.flatnonzero(lines.good)
        return RawCells(
            columns={name: fields.column(name) for name in names},
            positions=positions - own.start,
            num_lines=len(own),
            bad_lines={number - own.start: reason for number, reason in lines.bad.items()},
            text=lambda number: lines.line(number + own.start, is_shown=True),
        )

    def _with_regular_quotes(self, lines: TextLines, data: bytes) -> bytes:
        """Return the good rows, which are `data`, with quotes that all enclose whole fields or stand for one.

        Rows of other quotes are few; they are read one by one and written anew, or rejected.
        """
        assert self.quote is not None
        # The number of quotes of every row is even, so every other one opens a field. The byte before the first quote
        # of all is the newline at the end of all.
        raw = np.frombuffer(data, np.uint8)
        quotes = np.flatnonzero(raw == ord(self.quote))
        around = np.stack([raw[quotes[::2] - 1], raw[quotes[1::2] + 1]])
        is_regular = (around == ord(self._mark)) | (around == NEWLINE) | (around == ord(self.quote))
        if is_regular.all():
            return data
        positions = np.flatnonzero(lines.good)
        ends = np.cumsum(lines.ends[lines.last_lines(positions)] + 1 - lines.starts[positions])
        irregular = np.unique(np.searchsorted(ends, quotes.reshape(-1, 2).T[~is_regular], "right"))
        written, done = [], 0
        for place in irregular.tolist():
            number = int(positions[place])
            row = lines.line(number)
            # An escaped quote outside of quotes would become two.
            fields = (
                None if self.escape and self.escape.encode() in lines.line(number, is_shown=True) else self.fields(row)
            )
            end = int(ends[place])
            written.append(data[done : end - len(row) - 1])
            done = end
            if fields is None:
                lines.reject([number], Reason.QUOTE)
            else:
                quoted = io.StringIO()
                csv.writer(
                    quoted, delimiter=self._mark, quotechar=self.quote, quoting=csv.QUOTE_ALL, lineterminator="\n"
                ).writerow(fields)
                written.append(quoted.getvalue().encode("utf-8", "surrogateescape"))
        return b"".join([*written, data[done:]])


def _split_fields(
    data: bytes,
    names: Sequence[str],
    separator: str,
    *,
    wanted: Sequence[str],
    quote: str | None,
    has_joined: bool,
    skipped: list[int],
) -> pa.RecordBatch:
    """Return the fields of the `wanted` columns as strings; empty ones are null.

    `quote` may enclose a field, two in it stand for one; without it, none means anything. `has_joined`: newlines may
    stand in quotes. The numbers, from 0, of rows with another number of fields are added to `skipped`.
    """

    def skip(row: pa_csv.InvalidRow) -> str:
        skipped.append(row.number - 1)
        return "skip"

    strings = pa.schema([(name, pa.string()) for name in wanted])
    if not data:
        return pa.RecordBatch.from_pylist([], schema=strings)
    if data.startswith(BYTE_ORDER_MARK):
        # Arrow leaves out one mark, which is a character where no file begins.
        data = BYTE_ORDER_MARK + data
    table = pa_csv.read_csv(
        pa.BufferReader(data),
        read_options=pa_csv.ReadOptions(column_names=list(names), use_threads=False, block_size=len(data) + 1),
        parse_options=pa_csv.ParseOptions(
            delimiter=separator,
            quote_char=quote or False,
            double_quote=quote is not None,
            ignore_empty_lines=False,
            newlines_in_values=has_joined,
            invalid_row_handler=skip,
        ),
        convert_options=pa_csv.ConvertOptions(
            column_types=strings,
            include_columns=list(wanted),
            null_values=[""],
            strings_can_be_null=True,
            check_utf8=False,
        ),
    )
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=strings)


def read_layout(file: InputFile, text_format: FileFormat, optional: Sequence[str]) -> DelimitedLayout | None:
    """Read the header of a file, or check its first line against the names given; None if the file is empty.

    A file without a header may lack the first of the columns `optional`, or all of them. Raises UserError.
    """
    found = _begin(file, text_format)
    if found is None:
        return None
    layout, length, first, lines = found
    fields = layout.fields(first)
    given = text_format.header
    if given is None:
        names, is_headed = _names(file, fields, text_format, layout.separator), True
    else:
        shorter, shortest = (tuple(name for name in given if name not in some) for some in (optional[:1], optional))
        fields = fields or []
        is_headed = set(shortest) <= set(fields) <= set(given) and len(set(fields)) == len(fields)
        fitting = (names for names in (given, shorter, shortest) if len(names) == len(fields))
        names = tuple(fields) if is_headed else next(fitting, given)
        # Names that are given may also be others for a few of the header, such as one of two equal ones.
        is_headed |= len(fields) == len(given) and 2 * sum(map(str.__eq__, fields, given)) > len(given)
    if is_headed:
        header_lines = layout.header_lines + length
        layout = replace(layout, header=first if length == 1 else None, header_lines=header_lines)
    rows = b"".join(line + b"\n" for line in lines[layout.header_lines :] if line)
    return replace(layout, names=names).fitted(rows)


def first_fields(file: InputFile, text_format: FileFormat) -> tuple[str, list[str]]:
    """Return the separator of a file and the fields of its first row, which may be a header; none if it is empty.

    Raises UserError as `read_layout`.
    """
    found = _begin(file, text_format)
    return ("", []) if found is None else (found[0].separator, found[0].fields(found[2]) or [])


def _begin(file: InputFile, text_format: FileFormat) -> tuple[DelimitedLayout, int, bytes, list[bytes]] | None:
    """Return a layout without columns, the number of lines of the first row, that row, and the lines that a file begins
    with; None if it is empty.
    """
    form, head = read_head(file, text_format.encoding) or (UTF8, b"")
    lines = head.replace(b"\r\n", b"\n").split(b"\n")[:-1]
    # Lines before the header: one that tells the separator, comments, blank ones.
    told = separator_told(lines[0].decode("latin-1")) if lines else None
    before = int(told is not None)
    for line in lines[before:]:
        is_comment = text_format.comment is not None and line.startswith(text_format.comment.encode())
        if not is_comment and (text_format.header is not None or line.strip()):
            break
        before += 1
    if before == len(lines):
        return None
    if text_format.separator is None:
        refuse_other_formats(file, [line.decode("latin-1") for line in lines[before:]])
    separator = told or text_format.separator or separator_of(lines[before].decode("latin-1"))
    text_format = text_format.model_copy(update={"separator": separator})
    layout = DelimitedLayout(
        names=("",),
        separator=separator,
        quote=text_format.quote_mark,
        header=None,
        text=form,
        header_lines=before,
        escape=text_format.escape,
        comment=text_format.comment,
    )
    length, first = layout.first_row(lines[before:])
    try:
        first.decode()
    except UnicodeDecodeError:
        raise UserError(
            f"{file.name}: its first line is not UTF-8 text; set 'encoding', such as latin-1, or unpack it, or set "
            "'format'"
        ) from None
    return layout, length, first, lines


def separator_of(line: str) -> str:
    """Return the separator of lines of which this is the first, unless a recipe names another."""
    return next((mark for mark in _SEPARATORS if mark in line), ",")


def refuse_other_formats(file: InputFile, lines: Sequence[str]) -> None:
    """Raise UserError if the lines that a file begins with are those of a program whose rows have no columns."""
    lines = [line.strip() for line in lines if line.strip()]
    found = [_PAIRS.fullmatch(line) for line in lines]
    other = None
    if all(found):
        places = [[int(pair.partition(":")[0]) for pair in match[1].split()] for match in found if match]
        # Times of the day would be as many in every line.
        lengths = {len(row) for row in places}
        is_sparse = (len(lengths) > 1 and max(lengths) > 1) or all(row[:2] in ([0, 1], [1, 2]) for row in places)
        other = "LIBSVM" if is_sparse and all(row == sorted(set(row)) for row in places) else None
    elif all(_NAMESPACES.fullmatch(line) and _NAMESPACE.search(line) for line in lines):
        other = "Vowpal Wabbit"
    if other is not None and lines:
        raise UserError(
            f"{file.name}: lines of {other}, which have no columns; write CSV or Parquet, with a column "
            "for each feature, or one of lists"
        )


def separator_told(line: str) -> str | None:
    """Return the separator that the first line of a file tells, as Excel writes and reads it; None for other lines."""
    told = _SEPARATOR_LINE.fullmatch(line)
    return told and told[1]


def _names(file: InputFile, fields: list[str] | None, text_format: FileFormat, separator: str) -> tuple[str, ...]:
    if not fields:
        wrong = "is empty" if fields is not None else "has double quotes that are not closed"
        raise UserError(f"{file.name}: its first line {wrong}; it must name the columns, or give 'header'")
    names = tuple(field.strip() or f"column_{number}" for number, field in enumerate(fields, 1))
    if len(names) == 1 and text_format.separator is None and separator == ",":
        other = next((mark for mark in _OTHER_SEPARATORS if mark in names[0]), None)
        if other is not None:
            raise UserError(f"{file.name}: no tab and no comma in its first line; add separator: '{other}'")
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise UserError(
            f"{file.name}: two columns '{repeated}' in its first line; rename one, or list all names as 'header'"
        )
    return names
