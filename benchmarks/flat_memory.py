"""Largest memory of any one process of each kind, for growing numbers of rows: is it flat?

    python -m benchmarks.flat_memory --rows 1000000 20000000 --output benchmarks/results/flat_memory.json

Generated rows of Criteo, half of them in a packed file, go through preprocess, train (one epoch), export, predict on
raw rows and predict on the dataset, each a command in a process of its own, as a user starts it. Memory is what a
process has for itself (USS: pages of mapped files do not count), sampled every `--interval` seconds; of each kind of
process the largest one counts. Spark's executor has a heap of 1 GiB. A number of rows that is in FILE already is not
run again.
"""

import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from benchmarks.process_tree import MIB, folder_size, repeated
from benchmarks.result_rows import add_by_rows, parser_by_rows
from rayrec.common.progress import SilentProgress
from rayrec.raw.input_files import list_inputs
from rayrec.sources.criteo.generator import generate
from rayrec.sources.generated_files import GeneratorOptions
from tests.environments import environment_without_cluster

_RECIPE = "dlrm-criteo-debug"
_SETTINGS = (
    "preprocess.spark.executor_memory=1g",
    "preprocess.layout.rows_per_row_group=32768",
    "train.epochs=1",
    "train.global_batch_size=8192",
    "train.evaluations_per_epoch=1",
)
_KINDS = {"spark_python_daemon": "Python worker of Spark", "raylet": "raylet", "gcs_server": "gcs_server"}


def main() -> None:
    arguments = parser_by_rows(__doc__, rows=[1_000_000, 4_000_000], interval=0.5).parse_args()
    add_by_rows(arguments, "commands", _measure)


def _measure(folder: Path, rows: int, interval: float) -> dict[str, Any]:
    raw = folder / "raw"
    raw.mkdir()
    generate(folder / "plain", GeneratorOptions(rows // 2, seed=1), SilentProgress())
    generate(folder / "packed", GeneratorOptions(rows - rows // 2, seed=2, compress=True), SilentProgress())
    for name in ("plain", "packed"):
        for file in list_inputs([str(folder / name)]):
            Path(file.name).rename(raw / f"{name}-{Path(file.name).name}")
    settings = [part for setting in _SETTINGS for part in ("--set", setting)]
    data, run, model = (str(folder / name) for name in ("data", "run", "model"))
    commands = {
        "preprocess": ["preprocess", _RECIPE, *settings, "--input", str(raw), "--output", data],
        "train": ["train", _RECIPE, *settings, "--data", data, "--output", run],
        "export": ["export", run, "--output", model],
        "predict raw rows": ["predict", model, "--raw", "--input", str(raw), "--output", str(folder / "scores")],
        "predict a split": ["predict", model, "--input", data, "--split", "train", "--output", str(folder / "split")],
    }
    found = {name: _watched(folder, command, interval) for name, command in commands.items()}
    return {"rows": rows, "raw_mib": folder_size(raw) // MIB, "commands": found}


def _watched(folder: Path, arguments: list[str], interval: float) -> dict[str, Any]:
    environment = {**environment_without_cluster(), "SPARK_LOCAL_DIRS": str(folder / "spark")}
    largest: dict[str, int] = {}
    began = time.perf_counter()
    with (folder / "log").open("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "rayrec.cli", *arguments], stdout=log, stderr=log, env=environment
        )
        root = psutil.Process(process.pid)

        def sample() -> None:
            with suppress(psutil.Error):
                for found in (root, *root.children(recursive=True)):
                    with suppress(psutil.Error):
                        kind = "command" if found == root else _kind(found, root)
                        largest[kind] = max(largest.get(kind, 0), found.memory_full_info().uss)

        with repeated(sample, interval):
            code = process.wait()
        if code:
            log.seek(0)
            raise SystemExit(log.read())
    sizes = {kind: size // MIB for kind, size in sorted(largest.items(), key=lambda entry: -entry[1])}
    return {"seconds": round(time.perf_counter() - began, 1), "largest_mib": sizes}


def _kind(process: psutil.Process, root: psutil.Process) -> str:
    line = " ".join(process.cmdline())
    if process.name() == "java":
        return "JVM of the command" if process.ppid() == root.pid else "JVM of Spark on Ray"
    if found := re.match(r"ray::(\w+)", line):
        return f"ray::{found[1]}"
    return next((kind for part, kind in _KINDS.items() if part in line), "other processes of Ray")


if __name__ == "__main__":
    main()
