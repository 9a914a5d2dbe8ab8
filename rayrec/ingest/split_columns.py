"""Columns of a split, one at a time, so that wide tables need no more memory than narrow ones."""

from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rayrec.common.disk_errors import unreadable
from rayrec.ingest.dataset import Dataset
from rayrec.store.parquet import open_parquet


class SplitColumns:
    """Reads columns of a split: of all rows, or of as many row groups, evenly spread over it, as have about `most`."""

    def __init__(self, dataset: Dataset, split: str, most: int) -> None:
        """Raise UserError if there is no such split, or it has no rows."""
        self._dataset = dataset
        info = dataset.split(split)
        groups = [(part.path, n, rows) for part in info.parts for n, rows in enumerate(part.row_groups) if rows]
        kept = max(1, min(len(groups), most * len(groups) // info.rows))
        self._groups = [groups[place] for place in np.linspace(0, len(groups) - 1, kept).round().astype(int)]
        self.rows = sum(rows for _, _, rows in self._groups)
        self._files: dict[str, pq.ParquetFile] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.close()

    def read(self, name: str) -> pa.Array:
        """Return the (rows,) values of a column, in the order of the files. Raises UserError if a part is damaged."""
        try:
            columns = [self._file(path).read_row_group(group, columns=[name])[name] for path, group, _ in self._groups]
        except (OSError, pa.ArrowInvalid, KeyError) as error:
            where = f"{self._dataset.folder}: column '{name}'"
            raise unreadable(where, error, "run `rayrec preprocess` again") from None
        joined = pa.chunked_array([chunk for column in columns for chunk in column.chunks]).combine_chunks()
        return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined

    def _file(self, path: str) -> pq.ParquetFile:
        if path not in self._files:
            self._files[path] = open_parquet(self._dataset.folder / path)
        return self._files[path]
