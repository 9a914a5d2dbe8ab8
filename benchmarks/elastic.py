"""Elastic training on a cluster that loses a node and gets one: is the result that of an undisturbed run?

    python -m benchmarks.elastic --output benchmarks/results/elastic.json [--rows 100000] [--epochs 12]

Ray nodes of one CPU on this machine. `rayrec train --workers 1:2` begins on two of them; one is killed with all that
runs on it, so training goes on with one worker; another one joins, and training takes it at Ray Train's next look. The
undisturbed run has two workers from its start to its end, and its rows in memory, which is faster and changes nothing
else; both log the mean loss of every ten steps.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import rayrec
from cluster.local_cluster import kill_node, ray_head, ray_nodes
from rayrec.common.machine import Machine
from rayrec.store.files import write_json
from rayrec.training.run.history import read_history
from tests.environments import environment_of_open_cluster

RECIPE = "dlrm-criteo-debug"
EPOCHS = 12
"""Enough that training still goes on when the node that joins is looked for."""
INTERVAL = 10
"""Seconds between looks for it."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    options = parser.parse_args()
    machine = Machine()
    with tempfile.TemporaryDirectory(prefix="rayrec-elastic-") as temporary:
        report = measure(Path(temporary), options.rows, options.epochs)
    write_json(options.output, {"machine": machine.described(), **report})
    print(json.dumps(report, indent=2))
    held = report["loss_is_continuous"] and report["largest_difference_of_auc"] <= 0.002
    sys.exit(0 if report["workers"] == [2, 1, 2] and held else 1)


def measure(folder: Path, rows: int, epochs: int) -> dict[str, Any]:
    rayrec.generate("criteo", rows, folder / "raw")
    rayrec.preprocess(RECIPE, str(folder / "raw" / "criteo.tsv"), folder / "dataset")
    environment = environment_of_open_cluster()
    elastic, undisturbed = folder / "elastic", folder / "undisturbed"
    clock = Clock()
    with ExitStack() as stack:
        head = stack.enter_context(ray_head(environment, num_cpus=0))
        nodes = stack.enter_context(ray_nodes(head, environment, 2))
        environment["RAY_ADDRESS"] = head.address
        if train(folder, undisturbed.name, "2", epochs, environment, "train.ingest.in_memory=true").wait() != 0:
            raise RuntimeError("undisturbed training failed")
        clock.note("undisturbed")
        process = train(folder, elastic.name, "1:2", epochs, environment)
        wait_for_workers(elastic, [2], process, steps=80)
        clock.note("until training on two nodes")
        kill_node(nodes[-1])
        wait_for_workers(elastic, [2, 1], process, steps=10)
        clock.note("from the kill until training on one node")
        stack.enter_context(ray_nodes(head, environment, 1))
        clock.note("until a node has joined")
        wait_for_workers(elastic, [2, 1, 2], process, steps=10)
        clock.note("from joining until training on two nodes")
        if process.wait() != 0:
            raise RuntimeError("training failed")
        clock.note("until the end")
    return {
        "recipe": RECIPE,
        "rows": rows,
        "epochs": epochs,
        "workers": [size for _, size in sizes(elastic)],
        "seconds": clock.seconds,
        **aucs(elastic, undisturbed),
        **losses_beside(elastic, undisturbed),
    }


class Clock:
    """The seconds between things, by what ended them."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def note(self, ended: str) -> None:
        now = time.perf_counter()
        self.seconds[ended], self._last = round(now - self._last, 1), now
        print(f"{ended}: {self.seconds[ended]} s", file=sys.stderr, flush=True)


def aucs(elastic: Path, undisturbed: Path) -> dict[str, Any]:
    """AUC of the validation split after every epoch, of the test split at the end."""
    curves = {run.name: curve(run, "evaluate", "auc") for run in (elastic, undisturbed)}
    differences = differences_of(*curves.values())
    return {
        "evaluations": len(differences),
        "largest_difference_of_auc": max(differences.values()),
        "final_auc": {name: values[max(values)] for name, values in curves.items()},
        "test_auc": {
            run.name: json.loads((run / "metrics.json").read_text())["test"]["auc"] for run in (elastic, undisturbed)
        },
    }


def losses_beside(elastic: Path, undisturbed: Path) -> dict[str, Any]:
    """Return whether a change of size moves the loss by less than the next batches do anyway.

    Continuous: around each change the two runs' losses differ by less than the median of what the undisturbed run's
    loss changes from one record to the next.
    """
    ours, theirs = curve(elastic, "train", "loss"), curve(undisturbed, "train", "loss")
    differences = differences_of(ours, theirs)
    usual = [abs(after - before) for before, after in pairwise(theirs[step] for step in sorted(theirs))]
    changes: list[dict[str, Any]] = []
    for (_, before), (step, after) in pairwise(sizes(elastic)):
        around = {"before": max(s for s in ours if s <= step), "after": min(s for s in ours if s > step)}
        changes.append({
            "workers": [before, after],
            "step": step,
            "loss": {side: ours[s] for side, s in around.items()},
            "undisturbed_loss": {side: theirs[s] for side, s in around.items()},
            "largest_difference": max(differences[s] for s in around.values()),
        })  # fmt: skip
    return {
        "changes_of_size": changes,
        "change_of_undisturbed_loss_between_records": {"median": statistics.median(usual), "largest": max(usual)},
        "largest_difference_of_loss": max(differences.values()),
        "loss_is_continuous": all(c["largest_difference"] < statistics.median(usual) for c in changes),
    }


def train(
    folder: Path, name: str, workers: str, epochs: int, environment: dict[str, str], *more: str
) -> "subprocess.Popen[bytes]":
    values = [
        *(f"train.epochs={epochs}", "train.checkpoint.every_steps=50", f"train.elastic_interval_seconds={INTERVAL}"),
        # Many epochs: slow enough not to overfit at once.
        *("train.dense_optimizer.lr=0.0002", "train.embedding_optimizer.lr=0.005", *more),
    ]
    command = [
        *(sys.executable, "-m", "jobs.train", RECIPE, "--data", str(folder / "dataset")),
        *("--output", str(folder / name), "--workers", workers),
        *(word for value in values for word in ("--set", value)),
    ]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)


def sizes(run: Path) -> list[tuple[int, int]]:
    """Return the numbers of workers that the run has had, one after the other, each with the step that it began at."""
    found: list[tuple[int, int]] = []
    for record in read_history(run / "history.jsonl"):
        if record["event"] == "epoch" and (not found or found[-1][1] != record["workers"]):
            found.append((record["step"], record["workers"]))
    return found


def curve(run: Path, event: str, metric: str) -> dict[int, float]:
    """Return a metric by step."""
    return {r["step"]: r[metric] for r in read_history(run / "history.jsonl") if r["event"] == event}


def differences_of(one: dict[int, float], other: dict[int, float]) -> dict[int, float]:
    """By step; both curves have the same ones, whatever happened."""
    if one.keys() != other.keys():
        raise RuntimeError(f"steps {sorted(one.keys() ^ other.keys())} are in one run's history alone")
    return {step: abs(one[step] - other[step]) for step in one}


def wait_for_workers(run: Path, wanted: list[int], process: "subprocess.Popen[bytes]", steps: int) -> None:
    """Wait until the run has had these numbers of workers, and has made so many steps with the last one."""
    while True:
        found, records = sizes(run), list(read_history(run / "history.jsonl"))
        if [size for _, size in found] == wanted and records[-1]["step"] >= found[-1][0] + steps:
            return
        if process.poll() is not None:
            raise RuntimeError(f"training ended with {found} (step, workers) instead of {wanted}")
        time.sleep(0.5)


if __name__ == "__main__":
    main()
