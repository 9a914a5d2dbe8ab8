"""What it costs to train on histories that are read event by event, beside pooled lists and no list.

    python -m benchmarks.sequence_speed --output benchmarks/results/sequence_speed.json [--rounds 3] [--skewed]

Rows of Wide & Deep on a CPU: three numbers, a user, an item, a category, and the last items of the user, 20 on average
and at most 50, with 16 columns; the list shares the item's table. `rayrec train` runs in a process of its own for each
side, in an order that turns with the rounds. A side's figure is the median over the windows of some steps after the
first one; its memory is the most that the process had for itself (USS). With `--skewed`, half of the rows are of one
user, who has 50 last items of any number of events.
"""

import argparse
import itertools
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import yaml

from benchmarks.process_tree import run_sampled
from benchmarks.result_rows import ResultRows
from jobs.command.result import text_table
from rayrec.features.schema import MultiHotFeature, Schema
from rayrec.training.run.folder import HISTORY_FILE
from rayrec.training.run.history import read_history
from tests.builders import history_source, make_recipe, make_schema, with_history, write_dataset

ROWS, USERS, ITEMS, CATEGORIES, LENGTH, MEAN_LENGTH = 2**18, 50_000, 20_000, 100, 50, 24
READERS: dict[str, dict[str, Any] | None] = {
    "no list": None,
    "pooled list": {},
    "mean": {"seen": {"kind": "mean"}},
    "din": {"seen": {"kind": "din"}},
    "transformer": {"seen": {"kind": "transformer"}},
}
NETWORKS = {"small": [64, 32], "large": [256, 128]}
BATCHES = (2048, 8192)
WINDOWS, ROWS_OF_WINDOW = 4, 2**16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="sides")
    parser.add_argument("--skewed", action="store_true")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    keys = ("round", "reader", "network", "batch", "is_skewed")
    results = ResultRows(arguments.output, keys, (*keys, "samples_per_second", "mib"))
    with tempfile.TemporaryDirectory(prefix="rayrec-sequence-speed-") as name:
        folder = Path(name)
        for has_list in (False, True):
            _write_rows(folder / f"data-{has_list}", has_list=has_list, is_skewed=arguments.skewed)
        sides = list(itertools.product(arguments.only or READERS, NETWORKS, BATCHES))
        for number in range(arguments.rounds):
            turned = number % len(sides)
            for reader, network, batch in sides[turned:] + sides[:turned]:
                side = dict(zip(keys, (number, reader, network, batch, arguments.skewed), strict=True))
                if not results.has(**side):
                    data = folder / f"data-{READERS[reader] is not None}"
                    with tempfile.TemporaryDirectory(dir=folder) as empty:
                        results.add({**side, **_trained(data, Path(empty), reader, network, batch)})
    print(text_table(_summary(results.read())))


def schema(*, has_list: bool) -> Schema:
    """Return the schema of the rows; C1 is the user, C2 the item, and M1 the user's last items."""
    cardinalities = (USERS, ITEMS, CATEGORIES, ITEMS)
    if not has_list:
        return make_schema(3, 3, cardinalities=cardinalities)
    whole = make_schema(3, 3, 1, cardinalities=cardinalities, shared={"M1": "C2"})
    update = {"hotness": LENGTH, "pooling": "mean", "keep": "last"}
    features = tuple(f.model_copy(update=update) if isinstance(f, MultiHotFeature) else f for f in whole.features)
    return with_history(whole.model_copy(update={"features": features}), "seen", {"M1": "C2"}, LENGTH)


def _write_rows(folder: Path, *, has_list: bool, is_skewed: bool) -> None:
    rng, of = np.random.default_rng(0), schema(has_list=has_list)
    columns: dict[str, pa.Array] = {f.name: pa.array(rng.random(ROWS, dtype=np.float32)) for f in of.numeric}
    for feature in of.categorical[:3]:
        columns[feature.name] = pa.array(rng.integers(1, feature.cardinality, ROWS, dtype=np.int32))
    lengths = np.minimum(rng.geometric(1 / MEAN_LENGTH, ROWS) - 1, LENGTH)
    if is_skewed:
        lengths[rng.random(ROWS) < 0.5] = LENGTH
    if has_list:
        items = pa.array(rng.integers(1, ITEMS, lengths.sum(), dtype=np.int32))
        columns["M1"] = pa.ListArray.from_arrays(np.append(0, lengths.cumsum()).astype(np.int32), items)
    columns["label"] = pa.array(rng.integers(0, 2, ROWS).astype(np.float32))
    recipe = make_recipe(source=history_source(of))
    write_dataset(folder, of, {"train": pa.table(columns)}, rows_per_part=2**16, rows_per_row_group=8192, recipe=recipe)


def _trained(data: Path, folder: Path, reader: str, network: str, batch: int) -> dict[str, Any]:
    steps = ROWS_OF_WINDOW // batch
    sequences = READERS[reader]
    source = history_source(schema(has_list=sequences is not None))
    recipe = {
        "name": "sequences",
        "source": {"kind": "table", **source.model_dump(mode="json", exclude={"kind"})},
        "model": {"kind": "wide_deep", "embedding_dim": 16, "mlp": NETWORKS[network], "sequences": sequences or {}},
        "train": {
            "global_batch_size": batch,
            "epochs": WINDOWS,
            "max_steps": steps * WINDOWS,
            "log_every_steps": steps,
            "device": "cpu",
            "precision": "fp32",
            "evaluations_per_epoch": 0,
            "tracking": {"tensorboard": False},
        },
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    options = ["--data", str(data), "--output", str(folder / "run"), "--on", "process"]
    found = run_sampled(["rayrec.cli", "train", str(folder / "recipe.yaml"), *options], 0.2)
    records = read_history(folder / "run" / HISTORY_FILE)
    speeds = [record["samples_per_second"] for record in records if record["event"] == "train"]
    return {
        "samples_per_second": round(statistics.median(speeds[1:])),
        "windows": speeds,
        "mib": found.largest_mib["all processes"],
    }


def _summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each side's median over rounds, and its share of the speed without a list."""
    by_side: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        by_side.setdefault((row["is_skewed"], row["network"], row["batch"], row["reader"]), []).append(row)
    speeds = {side: statistics.median(row["samples_per_second"] for row in of) for side, of in by_side.items()}
    table = []
    for side, of in sorted(by_side.items()):
        shares = {
            f"of {base}": round(speeds[side] / speeds[*side[:3], base], 2) if (*side[:3], base) in speeds else None
            for base in ("no list", "pooled list")
        }
        named = dict(zip(("skewed", "network", "batch", "reader"), side, strict=True))
        mib = max(row["mib"] for row in of)
        table.append({**named, "samples_per_second": round(speeds[side]), **shares, "mib": mib})
    return table


if __name__ == "__main__":
    main()
