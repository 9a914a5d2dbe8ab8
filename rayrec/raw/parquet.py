"""Parquet files: row groups, read with the columns that are wanted."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rayrec.common.disk_errors import unreadable
from rayrec.common.errors import UserError
from rayrec.features.raw_columns import flat_batch, flat_schema, is_index
from rayrec.features.raw_values import NO_PERIODS, PERIODS
from rayrec.raw.input_files import Chunk, InputFile
from rayrec.raw.rows import RawCells, as_python

_MOST_BATCH_ROWS, _BATCH_BYTES = 65_536, 2**22
"""Bytes of a batch, as the file has them before they are packed, which dictionaries make several times in memory."""


@dataclass(frozen=True)
class ParquetLayout:
    """The columns of a Parquet file, those of structs flat."""

    columns: pa.Schema

    is_whole = False
    header_lines = 0

    def count_lines(self, chunk: Chunk) -> int:
        """Return the number of rows of the chunk. Raises UserError on a damaged file."""
        if not chunk.file.bytes:
            return 0
        with open_parquet(chunk.file) as file:
            return sum(group.rows for group in row_groups(file.metadata) if _begins_in(chunk, group))

    def read(self, chunk: Chunk, wanted: Collection[str]) -> Iterator[tuple[bytes, RawCells]]:
        """Yield the rows of the row groups that begin in the chunk, with no text; rows count as lines."""
        for batch in map(flat_batch, read_row_groups(chunk, [name for name in self.columns.names if name in wanted])):
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            yield b"", RawCells(columns, np.arange(len(batch)), len(batch), {}, partial(_text_of_row, batch))


def _text_of_row(batch: pa.RecordBatch, row: int) -> bytes:
    return str({name: as_python(column[row]) for name, column in zip(batch.schema.names, batch, strict=True)}).encode()


@contextmanager
def open_parquet(file: InputFile) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file. Raises UserError if it is damaged, or if it turns out to be while it is read."""
    try:
        with file.open_packed() as stream, pq.ParquetFile(stream) as opened:
            yield opened
    except (pa.ArrowException, OSError) as error:
        raise unreadable(file.name, error, "fetch it again", "damaged Parquet file") from None


def read_row_groups(chunk: Chunk, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the row groups whose first byte lies in the chunk; none of an empty file.

    Raises UserError on a damaged file.
    """
    if not chunk.file.bytes:
        return
    with open_parquet(chunk.file) as file:
        for field in file.schema_arrow:
            # Without pandas in this process, Arrow reads their integers.
            is_period = (field.metadata or {}).get(b"ARROW:extension:name") == PERIODS.encode()
            if is_period and field.name in columns:
                raise UserError(f"{chunk.file.name}: column '{field.name}' {NO_PERIODS}")
        found = row_groups(file.metadata)
        groups = [number for number, group in enumerate(found) if _begins_in(chunk, group)]
        if groups:
            size = sum(file.metadata.row_group(number).total_byte_size for number in groups)
            rows = sum(found[number].rows for number in groups) * _BATCH_BYTES // max(size, 1)
            batch_rows = max(1, min(rows, _MOST_BATCH_ROWS))
            yield from file.iter_batches(batch_rows, row_groups=groups, columns=list(columns), use_threads=False)


@dataclass(frozen=True)
class FileRowGroup:
    """Position and size of a row group in its file."""

    first_byte: int
    rows: int
    bytes: int


def row_groups(metadata: pq.FileMetaData) -> list[FileRowGroup]:
    """Return the row groups of a file, in order."""
    found = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = [group.column(i) for i in range(group.num_columns)]
        offsets = (columns[0].dictionary_page_offset, columns[0].data_page_offset)
        first_byte = min(offset for offset in offsets if offset is not None)
        found.append(FileRowGroup(first_byte, group.num_rows, sum(column.total_compressed_size for column in columns)))
    return found


def _begins_in(chunk: Chunk, group: FileRowGroup) -> bool:
    return chunk.start <= group.first_byte < (chunk.file.bytes if chunk.stop is None else chunk.stop)


def read_layout(file: InputFile) -> ParquetLayout:
    """Read the schema of a file. Raises UserError."""
    if file.packing is not None:
        raise UserError(f"{file.name}: a Parquet file inside a {file.packing} file; unpack it")
    with open_parquet(file) as opened:
        schema = flat_schema(pa.schema([field for field in opened.schema_arrow if not is_index(field.name)]))
    repeated = next((name for name in schema.names if schema.names.count(name) > 1), None)
    if repeated is not None:
        raise UserError(f"{file.name}: two columns '{repeated}'; rename one")
    return ParquetLayout(schema)
