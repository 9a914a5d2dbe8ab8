"""The raw data sets that rayrec reads, by the `kind` of their config."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from rayrec.common.errors import UserError
from rayrec.config import CriteoSourceConfig, MovieLensSourceConfig, OutbrainSourceConfig, SourceConfig
from rayrec.sources.criteo import layout as criteo_layout
from rayrec.sources.criteo import parse as criteo_parse
from rayrec.sources.files import Chunk, InputFile, plan_chunks, read_lines
from rayrec.sources.movielens.reader import InteractionReader
from rayrec.sources.parsed_lines import ParsedLines
from rayrec.sources.raw_block import RawBlock


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


class _Criteo:
    columns = RawColumns(criteo_layout.LABEL, criteo_layout.NUMERIC, criteo_layout.CATEGORICAL)

    def parse_lines(self, data: bytes, is_labelled: bool) -> ParsedLines:
        return criteo_parse.parse_lines(data, is_labelled)

    def has_label(self, line: bytes) -> bool:
        return criteo_parse.has_label(line)

    def raw_schema(self, is_labelled: bool) -> pa.Schema:
        return criteo_parse.LABELLED_SCHEMA if is_labelled else criteo_parse.FEATURES_SCHEMA

    def day_of(self, file_name: str) -> int | None:
        return criteo_layout.day_of(file_name)


def text_source(config: SourceConfig) -> TextSource:
    """The source that a config describes, one whose rows are examples."""
    match config:
        case CriteoSourceConfig():
            return _Criteo()
        case MovieLensSourceConfig():
            raise AssertionError("its rows are interactions: InteractionReader")
        case OutbrainSourceConfig():
            raise AssertionError("its examples are joined from tables: table_reader")


class ChunkReader(Protocol):
    """Reads the chunks of files that it knows."""

    @property
    def label(self) -> str:
        """Name of the label column, where files have one."""

    def read(self, chunk: Chunk) -> Iterator[RawBlock]:
        """The blocks of a chunk, a few megabytes each; line numbers count from the chunk's first line."""


@dataclass(frozen=True)
class TextReader:
    """Reads files with a row a line."""

    source: TextSource
    labelled: tuple[bool, ...]
    """By file."""

    @property
    def label(self) -> str:
        return self.source.columns.label

    @property
    def schema(self) -> pa.Schema:
        """Of the rows of labelled files."""
        return self.source.raw_schema(True)

    @property
    def dictionaries(self) -> tuple[str, ...]:
        """Columns whose values repeat."""
        return self.source.columns.categorical

    def read(self, chunk: Chunk) -> Iterator[RawBlock]:
        first_line = 1
        for data in read_lines(chunk):
            parsed = self.source.parse_lines(data, self.labelled[chunk.file_index])
            yield RawBlock.of(parsed, chunk.file.name, first_line, data)
            first_line += parsed.num_lines


def chunk_reader(config: SourceConfig, files: Sequence[InputFile]) -> ChunkReader:
    """What reads `files`, with or without labels.

    Raises UserError where a file does not tell its columns, or the source's rows are not examples.
    """
    if isinstance(config, OutbrainSourceConfig):
        raise UserError(
            "source.kind 'outbrain': its examples are joined from nine tables; preprocess these and give the dataset "
            "folder"
        )
    if isinstance(config, MovieLensSourceConfig):
        return InteractionReader.detect(config, files)
    source = text_source(config)
    return TextReader(source, tuple(source.has_label(_first_line(file)) for file in files))


def _first_line(file: InputFile) -> bytes:
    (chunk,) = plan_chunks([file], max(file.bytes, 1))
    block = next(read_lines(chunk), b"\n")
    return block[: block.index(b"\n")]
