"""A generated table of 60 columns of all kinds, preprocessed from CSV and from Parquet: time, memory, and every cell.

    python -m benchmarks.own_table --rows 200000 2000000 --output FILE

`tests/wide_table.py` generates the log and two side tables, a recipe has every kind of column and transform.
`rayrec preprocess` makes a dataset of the CSV files (every second one packed) and one of the Parquet files, which hold
the same rows. The datasets are compared cell by cell, and the rows of `validation`, of `test` and of the first part of
`train` with a computation in pandas (`tests/table_reference.py`). The number of files is the same for all numbers of
rows. Memory is what each kind of process has for itself (USS), sampled every `--interval` seconds, and the largest
counts; Spark's executor has a heap of 1 GiB. A number of rows that is in FILE already is not run again.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchmarks.process_tree import MIB, folder_size, sampled
from benchmarks.result_rows import add_by_rows, parser_by_rows
from rayrec.ingest.dataset import Dataset
from tests.dataset_cells import compare_datasets
from tests.table_reference import TableReference
from tests.wide_table import SOURCE, SPLIT, side_tables, write_log, write_side_tables

_FILES = 8
_FREQUENCY_LIMIT = 15
_STAGE = re.compile(r"^(.+?): ([0-9.]+) s(, |$)")
"""The last line of a stage in what a command prints."""


def main() -> None:
    arguments = parser_by_rows(__doc__, rows=[200_000, 2_000_000], interval=1.0).parse_args()
    add_by_rows(arguments, "compared_with_pandas", _measure)


def _measure(folder: Path, rows: int, interval: float) -> dict[str, Any]:
    started = time.perf_counter()
    write_log(folder, rows, _FILES)
    tables = write_side_tables(folder)
    source = {"kind": "table", "tables": side_tables(folder), **SOURCE}
    preprocess = {"split": SPLIT, "frequency_limit": _FREQUENCY_LIMIT, "spark": {"executor_memory": "1g"}}
    recipe = folder / "recipe.yaml"
    sections = {"source": source, "preprocess": preprocess, "model": {"kind": "dcnv2", "embedding_dim": 8}}
    recipe.write_text(yaml.safe_dump(sections, sort_keys=False))
    result: dict[str, Any] = {"rows": rows, "files": _FILES}
    result |= {"seconds_to_generate": round(time.perf_counter() - started, 1)}
    for form in ("csv", "parquet"):
        result[form] = _preprocess(recipe, folder, form, rows, interval)
        print(form, result[form], flush=True)
    started = time.perf_counter()
    datasets = {form: Dataset.open(_dataset(folder, form)) for form in ("csv", "parquet")}
    result["cells_equal_in_both"] = compare_datasets(*datasets.values())
    result["splits"] = {name: split.rows for name, split in datasets["csv"].manifest.splits.items()}
    result["rejected"] = {form: dataset.manifest.rejected for form, dataset in datasets.items()}
    reference = TableReference(source, SPLIT, _FREQUENCY_LIMIT, folder / "parquet", tables, datasets["csv"])
    compared = reference.compare({"train": 1})
    result["compared_with_pandas"] = {"rows": compared.rows, "cells": compared.cells, "last_bit": compared.last_bit}
    result["seconds_to_compare"] = round(time.perf_counter() - started, 1)
    return result


def _preprocess(recipe: Path, folder: Path, form: str, rows: int, interval: float) -> dict[str, Any]:
    """Run the command in a process of its own, as a user does."""
    output, shuffles = _dataset(folder, form), folder / f"spark-{form}"
    shuffles.mkdir()
    arguments = ["preprocess", str(recipe), "--input", str(folder / form), "--output", str(output)]
    environment = {**os.environ, "SPARK_LOCAL_DIRS": str(shuffles)}
    errors = folder / f"{form}.log"
    started = time.perf_counter()
    with open(errors, "w") as file:
        command = [sys.executable, "-m", "rayrec.cli", *arguments]
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
        folders = {"unfinished dataset": output.parent, "Spark's shuffles": shuffles}
        with sampled(psutil.Process(process.pid), folders, interval) as seen:
            code = process.wait()
    seconds = time.perf_counter() - started
    if code:
        raise SystemExit(errors.read_text())
    stages: dict[str, float] = {}
    for line in errors.read_text().splitlines():
        if found := _STAGE.match(line):
            stages[found[1]] = round(stages.get(found[1], 0.0) + float(found[2]), 1)
    return {
        "raw_mib": folder_size(folder / form) // MIB,
        "dataset_mib": folder_size(output) // MIB,
        "seconds": round(seconds, 1),
        "cpu_seconds": round(sum(seen.cpu_seconds.values()), 1),
        "rows_per_second": round(rows / seconds),
        "load_average_at_the_end": os.getloadavg()[0],
        "seconds_by_stage": stages,
        "largest_mib": seen.largest_mib,
    }


def _dataset(folder: Path, form: str) -> Path:
    return folder / f"from-{form}" / "dataset"


if __name__ == "__main__":
    main()
