"""Rows in scratch files, as the stages hand them to each other."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rayrec.config import Config
from rayrec.preprocessing.segments import Piece, Segment, make_segments, new_parquet

ROW_GROUP_ROWS = 65_536
_OPTIONS: dict[str, Any] = {"compression": "lz4", "write_statistics": False}


class RowFile(Config):
    """A Parquet file."""

    path: Path
    rows: int


class RowFiles(Config):
    """Files in the order of their rows; the empty ones are left out."""

    files: tuple[RowFile, ...] = ()

    @classmethod
    def of(cls, files: Iterable[tuple[Path, int]]) -> "RowFiles":
        return cls(files=tuple(RowFile(path=path, rows=rows) for path, rows in files if rows))

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def segments(self, first_index: int = 0) -> list[Segment]:
        """The rows, dealt to tasks, which are numbered from `first_index`."""
        return make_segments((Piece(file.path, 0, file.rows) for file in self.files), first_index)


@contextmanager
def new_rows(path: Path, schema: pa.Schema, dictionaries: Sequence[str] = ()) -> Iterator[pq.ParquetWriter]:
    """A writer of a scratch file; `dictionaries`: columns whose values repeat."""
    with new_parquet(path, schema, use_dictionary=list(dictionaries), **_OPTIONS) as writer:
        yield writer
