"""The raw data sets that rayrec reads, by the `kind` of their config."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.config import CriteoSourceConfig, SourceConfig
from rayrec.sources.criteo import layout as criteo_layout
from rayrec.sources.criteo import parse as criteo_parse
from rayrec.sources.files import Chunk, list_inputs, plan_chunks, read_lines
from rayrec.sources.rejected import Reason, rejected_table


@dataclass(frozen=True)
class RawColumns:
    """The raw columns of a source by their role."""

    label: str
    numeric: tuple[str, ...]
    categorical: tuple[str, ...]


class ParsedLines(Protocol):
    """What a parser gives for a block of lines; see `rayrec.sources.criteo.parse.ParsedLines`."""

    rows: pa.RecordBatch
    positions: NDArray[np.int64]
    num_lines: int
    rejected_positions: NDArray[np.int64]
    rejected_reasons: list[Reason]
    rejected_texts: list[bytes]


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
    """The source that a config describes."""
    match config:
        case CriteoSourceConfig():
            return _Criteo()


def raw_columns(config: SourceConfig) -> RawColumns:
    """The raw columns of the source that a config describes."""
    return text_source(config).columns


@dataclass(frozen=True)
class RawBlock:
    """Some rows of a raw file, and those among them that could not be used."""

    file: str
    rows: pa.RecordBatch
    """Raw columns, the label (float32) first where the file has one."""
    lines: NDArray[np.int64]
    """Line of each row in the file, from 1."""
    num_lines: int
    """Lines of the block, good and bad."""
    text: bytes
    """The block itself: whole lines."""
    rejected: pa.Table
    """As `rayrec.sources.rejected.REJECTED_SCHEMA`."""


def read_raw(config: SourceConfig, paths: str | Sequence[str]) -> Iterator[RawBlock]:
    """Read raw files in this process, in order, a few megabytes at a time.

    `paths` as for `list_inputs`. A file's first line tells whether it has a label column. Raises UserError where a
    path gives no file.
    """
    source = text_source(config)
    for file in list_inputs([paths] if isinstance(paths, str) else paths):
        (chunk,) = plan_chunks([file], max(1, file.bytes))
        yield from read_chunk(source, chunk)


def read_chunk(source: TextSource, chunk: Chunk, is_labelled: bool | None = None) -> Iterator[RawBlock]:
    """The blocks of a chunk; line numbers count from the chunk's first line. `is_labelled`: None asks the first line."""
    first_line = 1
    for data in read_lines(chunk):
        if is_labelled is None:
            is_labelled = source.has_label(data[: data.index(b"\n")])
        parsed = source.parse_lines(data, is_labelled)
        rejected = rejected_table(
            chunk.file.name, parsed.rejected_positions + first_line, parsed.rejected_reasons, parsed.rejected_texts
        )
        yield RawBlock(chunk.file.name, parsed.rows, parsed.positions + first_line, parsed.num_lines, data, rejected)
        first_line += parsed.num_lines
