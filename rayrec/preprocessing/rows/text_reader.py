"""Text files with an example in each line: what a source says of their format, and how they are read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rayrec.raw.blocks import ParsedLines, RawBlock, Reason, text_blocks
from rayrec.raw.files import Chunk, InputFile, plan_chunks, read_lines
from rayrec.raw.text_lines import TextLines, split_fields, to_integers

_ZERO, _ONE = 48, 49


@dataclass(frozen=True)
class RawColumns:
    """The raw columns of a source by their role."""

    label: str
    numeric: tuple[str, ...]
    categorical: tuple[str, ...]


@dataclass(frozen=True)
class DelimitedText:
    """Lines of a label (0 or 1), integers and categories, in the order of `columns`.

    There is no header, and quotes have no meaning. An empty field is a missing value; the label is never missing. Files
    that are to be scored may leave the label out. A line that breaks the format is set aside with the reason.
    """

    columns: RawColumns
    separator: str
    """One ASCII character."""

    def raw_schema(self, is_labelled: bool) -> pa.Schema:
        label = [(self.columns.label, pa.float32())] if is_labelled else []
        numeric = [(name, pa.int64()) for name in self.columns.numeric]
        return pa.schema(label + numeric + [(name, pa.string()) for name in self.columns.categorical])

    def has_label(self, line: bytes) -> bool:
        """False if a line has exactly the columns of the features, as in files that are to be scored."""
        return line.count(self.separator.encode()) + 1 != len(self.raw_schema(False))

    def day_of(self, file_name: str) -> int | None:
        """The day whose rows a file holds; None if its name does not tell, as by default."""
        return None

    def parse_lines(self, data: bytes, is_labelled: bool = True) -> ParsedLines:
        """Parse whole lines, each ended by a newline (LF or CRLF)."""
        lines = TextLines(data)
        schema = self.raw_schema(is_labelled)
        if is_labelled and len(lines):
            # A line begins with the label and a separator; an empty last line has nothing after its newline.
            first, second = lines.raw[lines.starts], lines.raw[np.minimum(lines.starts + 1, len(lines.raw) - 1)]
            is_label = (first == _ZERO) | (first == _ONE)
            lines.reject(~(is_label & (second == ord(self.separator))), Reason.LABEL)
        lines.reject_undecodable()
        lines.reject(lines.count(ord(self.separator)) + 1 != len(schema), Reason.COLUMNS)

        fields = split_fields(lines.bytes_of(lines.good), schema.names, self.separator)
        positions = np.flatnonzero(lines.good)
        columns = [fields.column(self.columns.label).cast(pa.float32())] if is_labelled else []
        is_integer = np.ones(len(positions), bool)
        for name in self.columns.numeric:
            values, column_is_integer = to_integers(fields.column(name))
            columns.append(values)
            is_integer &= column_is_integer
        columns += [fields.column(name) for name in self.columns.categorical]
        rows = pa.RecordBatch.from_arrays(columns, schema=schema)
        if not is_integer.all():
            lines.reject(positions[~is_integer], Reason.INTEGER)
            rows, positions = rows.filter(pa.array(is_integer)), positions[is_integer]
        return lines.parsed(rows, positions)


@dataclass(frozen=True)
class TextReader:
    """Reads files with a row in each line."""

    format: DelimitedText
    labelled: tuple[bool, ...]
    """For each file, whether it has labels."""

    @classmethod
    def detect(cls, text_format: DelimitedText, files: Sequence[InputFile]) -> "TextReader":
        """Look at the first line of every file to find out whether the file has labels."""
        return cls(text_format, tuple(text_format.has_label(_first_line(file)) for file in files))

    @property
    def label(self) -> str:
        return self.format.columns.label

    @property
    def schema(self) -> pa.Schema:
        """The columns of labelled files."""
        return self.format.raw_schema(True)

    @property
    def dictionaries(self) -> tuple[str, ...]:
        """The columns whose values repeat."""
        return self.format.columns.categorical

    def read(self, chunk: Chunk) -> Iterator[RawBlock]:
        """The blocks of a chunk; line numbers count from its first line."""
        is_labelled = self.labelled[chunk.file_index]
        return text_blocks(chunk, lambda data: self.format.parse_lines(data, is_labelled))


def _first_line(file: InputFile) -> bytes:
    (chunk,) = plan_chunks([file], max(file.bytes, 1))
    block = next(read_lines(chunk), b"\n")
    return block[: block.index(b"\n")]
