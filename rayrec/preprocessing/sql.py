"""SQL within a task, always run by DuckDB: in this process, or in one of Spark's."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rayrec.common.disk_errors import naming
from rayrec.common.errors import UserError
from rayrec.common.machine import available_cpus, available_memory
from rayrec.common.text import format_bytes
from rayrec.store.paths import cache_root

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

ROWS_PER_BATCH = 32_768
"""Most rows of the batches that a query yields."""


@dataclass(frozen=True)
class SqlShare:
    """What queries of the tasks in this process may use together."""

    threads: int
    memory: int
    """Bytes; sorted, joined and grouped rows beyond that go to the disk."""
    scratch: Path
    """A folder of this node's disk."""


_SHARE: ContextVar[SqlShare | None] = ContextVar("sql_share", default=None)
set_share = _SHARE.set
"""Say what the queries of this thread may use; an engine does so for its tasks."""


def query(sql: str, schema: pa.Schema | None = None, /, **tables: Any) -> pa.RecordBatchReader:
    """Return the rows of a query over tables (Arrow's tables or readers) by their names in it.

    `schema`: what the columns of the result are named and cast to, one after the other. Only ORDER BY orders rows;
    texts are in the order of their UTF-8 bytes, null is last unless the query says otherwise, and names of columns that
    differ in case alone are one. Sums of integers are decimals unless they are cast, and those of floats depend on the
    order of rows. The query sees no files and no network.

    Raises, also where the rows are read, DiskError if those beyond the memory find no room on the disk, and UserError
    if single ones are too large for the memory.
    """
    share = _SHARE.get() or _default_share()
    connection = _database(share).cursor()
    for name, table in tables.items():
        connection.register(name, table)
    with _readable_errors(share):
        reader = connection.sql(sql).to_arrow_reader(ROWS_PER_BATCH)

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            with _readable_errors(share):
                for rows in reader:
                    yield rows if schema is None else rows.rename_columns(schema.names).cast(schema)
        finally:
            connection.close()

    return pa.RecordBatchReader.from_batches(reader.schema if schema is None else schema, batches())


@contextmanager
def _readable_errors(share: SqlShare) -> Iterator[None]:
    import duckdb

    try:
        with naming(share.scratch):
            yield
    except duckdb.OutOfMemoryException as error:
        raise UserError(
            f"values too long to sort or join in {format_bytes(share.memory)} of memory; give more memory "
            "(preprocess.spark.executor_memory where Spark does it), or shorten the longest values"
        ) from error


@lru_cache(maxsize=2)
def _database(share: SqlShare) -> "DuckDBPyConnection":
    """Return an empty database in memory: queries at once share its memory and threads, but no names."""
    import duckdb

    with naming(share.scratch):
        share.scratch.mkdir(parents=True, exist_ok=True)  # DuckDB makes one folder, and none around it
    database = duckdb.connect(
        ":memory:",
        config={
            "threads": share.threads,
            "memory_limit": f"{max(share.memory // 2**20, 128)}MiB",
            "temp_directory": str(share.scratch / "sql"),
            "preserve_insertion_order": False,
            "python_enable_replacements": False,  # the caller's variables are no tables
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        },
    )
    database.execute("set enable_external_access = false; set lock_configuration = true")
    return database


@lru_cache(maxsize=1)
def _default_share() -> SqlShare:
    return SqlShare(available_cpus(), available_memory() // 2, cache_root())
