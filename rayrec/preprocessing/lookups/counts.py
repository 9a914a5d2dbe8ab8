"""Counts of rows by key, in all and in each fold: the names of their columns, and the tables without those of folds."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from rayrec.features.keyed_table import write_file
from rayrec.preprocessing.workspace import Workspace
from rayrec.store.files import files_in, mappable


def count_columns(names: Sequence[str], folds: int) -> list[str]:
    """Return the columns of the counts `names`: of all rows, then of each fold (NAME_0, NAME_1, ...)."""
    return [*names, *(f"{name}_{fold}" for name in names for fold in range(folds))]


def write_totals(workspace: Workspace, by_fold: Path, folder: Path, schemas: dict[str, pa.Schema]) -> None:
    """Write the tables that are served, which have the columns of `schemas` alone, from those in `by_fold`, by name."""
    files = [(name, path) for name in schemas for path in files_in(by_fold / name, "*.arrow")]
    workspace.progress.stage("store label rates")

    def run(item: tuple[str, Path]) -> None:
        name, path = item
        schema = schemas[name]
        with pa.memory_map(str(mappable(path))) as source, pa.ipc.open_file(source) as file:
            batches = (file.get_batch(i).select(schema.names) for i in range(file.num_record_batches))
            write_file(folder / name, schema, (batch.cast(schema) for batch in batches))

    workspace.workers.run(files, run)
