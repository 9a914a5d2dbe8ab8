"""The raw data sets that rayrec reads, by the `kind` of their config."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.config import CriteoSourceConfig, SourceConfig
from rayrec.sources.criteo import layout as criteo_layout
from rayrec.sources.criteo import parse as criteo_parse
from rayrec.sources.files import Chunk, read_lines
from rayrec.sources.parsed_lines import ParsedLines
from rayrec.sources.rejected import rejected_table


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
    """The source that a config describes."""
    match config:
        case CriteoSourceConfig():
            return _Criteo()


@dataclass(frozen=True)
class RawBlock:
    """Some rows of a chunk, and those among them that could not be used."""

    rows: pa.RecordBatch
    """Raw columns, the label (float32) first where the file has one."""
    lines: NDArray[np.int64]
    """Line of each row in the chunk, from 1."""
    num_lines: int
    """Lines of the block, good and bad."""
    text: bytes
    """The block itself: whole lines."""
    rejected: pa.Table
    """As `rayrec.sources.rejected.REJECTED_SCHEMA`, lines as above."""


def read_chunk(source: TextSource, chunk: Chunk, is_labelled: bool) -> Iterator[RawBlock]:
    """The blocks of a chunk, a few megabytes each; line numbers count from the chunk's first line."""
    first_line = 1
    for data in read_lines(chunk):
        parsed = source.parse_lines(data, is_labelled)
        rejected = rejected_table(
            chunk.file.name, parsed.rejected_positions + first_line, parsed.rejected_reasons, parsed.rejected_texts
        )
        yield RawBlock(parsed.rows, parsed.positions + first_line, parsed.num_lines, data, rejected)
        first_line += parsed.num_lines
