"""The Parquet parts of an output folder."""

from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq

_ROWS_PER_PART = 4_194_304


class Parts:
    """Writes tables one after the other to `part-00000.parquet`, ... of a folder, which it makes with the first row."""

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self._folder = folder
        self._schema = schema
        self._writer: pq.ParquetWriter | None = None
        self._parts = 0
        self._rows = 0

    def write(self, table: pa.Table) -> None:
        if table.num_rows == 0:
            return
        if self._writer is None:
            self._folder.mkdir(exist_ok=True)
            path = self._folder / f"part-{self._parts:05d}.parquet"
            self._writer = pq.ParquetWriter(path, self._schema, compression="zstd")
            self._parts, self._rows = self._parts + 1, 0
        self._writer.write_table(table)
        self._rows += table.num_rows
        if self._rows >= _ROWS_PER_PART:
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
