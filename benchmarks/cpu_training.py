"""Training of DLRM on a CPU beside facebookresearch/dlrm and another checkout of rayrec, in turns.

    python -m benchmarks.cpu_training --output benchmarks/results/cpu_training.json [--rounds 5]
        [--dlrm CHECKOUT] [--before CHECKOUT] [--only SIDE ...]

The model is that of both repositories: 13 numbers, 26 tables of 100,000 rows and 64 columns, one id each, uniformly
drawn; layers 512, 256, 64 below the dot interaction and 512, 256, 1 above it; batches of 8,192 rows, SGD, float32 (and
bfloat16, which only rayrec has). rayrec trains by its own command line, so inside Ray Train and streaming from Parquet:
on one worker, which has all cores, and on two. A side's figure is the median over the windows of `--window` steps
after the first one; facebookresearch/dlrm prints the time of a step itself, without that of making its batches.

Each round runs every side once, in an order that turns with the rounds, and is written down at once; a program that is
started again adds the rounds that are missing. CHECKOUT of rayrec needs an environment in `.venv`; that of
facebookresearch/dlrm runs in this environment.
"""

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import yaml

from benchmarks.result_rows import ResultRows
from jobs.command.result import text_table
from rayrec.ingest.dataset import Dataset, DatasetManifest, SplitInfo
from rayrec.recipes import load_recipe
from rayrec.training.run.folder import HISTORY_FILE
from rayrec.training.run.history import read_history
from tests.builders import make_schema, write_part

BATCH, ROWS, DIM, NUMERIC, TABLES = 8192, 100_000, 64, 13, 26
BOTTOM, TOP = (512, 256, DIM), (512, 512, 256)
LEARNING_RATE = 0.1
STEPS_AN_EPOCH = 40
Side = Callable[[Path], list[float]]
"""Measures in an empty folder: samples/s of each window, the first one included."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--window", type=int, default=10, help="steps")
    parser.add_argument("--windows", type=int, default=6, help="of each side and round, the first one included")
    parser.add_argument("--dlrm", type=Path, help="a checkout of facebookresearch/dlrm")
    parser.add_argument("--before", type=Path, help="another checkout of rayrec")
    parser.add_argument("--only", nargs="*", help="sides")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    results = ResultRows(arguments.output, ("round", "side"), ("round", "side", "samples_per_second"))
    with tempfile.TemporaryDirectory(prefix="rayrec-cpu-training-") as name:
        folder = Path(name)
        sides = _sides(arguments, write_dataset(folder / "dataset"))
        for number in range(arguments.rounds):
            names = [side for side in sides if arguments.only is None or side in arguments.only]
            turned = number % len(names)
            for side in names[turned:] + names[:turned]:
                if not results.has(round=number, side=side):
                    with tempfile.TemporaryDirectory(dir=folder) as empty:
                        windows = sides[side](Path(empty))
                    speed = statistics.median(windows[1:])
                    results.add({"round": number, "side": side, "samples_per_second": speed, "windows": windows})
    print(text_table(_summary(results.read())))


def _sides(arguments: argparse.Namespace, dataset: Dataset) -> dict[str, Side]:
    here = Path(__file__).parents[1]
    lengths = arguments.window, arguments.windows
    sides: dict[str, Side] = {}
    if arguments.dlrm is not None:
        sides["facebookresearch/dlrm"] = partial(_dlrm, arguments.dlrm.absolute(), *lengths)
    for name, checkout in (("rayrec", here), ("rayrec before", arguments.before)):
        if checkout is not None:
            for precision in ("fp32", "bf16"):
                for workers in (1, 2):
                    label = f"{name}, {precision}, {workers} worker{'s' * (workers > 1)}"
                    sides[label] = partial(_rayrec, checkout.absolute(), dataset, precision, workers, *lengths)
    return sides


def _rayrec(
    checkout: Path, dataset: Dataset, precision: str, workers: int, window: int, windows: int, folder: Path
) -> list[float]:
    steps = window * windows
    train = {
        "epochs": -(-steps // STEPS_AN_EPOCH),
        "max_steps": steps,
        "workers": workers,
        "precision": precision,
        "log_every_steps": window,
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(dlrm_recipe(BATCH, train)))
    files = [str(folder / "recipe.yaml"), "--data", str(dataset.folder), "--output", str(folder / "run")]
    subprocess.run(
        [checkout / ".venv" / "bin" / "python", "-m", "rayrec.cli", "train", *files],
        cwd=checkout,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    records = read_history(folder / "run" / HISTORY_FILE)
    return [record["samples_per_second"] for record in records if record["event"] == "train"]


def _dlrm(checkout: Path, window: int, windows: int, folder: Path) -> list[float]:
    printed = subprocess.run(
        [
            sys.executable,
            "dlrm_s_pytorch.py",
            f"--arch-embedding-size={'-'.join([str(ROWS)] * TABLES)}",
            f"--arch-sparse-feature-size={DIM}",
            f"--arch-mlp-bot={'-'.join(map(str, (NUMERIC, *BOTTOM)))}",
            f"--arch-mlp-top={'-'.join(map(str, (*TOP, 1)))}",
            "--data-generation=random",
            "--num-indices-per-lookup=1",
            "--num-indices-per-lookup-fixed=True",
            f"--mini-batch-size={BATCH}",
            f"--num-batches={window * windows}",
            "--loss-function=bce",
            f"--learning-rate={LEARNING_RATE}",
            f"--print-freq={window}",
            "--print-time",
        ],
        cwd=checkout,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [1000 * BATCH / float(milliseconds) for milliseconds in re.findall(r"([\d.]+) ms/it", printed)]


def dlrm_recipe(batch: int, train: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe for the model of `write_dataset`'s rows, which trains on a CPU by SGD and does nothing
    besides.
    """
    sgd = {"kind": "sgd", "lr": LEARNING_RATE}
    own = {
        "global_batch_size": batch,
        "device": "cpu",
        "embedding_optimizer": sgd,
        "dense_optimizer": sgd,
        "evaluations_per_epoch": 0,
        "tracking": {"tensorboard": False},
    }
    return {
        "name": "cpu-training",
        "source": {"kind": "criteo"},
        "preprocess": {"split": {"kind": "hash"}},
        "model": {
            "kind": "dlrm",
            "embedding_dim": DIM,
            "bottom_mlp": list(BOTTOM),
            "top_mlp": list(TOP),
            "interaction": "dot",
        },
        "train": {**own, **train},
    }


def write_dataset(folder: Path) -> Dataset:
    """Write rows whose values and labels are drawn at random, `STEPS_AN_EPOCH` batches of `BATCH`."""
    schema = make_schema(NUMERIC, TABLES, cardinalities=(ROWS,))
    rng = np.random.default_rng(0)
    rows = BATCH * STEPS_AN_EPOCH
    columns: dict[str, pa.Array] = {f.name: pa.array(rng.random(rows, dtype=np.float32)) for f in schema.numeric}
    columns |= {f.name: pa.array(rng.integers(0, ROWS, rows, dtype=np.int32)) for f in schema.categorical}
    columns[schema.label] = pa.array(rng.integers(0, 2, rows).astype(np.float32))
    part = write_part(folder, "train/part-00000.parquet", pa.table(columns), 8192)
    schema.save(folder)
    split = SplitInfo(rows=rows, positives=float(columns[schema.label].to_numpy().sum()), parts=(part,))
    config = load_recipe("dlrm-criteo").model_dump(mode="json", exclude_unset=True)
    DatasetManifest(splits={"train": split}, rejected={}, sources=(), config=config).save(folder)
    return Dataset.open(folder)


def _summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each side's median over rounds, and the median over rounds of its ratio to the first side."""
    by_side: dict[str, dict[int, float]] = {}
    for row in rows:
        by_side.setdefault(row["side"], {})[row["round"]] = row["samples_per_second"]
    base = by_side.get("facebookresearch/dlrm", next(iter(by_side.values())))
    table = []
    for side, speeds in by_side.items():
        ratios = [speed / base[number] for number, speed in speeds.items() if number in base]
        table.append({
            "side": side,
            "rounds": len(speeds),
            "samples_per_second": round(statistics.median(speeds.values())),
            "lowest": round(min(speeds.values())),
            "highest": round(max(speeds.values())),
            "ratio": round(statistics.median(ratios), 2) if ratios else None,
        })  # fmt: skip
    return table


if __name__ == "__main__":
    main()
