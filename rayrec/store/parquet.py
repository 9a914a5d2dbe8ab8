"""Rows written to Parquet files that are whole or absent, in files of a bounded number of rows."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from threading import get_ident
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rayrec.store.files import new_file
from rayrec.store.objects import open_unbuffered
from rayrec.store.paths import RemotePath


def open_parquet(path: Path, dictionaries: Sequence[str] = ()) -> pq.ParquetFile:
    """Return a Parquet file, mapped if it is on a disk; otherwise a read asks for all columns of a row group at
    once.

    Those of `dictionaries` that are columns of text come dictionary encoded. Raises OSError or ArrowInvalid, and
    UserError if a bucket cannot be read.
    """
    source: Any = path
    options = {"memory_map": True}
    if isinstance(path, RemotePath):
        source, options = open_unbuffered(path), {"pre_buffer": True}
    file = pq.ParquetFile(source, **options)
    texts = [f.name for f in file.schema_arrow if f.name in dictionaries and pa.types.is_string(f.type)]
    return pq.ParquetFile(source, metadata=file.metadata, read_dictionary=texts, **options) if texts else file


def kept_parquet(path: Path, version: str) -> pq.ParquetFile:
    """Return an open Parquet file, kept for the next reads of this thread, as it serves one reader at a time.

    It is opened again if `version` is another one, or on a disk its size or time of change. Raises as `open_parquet`.

    The footer describes every column of every row group, so parsing it costs as much as reading a row group.
    """
    state = None if isinstance(path, RemotePath) else (path.stat().st_size, path.stat().st_mtime_ns)
    return _kept(path, version, state, get_ident())


@lru_cache(maxsize=64)
def _kept(path: Path, version: str, state: tuple[int, int] | None, thread: int) -> pq.ParquetFile:
    return open_parquet(path)


@dataclass(frozen=True)
class WrittenFile:
    """A file and the number of its rows."""

    path: Path
    rows: int


@contextmanager
def new_parquet(path: Path, schema: pa.Schema, **options: Any) -> Iterator[pq.ParquetWriter]:
    """Yield a writer of the file `path`, which appears whole when the block ends without an error, even if a task runs
    twice.

    The folder of the file is made, but not the one around it: a late task must not bring back an abandoned output.
    """
    with new_file(path) as temporary, pq.ParquetWriter(temporary, schema, **options) as writer:
        yield writer


@contextmanager
def new_parquet_files(
    path: Path, schema: pa.Schema, most_rows: int, **options: Any
) -> Iterator[tuple[Callable[[pa.RecordBatch], None], list[WrittenFile]]]:
    """Yield a function that writes rows to the files PATH-00000.parquet, ..., and the list of the files that it began.

    Each file has `most_rows` rows but for the last one, and without rows there is no file. So no file, however many
    rows come, has a footer that takes longer to parse than a part of the rows takes to read.
    """
    files: list[WrittenFile] = []
    with ExitStack() as stack:
        writer: pq.ParquetWriter

        def write(batch: pa.RecordBatch) -> None:
            nonlocal writer
            while batch.num_rows:
                if not files or files[-1].rows == most_rows:
                    stack.close()
                    files.append(WrittenFile(path.with_name(f"{path.name}-{len(files):05d}.parquet"), 0))
                    writer = stack.enter_context(new_parquet(files[-1].path, schema, **options))
                fitting = batch.slice(0, most_rows - files[-1].rows)
                writer.write_batch(fitting)
                files[-1] = replace(files[-1], rows=files[-1].rows + fitting.num_rows)
                batch = batch.slice(fitting.num_rows)

        yield write, files
