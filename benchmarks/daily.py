"""A model that continues yesterday's every day, beside one trained once and one trained anew on all days so far.

    python -m benchmarks.daily --output benchmarks/results/daily.json --plot docs/daily.svg [--days 7] [--rows 500000]

The days are generated: each has new values, and preferences that drift. At the end of each day there are three models:

- once: trained on day 0;
- daily: `preprocess --extend` with the day alone, `train --warm-start` from the model of the day before;
- anew: `preprocess` and `train` with all days so far.

Each scores the raw rows of the next day, as a model does that is served from the evening on: with values that it has
never seen, by its own vocabulary. So no row that is measured was there when its model was trained, and all models are
measured on the same rows, beside the best reachable AUC of these. Held-out rows of the day itself would flatter all
three: that day's new values are known to the models trained on it. Seconds are those of the commands with all that
they start.

The program prints a row for each day, and exits with 1 unless the daily model is nowhere worse than the one trained
anew by more than 0.005, is better than the one trained once by more than that on the last day, and takes less than a
quarter of the time of the one trained anew on that day.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from sklearn.metrics import roc_auc_score

from benchmarks.line_chart import line_chart
from jobs.command.result import text_table
from rayrec.common.machine import Machine
from rayrec.store.files import write_atomically, write_json

RECIPE = "dlrm-criteo-debug"
# The debug recipe for more rows; one worker, whose start takes less of the time that is compared.
PREPROCESS = ("preprocess.frequency_limit=10", "preprocess.layout.rows_per_row_group=16384")
TRAIN = (
    "model.top_mlp=[128, 64]",
    "train.global_batch_size=1024",
    "train.embedding_optimizer.kind=adagrad",
    "train.embedding_optimizer.lr=0.03",
    "train.workers=1",
    "train.ingest.in_memory=true",
)
WAYS = ("once", "daily", "anew")
TOLERANCE = 0.005
SHARE_OF_TIME = 0.25


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--plot", type=Path, required=True, help="an SVG file")
    parser.add_argument("--days", type=int, default=7)
    parser.add_argument("--rows", type=int, default=500_000, help="of a day")
    parser.add_argument("--seed", type=int, default=0, help="of the rows")
    options = parser.parse_args()
    machine = Machine()
    with tempfile.TemporaryDirectory(prefix="rayrec-daily-") as temporary:
        days = measure(Path(temporary), options.days, options.rows, options.seed)
    shown = summary(days)
    report = {"recipe": RECIPE, "rows_of_a_day": options.rows, "seed": options.seed, **shown, "days": days}
    write_json(options.output, {"machine": machine.described(), **report})
    write_atomically(options.plot, plot(days))
    print(text_table([_row(day) for day in days]))
    print(json.dumps(shown, indent=2))
    sys.exit(0 if all(shown["holds"].values()) else 1)


def measure(folder: Path, days: int, rows: int, seed: int) -> list[dict[str, Any]]:
    """Return for each day the AUC of the three models on the next day, the best reachable one, and the seconds
    of each.
    """
    raw = folder / "raw"
    size = ("--rows", (days + 1) * rows, "--days", days + 1)
    rayrec("generate", "criteo", *size, "--seed", seed, "--output", raw)
    best = [file["best_auc"] for file in json.loads((raw / "truth.json").read_text())["files"]]
    measured: list[dict[str, Any]] = []
    for day in range(days):
        # The model of day 0 is trained once, and all three ways begin with it.
        seconds = {way: train(folder, way, day) for way in (WAYS[1:] if day else WAYS[:1])}
        models = {"once": 0, **dict.fromkeys(WAYS[1:], day)} if day else {"once": 0}
        auc = {way: next_day_auc(folder, way, trained, day + 1) for way, trained in models.items()}
        measured.append({
            "day": day,
            "best_auc": best[day + 1],
            "auc": {way: auc.get(way, auc["once"]) for way in WAYS},
            "seconds": seconds,
        })  # fmt: skip
        print(_row(measured[-1]), file=sys.stderr, flush=True)
    return measured


def train(folder: Path, way: str, day: int) -> dict[str, float]:
    """Make the dataset and the model of a day; the seconds that each took."""
    data, run = folder / f"data-{way}-{day}", folder / f"run-{way}-{day}"
    inputs = [folder / "raw" / f"day_{number}" for number in range(day + 1)]
    settings = [RECIPE, *_options("--set", PREPROCESS)]
    preprocess, warm_start = [*settings, *_options("--input", inputs)], []
    if way == "daily":
        before = f"daily-{day - 1}" if day > 1 else "once-0"
        preprocess = [*settings, "--extend", folder / f"data-{before}", "--input", inputs[-1]]
        warm_start = ["--warm-start", folder / f"run-{before}"]
    return {
        "preprocess": rayrec("preprocess", *preprocess, "--output", data),
        "train": rayrec("train", RECIPE, *_options("--set", TRAIN), *warm_start, "--data", data, "--output", run),
    }


def next_day_auc(folder: Path, way: str, day: int, next_day: int) -> float:
    """Return the AUC of a day's model on the raw rows of another day."""
    scores = folder / f"scores-{way}-{next_day}"
    raw = folder / "raw" / f"day_{next_day}"
    rayrec("predict", folder / f"run-{way}-{day}", "--raw", "--input", raw, "--output", scores)
    found = pq.read_table(scores / "scores", columns=["label", "score"])
    return float(roc_auc_score(found["label"].to_numpy(), found["score"].to_numpy()))


def summary(days: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what the days show, and whether that is what they must show."""
    last = days[-1]
    seconds = {way: sum(last["seconds"][way].values()) for way in WAYS[1:]}
    worst = min(day["auc"]["daily"] - day["auc"]["anew"] for day in days)
    gain = last["auc"]["daily"] - last["auc"]["once"]
    share = seconds["daily"] / seconds["anew"]
    return {
        "daily_less_anew_at_worst": worst,
        "daily_less_once_on_the_last_day": gain,
        "time_of_daily_by_anew_on_the_last_day": share,
        "holds": {
            "no worse than anew": worst >= -TOLERANCE,
            "better than once": gain > TOLERANCE,
            "in a part of the time": share < SHARE_OF_TIME,
        },
    }


def plot(days: Sequence[dict[str, Any]]) -> str:
    """Return the AUC by day as SVG."""
    lines = {"best reachable": [day["best_auc"] for day in days]}
    lines |= {
        name: [day["auc"][way] for day in days]
        for way, name in {
            "anew": "anew on all days so far",
            "daily": "daily warm start",
            "once": "once, on day 0",
        }.items()
    }
    measured_on = [day["day"] + 1 for day in days]
    return line_chart(measured_on, lines, x_title="day that is scored by the models of the day before", y_title="AUC")


def rayrec(command: str, *arguments: object) -> float:
    """Run a command of rayrec; the seconds that it took. Raises CalledProcessError if it fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", f"jobs.{command}", *map(str, arguments)],
        env=environment, stdout=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    return round(time.perf_counter() - began, 2)


def _options(option: str, values: Sequence[object]) -> list[object]:
    return [word for value in values for word in (option, value)]


def _row(day: dict[str, Any]) -> dict[str, Any]:
    seconds = {f"{way}, s": sum(day["seconds"][way].values()) for way in WAYS[1:] if way in day["seconds"]}
    return {"scored day": day["day"] + 1, "best": day["best_auc"], **day["auc"], **seconds}


if __name__ == "__main__":
    main()
