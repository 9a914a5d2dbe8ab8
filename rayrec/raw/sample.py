"""A sample of the rows of a table's files, spread over all of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from rayrec.config.table import FileFormat
from rayrec.raw.files import InputFile


@dataclass(frozen=True)
class Sample:
    """Some rows of a table, as the files hold them, in the order of the input."""

    rows: pa.Table
    """All columns: text of delimited files, otherwise with types; text if values differ in type."""
    bytes_read: int
    total_rows: int
    """Rows of all files, estimated unless `is_whole`."""
    is_whole: bool
    """Whether every row was read, though perhaps not kept."""


def sample_rows(files: Sequence[InputFile], table_format: FileFormat, rows: int, seed: int) -> Sample:
    """At most `rows` rows, drawn from the whole of small files, otherwise from places at equal distances.

    Of a large packed file, which cannot be entered midway, only the beginning is read. Lines that are no row are left
    out. Memory grows with `rows` alone. Raises UserError as `rayrec.raw.table.open_table`.
    """
    raise NotImplementedError
