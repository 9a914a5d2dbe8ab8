"""Counts of rows by key, in all and in each fold: how Spark adds them up, and the tables without those of folds."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from rayrec.features.keyed_table import write_file
from rayrec.preprocessing.tasks import Rows, run_tasks
from rayrec.preprocessing.threads import HeldRows
from rayrec.preprocessing.workspace import Workspace
from rayrec.storage.files import files_in, mappable

if TYPE_CHECKING:
    from pyspark.sql import Column


def count_columns(names: Sequence[str], folds: int) -> list[str]:
    """The columns of the counts `names`: of all rows, then of each fold (NAME_0, NAME_1, ...)."""
    return [*names, *(f"{name}_{fold}" for name in names for fold in range(folds))]


def added_counts(names: Sequence[str], fold: str, folds: int) -> list["Column"]:
    """The aggregates that give these columns, of lines that each count rows of one fold, which is in column `fold`."""
    from pyspark.sql import functions as f

    of_folds = [
        f.sum(f.when(f.col(fold) == number, f.col(name)).otherwise(0)).alias(f"{name}_{number}")
        for name in names
        for number in range(folds)
    ]
    return [*(f.sum(name).alias(name) for name in names), *of_folds]


def counts_by_key(rows: Rows, keys: Sequence[str], names: Sequence[str], fold: str, folds: int) -> Rows:
    """The columns `count_columns` by key, of lines that each count rows of one fold, which is in column `fold`."""
    if not isinstance(rows, HeldRows):
        return rows.groupBy(*keys).agg(*added_counts(names, fold, folds))

    def by_fold(table: pa.Table) -> pa.Table:
        for name in names:
            for number in range(folds):
                counts = pc.if_else(pc.equal(table[fold], number), table[name], 0)
                table = table.append_column(f"{name}_{number}", counts)
        return table

    return rows.whole(by_fold).summed(keys, count_columns(names, folds))


def write_totals(workspace: Workspace, by_fold: Path, folder: Path, schemas: dict[str, pa.Schema]) -> None:
    """Write the tables that are served, which have the columns of `schemas` alone, from those in `by_fold`, by name."""
    files = [(name, path) for name in schemas for path in files_in(by_fold / name, "*.arrow")]
    workspace.progress.stage("rates to serve")

    def run(item: tuple[str, Path]) -> None:
        name, path = item
        schema = schemas[name]
        with pa.memory_map(str(mappable(path))) as source, pa.ipc.open_file(source) as file:
            batches = (file.get_batch(i).select(schema.names) for i in range(file.num_record_batches))
            write_file(folder / name, schema, (batch.cast(schema) for batch in batches))

    run_tasks(workspace.workers, files, run)
