"""A search over a debug recipe, its driver killed half-way: is what it finds better by more than another seed changes?

    python -m benchmarks.tune_gain --output benchmarks/results/tune_gain.json [--rows 100000] [--data-seed 0] \
        [--trials 16] [--seeds 5]

Runs `rayrec tune --confirm 3` (Optuna, ASHA) on generated rows with SIGKILL for its process group, Ray included, once
half of the trials are over, then again with --resume. The default recipe and the best one are trained with the same
seeds, none of them the search's or the confirmation's, and measured on the test split, which the search never reads.
"""

import argparse
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import rayrec
from benchmarks.in_process import metrics, train
from rayrec.common.machine import Machine
from rayrec.ingest.dataset import Dataset
from rayrec.store.files import write_json
from tests.environments import environment_without_cluster
from tune.sweep_folder import TRIAL_FILE, TrialRecord

RECIPE = "dlrm-criteo-debug"
FIRST_SEED = 1_000
# More held-out rows than the recipe's, as trials are chosen and compared by them.
SPLIT = {"preprocess.split.validation": 0.2, "preprocess.split.test": 0.2}
CONFIRMED = 3
EVALUATIONS = 2
"""Of an epoch; the best checkpoint counts, in the search as in what is compared."""
SURE = 3.0
"""Standard errors that a gain must have to be more than seeds give by chance (p < 0.01 with five seeds each, Welch)."""
NOTED_AFTER = 3
"""Seconds in which Ray Tune notes that a trial is over."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--data-seed", type=int, default=0, help="other generated rows")
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    machine = Machine()
    with tempfile.TemporaryDirectory(prefix="rayrec-tune-") as temporary:
        report = measure(Path(temporary), options.rows, options.data_seed, options.trials, options.seeds)
    write_json(options.output, {"machine": machine.described(), **report})
    print(json.dumps({name: value for name, value in report.items() if name != "trials"}, indent=2))
    is_shown = report["gain"] > SURE * report["standard_error_of_the_gain"] and report["untouched_by_the_kill"]
    sys.exit(0 if is_shown else 1)


def measure(folder: Path, rows: int, data_seed: int, trials: int, seeds: int) -> dict[str, Any]:
    raw, data, sweep = folder / "raw", folder / "dataset", folder / "sweep"
    reachable = rayrec.generate("criteo", rows, raw, seed=data_seed).details["truth"]["best_auc"]
    rayrec.preprocess(RECIPE, str(raw / "criteo.tsv"), data, set=SPLIT)
    command = [
        *(sys.executable, "-m", "jobs.tune", RECIPE, "--data", str(data), "--output", str(sweep)),
        *("--trials", str(trials), "--scheduler", "asha", "--confirm", str(CONFIRMED), "--workers", "1", "--json"),
        *(word for key, value in SPLIT.items() for word in ("--set", f"{key}={value}")),
        *("--set", f"train.evaluations_per_epoch={EVALUATIONS}", "--set", "train.ingest.in_memory=true"),
    ]
    started = time.perf_counter()
    before = run_until_half_is_over(command, sweep, trials, folder / "log")
    killed_after = time.perf_counter() - started
    print(f"killed after {killed_after:.0f} s with {len(before)} trials over", file=sys.stderr, flush=True)
    started = time.perf_counter()
    resumed = subprocess.run(
        [*command, "--resume"], env=environment_without_cluster(), stdout=subprocess.PIPE, check=True
    )
    result = json.loads(resumed.stdout)
    drawn = range(FIRST_SEED, FIRST_SEED + seeds)
    aucs = {
        name: [test_auc(recipe, seed, data, folder / f"{name}-{seed}") for seed in drawn]
        for name, recipe in {"default": RECIPE, "tuned": str(sweep / "best.yaml")}.items()
    }
    return {
        "recipe": RECIPE,
        "rows": rows,
        "data_seed": data_seed,
        "reachable_auc": reachable,
        "killed_after_seconds": round(killed_after, 1),
        "over_at_the_kill": len(before),
        "untouched_by_the_kill": all(times(sweep)[trial] == moment for trial, moment in before.items()),
        "seconds_after_the_kill": round(time.perf_counter() - started, 1),
        "test_auc_by_seed": aucs,
        "mean_test_auc": {name: statistics.mean(values) for name, values in aucs.items()},
        "deviation": {name: statistics.stdev(values) for name, values in aucs.items()},
        "gain": statistics.mean(aucs["tuned"]) - statistics.mean(aucs["default"]),
        "standard_error_of_the_gain": math.sqrt(sum(statistics.variance(values) / seeds for values in aucs.values())),
        "confirmed": result["details"]["confirmed"],
        "trials": result["details"]["trials"],
    }


def test_auc(recipe: str, seed: int, data: Path, run: Path) -> float:
    """Train a recipe with another seed."""
    settings = {
        "train.seed": seed,
        "train.workers": 1,
        "train.ingest.in_memory": True,
        "train.evaluations_per_epoch": EVALUATIONS,
    }
    return metrics(train(rayrec.load_recipe(recipe, settings), Dataset.open(data), run), "test")["auc"]


def run_until_half_is_over(command: list[str], sweep: Path, trials: int, log: Path) -> dict[str, int]:
    """Start the sweep and kill it; when the records of the trials that were over were written, by trial."""
    with log.open("wb") as out:
        driver = subprocess.Popen(
            command, env=environment_without_cluster(), stdout=out, stderr=out, start_new_session=True
        )
        while len(over := times(sweep)) < trials // 2:
            if driver.poll() is not None:
                raise RuntimeError(f"ended before half of its trials were over:\n{log.read_text()}")
            time.sleep(0.5)
        time.sleep(NOTED_AFTER)
        over = times(sweep)
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    return over


def times(sweep: Path) -> dict[str, int]:
    """When each trial that is over was, in nanoseconds, by trial."""
    folders = [path for path in sweep.glob("trials/*") if (path / TRIAL_FILE).exists()]
    over = [path for path in folders if (record := TrialRecord.load(path)) is not None and record.state != "running"]
    return {path.name: (path / TRIAL_FILE).stat().st_mtime_ns for path in over}


if __name__ == "__main__":
    main()
