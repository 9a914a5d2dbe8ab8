"""Seconds that a user waits for small work, with two checkouts of rayrec in turn.

    python -m benchmarks.start_up --before CHECKOUT --output benchmarks/results/start_up.json [--rounds 5]

The demo's data (100,000 generated rows, `dlrm-criteo-debug`) is made once; then each checkout runs its own `rayrec
preprocess`, `train` (with one worker and with two), `evaluate`, `export`, `predict` and `serve`, each as a user does
without a cluster, and the other checkout does the same, round after round. CHECKOUT needs an environment in `.venv`,
as `make setup` makes it. The file has the seconds of every round, and the medians.
"""

import argparse
import shutil
import signal
import statistics
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rayrec.common.machine import Machine, free_port
from rayrec.store.files import write_json
from tests.environments import environment_of_a_user

REPOSITORY = Path(__file__).resolve().parents[1]
RECIPE, ROWS = "dlrm-criteo-debug", 100_000


def measure(checkout: Path, folder: Path) -> dict[str, float]:
    """Return the seconds of each command of a checkout; `folder` has the raw file and is given its outputs, anew."""
    program, seconds = checkout / ".venv" / "bin" / "rayrec", {}
    for name in ("dataset", "run", "one-worker", "model", "scores"):
        shutil.rmtree(folder / name, ignore_errors=True)

    def run(*arguments: str, name: str | None = None, until: Callable[[], bool] | None = None) -> None:
        name, began = name or arguments[0], time.monotonic()
        with _started(program, *arguments, folder=folder) as process:
            if until is not None:
                while not until():
                    assert process.poll() is None, f"{checkout}: rayrec {name} ended too early"
                    time.sleep(0.02)
                seconds[name if name == "serve" else f"{name}: first record"] = time.monotonic() - began
                if name == "serve":
                    process.send_signal(signal.SIGINT)
            code = process.wait()
        assert code in {0, 130}, f"{checkout}: rayrec {name} ended with {code}"
        seconds.setdefault(name, time.monotonic() - began)

    def train(run_folder: str, workers: int) -> None:
        def has_record() -> bool:
            history = folder / run_folder / "history.jsonl"
            return history.exists() and '"event": "train"' in history.read_text()

        arguments = ("train", RECIPE, "--data", "dataset", "--output", run_folder, "--workers", str(workers))
        run(*arguments, name=f"train, workers {workers}", until=has_record)

    port = free_port()

    def is_ready() -> bool:
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=1).status == 200
        except OSError:
            return False

    run("preprocess", RECIPE, "--input", "raw/criteo.tsv", "--output", "dataset")
    train("one-worker", 1)
    train("run", 2)
    run("evaluate", "run", "--data", "dataset")
    run("export", "run", "--output", "model")
    run("predict", "model", "--input", "dataset", "--output", "scores")
    run("serve", "model", "--port", str(port), until=is_ready)
    return {name: round(value, 2) for name, value in seconds.items()}


def _started(program: Path, *arguments: str, folder: Path) -> "subprocess.Popen[bytes]":
    silent = subprocess.DEVNULL
    return subprocess.Popen(
        [program, *arguments], cwd=folder, env=environment_of_a_user(), stdout=silent, stderr=silent
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="the other checkout")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    machine = Machine()
    # A shell that starts this in the background has all of its processes ignore Ctrl-C, which ends the server.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    checkouts = {"before": options.before.resolve(), "after": REPOSITORY}
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
    with tempfile.TemporaryDirectory(prefix="rayrec-start-up-") as folder:
        arguments = ("generate", "criteo", "--rows", str(ROWS), "--output", "raw")
        with _started(REPOSITORY / ".venv" / "bin" / "rayrec", *arguments, folder=Path(folder)) as generate:
            assert generate.wait() == 0
        for number in range(options.rounds):
            for name, checkout in checkouts.items():
                rounds[name].append(measure(checkout, Path(folder)))
                print(number + 1, name, rounds[name][-1], flush=True)
            write_json(options.output, {"machine": machine.described(), **_report(checkouts, rounds)})


def _report(checkouts: dict[str, Path], rounds: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    def commit(checkout: Path) -> str:
        return subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=checkout, capture_output=True, text=True, check=True
        ).stdout.strip()

    medians = {
        name: {key: statistics.median(found[key] for found in of_side) for key in of_side[0]}
        for name, of_side in rounds.items()
    }
    commits = {name: commit(checkout) for name, checkout in checkouts.items()}
    return {"rows": ROWS, "commits": commits, "medians": medians, "rounds": rounds}


if __name__ == "__main__":
    main()
