"""Parquet files written by tasks that may run twice at once: a file appears whole, under its name, or not at all."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rayrec.common.files import new_file


@contextmanager
def new_parquet(path: Path, schema: pa.Schema, **options: Any) -> Iterator[pq.ParquetWriter]:
    """A writer of the file `path`, which appears when the block ends without an error.

    Its folder is made, but not the folder around that: a late task must not bring back an output that was given up.
    """
    with new_file(path) as temporary, pq.ParquetWriter(temporary, schema, **options) as writer:
        yield writer
