"""Parquet files written by tasks that may run twice at once: a file appears whole, under its name, or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq


@contextmanager
def new_parquet(path: Path, schema: pa.Schema, **options: Any) -> Iterator[pq.ParquetWriter]:
    """A writer of the file `path`, which appears when the block ends without an error.

    Its folder is made, but not the folder around that: a late task must not bring back an output that was given up.
    """
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with pq.ParquetWriter(temporary, schema, **options) as writer:
            yield writer
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
