"""Elastic training on a cluster that loses a node and gets one: is the result that of an undisturbed run?

    python -m benchmarks.elastic --output benchmarks/results/elastic.json [--rows 100000]

Ray nodes of one CPU on this machine. `rayrec train --workers 1:2` begins on two of them; one is killed with all that
runs on it, so training goes on with one worker; another one joins, and training takes it at Ray Train's next look (once
a minute). The undisturbed run has two workers from its start to its end.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

import rayrec
from rayrec.common.files import write_json
from rayrec.training.history import read_history
from tests.ray_head import ray_head, ray_nodes

RECIPE = "dlrm-criteo-debug"
EPOCHS = 40
"""Enough that training still goes on when the node that joins is looked for."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rayrec-elastic-") as temporary:
        report = measure(Path(temporary), options.rows, options.epochs)
    write_json(options.output, report)
    print(json.dumps(report, indent=2))
    sys.exit(0 if report["workers"] == [2, 1, 2] and report["largest_difference_of_auc"] <= 0.002 else 1)


def measure(folder: Path, rows: int, epochs: int) -> dict[str, Any]:
    rayrec.generate("criteo", rows, folder / "raw")
    rayrec.preprocess(RECIPE, str(folder / "raw" / "criteo.tsv"), folder / "dataset")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_A")}
    environment["RAY_AUTH_MODE"] = "disabled"
    with ExitStack() as stack:
        head = stack.enter_context(ray_head(environment, num_cpus=0))
        nodes = stack.enter_context(ray_nodes(head, environment, 2))
        environment["RAY_ADDRESS"] = head.address
        train(folder, "undisturbed", "2", epochs, environment).wait()
        process = train(folder, "elastic", "1:2", epochs, environment)
        wait_for_workers(folder / "elastic", [2], process, steps=20)
        kill(nodes[-1])
        wait_for_workers(folder / "elastic", [2, 1], process, steps=20)
        stack.enter_context(ray_nodes(head, environment, 1))
        if process.wait() != 0:
            raise RuntimeError("training failed")
    curves = {name: evaluations(folder / name) for name in ("undisturbed", "elastic")}
    same_steps = sorted(curves["undisturbed"].keys() & curves["elastic"].keys())
    return {
        "recipe": RECIPE,
        "rows": rows,
        "epochs": epochs,
        "workers": workers(folder / "elastic"),
        "evaluations": len(same_steps),
        "largest_difference_of_auc": max(abs(curves["undisturbed"][s] - curves["elastic"][s]) for s in same_steps),
        "final_auc": {name: curve[same_steps[-1]] for name, curve in curves.items()},
    }


def train(folder: Path, name: str, workers: str, epochs: int, environment: dict[str, str]) -> "subprocess.Popen[bytes]":
    command = [
        *(sys.executable, "-m", "jobs.train", "--recipe", RECIPE, "--data", str(folder / "dataset")),
        *("--output", str(folder / name), "--workers", workers, "--set", f"train.epochs={epochs}"),
        *("--set", "train.checkpoint.every_steps=50", "--set", "train.dense_optimizer.lr=0.0002"),
        *("--set", "train.embedding_optimizer.lr=0.005"),  # many epochs: slow enough not to overfit at once
    ]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)


def workers(run: Path) -> list[int]:
    """The numbers of workers that the run has had, one after the other."""
    counts: list[int] = []
    for record in read_history(run / "history.jsonl"):
        if record["event"] == "epoch" and counts[-1:] != [record["workers"]]:
            counts.append(record["workers"])
    return counts


def evaluations(run: Path) -> dict[int, float]:
    """AUC of the validation split by step."""
    return {r["step"]: r["auc"] for r in read_history(run / "history.jsonl") if r["event"] == "evaluate"}


def wait_for_workers(run: Path, wanted: list[int], process: "subprocess.Popen[bytes]", steps: int) -> None:
    """Until the run has had these numbers of workers, and has made so many steps with the last one."""
    while True:
        records = list(read_history(run / "history.jsonl"))
        starts = [r["step"] for r in records if r["event"] == "epoch" and r["workers"] == wanted[-1]]
        if workers(run) == wanted and records[-1]["step"] >= starts[0] + steps:
            return
        if process.poll() is not None:
            raise RuntimeError(f"training ended with {workers(run)} workers instead of {wanted}")
        time.sleep(0.5)


def kill(node: int) -> None:
    """End a node and all that runs on it at once."""
    for process in [*psutil.Process(node).children(recursive=True), psutil.Process(node)]:
        process.kill()


if __name__ == "__main__":
    main()
