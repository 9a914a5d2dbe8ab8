"""Sources of text files with an example in each line."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from rayrec.raw.blocks import ParsedLines, RawBlock
from rayrec.raw.files import Chunk, InputFile, plan_chunks, read_lines


@dataclass(frozen=True)
class RawColumns:
    """The raw columns of a source by their role."""

    label: str
    numeric: tuple[str, ...]
    categorical: tuple[str, ...]


class TextSource(Protocol):
    """A source of text files with one row a line."""

    columns: RawColumns

    def parse_lines(self, data: bytes, is_labelled: bool) -> ParsedLines:
        """Parse whole lines, each ended by a newline."""

    def has_label(self, line: bytes) -> bool:
        """Whether a file that begins with `line` has a label column."""

    def raw_schema(self, is_labelled: bool) -> pa.Schema:
        """Schema of the parsed rows."""

    def day_of(self, file_name: str) -> int | None:
        """The day whose rows a file holds; None where its name does not tell."""


@dataclass(frozen=True)
class TextReader:
    """Reads files with a row a line."""

    source: TextSource
    labelled: tuple[bool, ...]
    """Whether each file has a label column."""

    @classmethod
    def detect(cls, source: TextSource, files: Sequence[InputFile]) -> "TextReader":
        """Look at the first line of every file, which tells whether the file has labels."""
        return cls(source, tuple(source.has_label(_first_line(file)) for file in files))

    @property
    def label(self) -> str:
        return self.source.columns.label

    @property
    def schema(self) -> pa.Schema:
        """The columns of labelled files."""
        return self.source.raw_schema(True)

    @property
    def dictionaries(self) -> tuple[str, ...]:
        """The columns whose values repeat."""
        return self.source.columns.categorical

    def read(self, chunk: Chunk) -> Iterator[RawBlock]:
        """The blocks of a chunk; line numbers count from its first line."""
        first_line = 1
        for data in read_lines(chunk):
            parsed = self.source.parse_lines(data, self.labelled[chunk.file_index])
            yield RawBlock.of(parsed, chunk.file.name, first_line, data)
            first_line += parsed.num_lines


def _first_line(file: InputFile) -> bytes:
    (chunk,) = plan_chunks([file], max(file.bytes, 1))
    block = next(read_lines(chunk), b"\n")
    return block[: block.index(b"\n")]
