"""Training on a CPU alone, beside busy neighbours and on one CPU: rayrec, another checkout of it, plain torch.

    python -m benchmarks.neighbours --output benchmarks/results/neighbours.json [--rounds 3] [--before CHECKOUT]
        [--seconds 2] [--only NAME ...]

Workloads: the recipe that `rayrec inspect` writes for a table of 100,000 rows and 31 columns, its batch as written; and
DLRM as in `benchmarks.cpu_training`, float32, at batches of 512 and 8,192. Sides: `rayrec train`, one worker, of this
checkout and of CHECKOUT (with the Python of its `.venv`, if it has one, else with this one); the same networks in plain
torch with its own choice of threads; and DLRM with FBGEMM's tables by hand. Conditions: those of
`benchmarks.conditions`.

A side trains until it has been measured, without evaluations and checkpoints: one process alone, then beside the
neighbours as they come and go, another one on one CPU from its start on. Its first steps count for the loss alone. A
condition is measured for `--seconds` at least, from the first record that began under it on: samples/s over all
records. Losses are those of every so many steps, the same for all runs: rayrec's have to be equal under all conditions;
plain torch has other weights at the start, and its batches in the order of the files. Each round runs everything once,
in an order that turns with the rounds; a program that is started again adds what is missing.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pyarrow import csv

from benchmarks import cpu_training
from benchmarks.conditions import ALONE, NEIGHBOURS, ONE_CPU, neighbours, one_cpu
from benchmarks.mixed_table import LABEL, mixed_table
from benchmarks.result_rows import ResultRows
from jobs.command.result import text_table
from rayrec.features.schema import Schema
from rayrec.models.wide_deep.config import WideDeepConfig
from rayrec.recipes import load_recipe
from rayrec.training.run.folder import HISTORY_FILE
from rayrec.training.run.history import read_history
from tests.environments import environment_without_cluster

HERE = Path(__file__).resolve().parents[1]
TABLE_ROWS = 100_000
_SETTINGS = {
    "workers": 1,
    "device": "cpu",
    "epochs": 1_000_000,  # it is ended from outside
    "evaluations_per_epoch": 0,
    "checkpoint": "{keep_best: null, every_minutes: null}",
    "tracking": "{tensorboard: false}",
}
_ENOUGH, _PATIENCE = 3, 4
"""With fewer records than enough, the measurement goes on for so many times `--seconds`, and at least to the first."""
_LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class Workload:
    """The same training for all sides."""

    name: str
    recipe: Path
    dataset: Path
    window: int
    """Steps of a record."""
    first_steps: int
    """Before the first condition is measured; also, losses are kept of every so many steps."""
    programs: dict[str, str]
    """What has to be run of `benchmarks/peers/programs`, by side."""
    arguments: dict[str, Any]
    """Of the programs."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement, at least")
    parser.add_argument("--before", type=Path, help="another checkout of rayrec")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="of a workload, a side and a condition")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    checkouts = {"rayrec": HERE} | ({"rayrec before": options.before.resolve()} if options.before else {})
    keys = ("workload", "condition", "side", "round")
    results = ResultRows(options.output, keys, (*keys, "samples_per_second", "loss"))
    with tempfile.TemporaryDirectory(prefix="rayrec-neighbours-") as name:
        folder = Path(name)
        runs = [
            (workload, side, conditions)
            for workload in (_inspected(folder / "inspected", options.before or HERE), *_dlrm(folder / "dlrm"))
            for conditions in (NEIGHBOURS, (ONE_CPU,))
            for side in (*checkouts, *workload.programs)
            if any({workload.name, side, condition}.issuperset(options.only) for condition in conditions)
        ]
        for number in range(options.rounds):
            turned = number * len(runs) // options.rounds
            for workload, side, conditions in runs[turned:] + runs[:turned]:
                key = {"workload": workload.name, "side": side, "round": number}
                if not all(results.has(**key, condition=condition) for condition in conditions):
                    with tempfile.TemporaryDirectory(dir=folder) as empty:
                        run = Path(empty) / "run"
                        found = _measure(workload, side, checkouts.get(side), conditions, run, options.seconds)
                    for condition, measured in found.items():
                        results.add({**key, "condition": condition, **measured})
    print(text_table(_summary(results.read())))


def _inspected(folder: Path, oldest: Path) -> Workload:
    """Write the table, its recipe and its dataset; `oldest` preprocesses, as others read what it writes."""
    folder.mkdir()
    table, recipe, dataset = folder / "table.csv", folder / "recipe.yaml", folder / "dataset"
    csv.write_csv(mixed_table(TABLE_ROWS), table)
    for words in (
        ["inspect", table, "--label", LABEL, "--output", recipe],
        ["preprocess", recipe, "--input", table, "--output", dataset],
    ):
        environment = {**environment_without_cluster(), "PYTHONPATH": str(oldest)}
        subprocess.run(
            _python(oldest, "rayrec.cli", *words), cwd=oldest, env=environment, check=True, capture_output=True
        )
    written = load_recipe(recipe)
    schema, model, train = Schema.load(dataset), written.model, written.train
    assert isinstance(model, WideDeepConfig)
    arguments = {
        "rows_of_tables": [feature.cardinality for feature in schema.categorical],
        "dim": model.embedding_dim,
        "mlp": list(model.mlp),
        "dropout": model.dropout,
        "lr_embeddings": train.embedding_optimizer.lr,
        "lr_dense": train.dense_optimizer.lr,
        "l2": train.embedding_l2,
        "batch": train.global_batch_size,
    }
    return Workload("recipe of inspect", recipe, dataset, 10, 100, {"plain torch": "torch_wide_deep"}, arguments)


def _dlrm(folder: Path) -> Iterator[Workload]:
    dataset = cpu_training.write_dataset(folder / "dataset").folder
    for batch, window, first_steps in ((512, 4, 40), (8192, 1, 6)):
        recipe = folder / f"{batch}.yaml"
        recipe.write_text(yaml.safe_dump(cpu_training.dlrm_recipe(batch, {"precision": "fp32"})))
        arguments = {
            "rows_of_table": cpu_training.ROWS,
            "dim": cpu_training.DIM,
            "bottom_mlp": cpu_training.BOTTOM,
            "top_mlp": cpu_training.TOP,
            "lr": cpu_training.LEARNING_RATE,
            "batch": batch,
        }
        programs = {"plain torch": "torch_dlrm", "FBGEMM by hand": "tbe_dlrm"}
        yield Workload(f"DLRM, batches of {batch}", recipe, dataset, window, first_steps, programs, arguments)


def _measure(
    workload: Workload,
    side: str,
    checkout: Path | None,
    conditions: Sequence[str],
    folder: Path,
    seconds: float,
) -> dict[str, dict[str, Any]]:
    """Train in a new folder until each condition is measured; `checkout` is None for a peer's program."""
    history = folder / HISTORY_FILE
    if checkout is None:
        folder.mkdir()
        parts = [str(path) for path in sorted((workload.dataset / "train").glob("*.parquet"))]
        arguments = {**workload.arguments, "parts": parts, "history": str(history), "window": workload.window}
        endless = "benchmarks.peers.programs.endless"
        command = _python(HERE, endless, workload.programs[side], json.dumps(arguments))
    else:
        settings = [f"--set=train.{name}={value}" for name, value in _SETTINGS.items()]
        settings.append(f"--set=train.log_every_steps={workload.window}")
        files = [workload.recipe, "--data", workload.dataset, "--output", folder]
        command = _python(checkout, "rayrec.cli", "train", *files, *settings)
    environment = {**environment_without_cluster(), "PYTHONPATH": str(checkout or HERE)}
    log = folder.with_suffix(".log")
    results = {}
    with log.open("wb") as said, one_cpu() if ONE_CPU in conditions else nullcontext():
        process = subprocess.Popen(command, cwd=checkout or HERE, env=environment, stdout=said, stderr=said)
        try:
            records = _records(process, history, log, lambda found: found[-1]["step"] >= workload.first_steps)
            for condition in conditions:
                known, woken = len(records), time.perf_counter()

                def are_enough(found: list[dict[str, Any]], known: int = known, woken: float = woken) -> bool:
                    count, took = len(found) - known - 1, time.perf_counter() - woken
                    return count >= 1 and took >= seconds * (1 if count >= _ENOUGH else _PATIENCE)

                with neighbours(ALONE if condition == ONE_CPU else condition):
                    records = _records(process, history, log, are_enough)
                results[condition] = _measured(workload, records, known + 1)
        finally:
            process.terminate()
            process.wait()
    return results


def _measured(workload: Workload, records: list[dict[str, Any]], first: int) -> dict[str, Any]:
    """Return the speed by the records from the `first` on, and the losses so far."""
    steps, seconds = 0, 0.0
    for before, record in itertools.pairwise(records[first - 1 :]):
        count = record["step"] - before["step"]
        steps += count
        seconds += count * workload.arguments["batch"] / record["samples_per_second"]
    losses = {record["step"]: record["loss"] for record in records if record["step"] % workload.first_steps == 0}
    return {
        "samples_per_second": round(steps * workload.arguments["batch"] / seconds, 1),
        "steps": steps,
        "seconds": round(seconds, 2),
        "loss": losses[workload.first_steps],
        "losses": losses,
    }


def _records(
    process: "subprocess.Popen[bytes]", history: Path, log: Path, are_enough: Callable[[list[dict[str, Any]]], bool]
) -> list[dict[str, Any]]:
    """Return the records of steps so far, once they are enough."""
    while True:
        found = [record for record in read_history(history) if record["event"] == "train"]
        if found and are_enough(found):
            return found
        if process.poll() is not None:
            raise RuntimeError(f"the training ended with {process.returncode}:\n{log.read_text()[-3000:]}")
        time.sleep(_LOOK_SECONDS)


def _python(checkout: Path, module: str, *words: object) -> list[str]:
    own = checkout / ".venv" / "bin" / "python"
    return [str(own) if own.exists() else sys.executable, "-m", module, *map(str, words)]


def _summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return thousand samples/s, median (least to most) over rounds; how far losses are from those of the first run."""
    runs: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        runs.setdefault((row["workload"], row["condition"], row["side"]), []).append(row)
    table = []
    for (workload, condition, side), found in sorted(runs.items(), key=lambda run: run[0][0]):
        speeds = [row["samples_per_second"] / 1000 for row in found]
        middle = statistics.median(speeds)
        alone = [row["samples_per_second"] / 1000 for row in runs.get((workload, ALONE, side), [])]
        expected = next(row for row in rows if row["workload"] == workload)["losses"]
        apart = (
            abs(loss - expected[step]) for row in found for step, loss in row["losses"].items() if step in expected
        )
        table.append({
            "workload": workload,
            "condition": condition,
            "side": side,
            "rounds": len(found),
            "thousand samples/s": f"{middle:.2f} ({min(speeds):.2f}-{max(speeds):.2f})",
            "of alone": round(middle / statistics.median(alone), 2) if alone else None,
            "loss": round(found[0]["loss"], 5),
            "losses apart": f"{max(apart):.1e}",
        })  # fmt: skip
    return table


if __name__ == "__main__":
    main()
