"""What the gate of `rayrec run --continue` makes of bad and good days.

    python -m benchmarks.bad_days [--seeds 3] [--rows 3000] [--output FILE.json]

Two generated days with a time, users, items, a site and a price are taken in by the recipe that `rayrec inspect`
writes. Then each case is given as the third day to a copy of that folder: twelve kinds of bad days and six of good
ones. The program prints what became of each, and exits with 1 unless every bad day is refused or said, and every good
one is published without a fault.
"""

import argparse
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.random import Generator

from jobs.command.result import text_table
from jobs.inspect import InspectRequest
from jobs.inspect import run as inspect
from jobs.run import RunRequest
from jobs.run import run as take_in
from rayrec.common.errors import UserError
from rayrec.common.progress import SilentProgress
from rayrec.store.files import write_json

Change = Callable[[pd.DataFrame, Generator], pd.DataFrame]


def day(number: int, rows: int, random: Generator, *, new_items: bool = False) -> pd.DataFrame:
    """Return the rows of a day, whose labels depend on site, user, item and price."""
    users, items = random.integers(0, 60, rows), random.integers(0, 40, rows)
    sites, price = random.integers(0, 4, rows), random.lognormal(2, 0.6, rows)
    logit = -1.6 + np.array([-1.5, -0.3, 0.5, 1.5])[sites] + np.sin(users) + np.cos(items) - 0.5 * (np.log(price) - 2)
    moments = pd.Timestamp("2026-03-02") + pd.to_timedelta(np.sort(random.random(rows)) * 86_399 + number * 86_400, "s")
    return pd.DataFrame({
        "click": (random.random(rows) < 1 / (1 + np.exp(-logit))).astype(int),
        "time": moments.strftime("%Y-%m-%d %H:%M:%S"),
        "user": [f"u{1000 + user}" for user in users],
        "item": [f"i{5000 + item + 100 * new_items}" for item in items],
        "site": np.array(["shop", "maps", "game", "video"])[sites],
        "price": price.round(2),
    })  # fmt: skip


def _with(**columns: Any) -> Change:
    return lambda rows, random: rows.assign(**{n: v(rows) if callable(v) else v for n, v in columns.items()})


def _rate(factor: float) -> Change:
    """Drop rows of one label until the rate of the other has changed by a factor."""

    def change(rows: pd.DataFrame, random: Generator) -> pd.DataFrame:
        rate = min(0.97, rows["click"].mean() * factor)
        odds = rate / (1 - rate) * (1 - rows["click"].mean()) / rows["click"].mean()
        kept = np.where(rows["click"] == 1, min(1.0, odds), min(1.0, 1 / odds))
        return rows[random.random(len(rows)) < kept]

    return change


def _one_class_held_out(rows: pd.DataFrame, _: Generator) -> pd.DataFrame:
    return rows.assign(click=np.where(np.arange(len(rows)) < 0.8 * len(rows), rows["click"], 0))


BAD: dict[str, Change | str] = {
    "no positives": _with(click=0),
    "all positives": _with(click=1),
    "swapped labels": _with(click=lambda rows: 1 - rows["click"]),
    "one class in the held-out part": _one_class_held_out,
    "five rows": lambda rows, random: rows.iloc[:5],
    "the day before, packed": "again",
    "another day's rows": "first",
    "shifted years": _with(time=lambda rows: rows["time"].str.replace("2026", "2062")),
    "a feature all missing": _with(site=""),
    "a feature constant": _with(site="shop"),
    "ids in another form": _with(user=lambda rows: rows["user"].str.replace("u1", "U-")),
    "another rate by ten times": _rate(0.1),
}
GOOD: dict[str, Change | str] = {
    "weekend rate": _rate(1.5),
    "growth by half": "more",
    "new items only": "new",
    "one new category": lambda rows, random: rows.assign(
        site=np.where(random.random(len(rows)) < 0.05, "radio", rows["site"])
    ),
    "300 rows": lambda rows, random: rows.iloc[:: len(rows) // 300].iloc[:300],
    "drift of a feature": _with(price=lambda rows: (rows["price"] * 1.5).round(2)),
}


def outcome(case: Change | str, base: Path, folder: Path, rows: int, random: Generator) -> tuple[str, str]:
    """Take in a case after the days of `base`; return `published`, `said` or `refused`, and the words."""
    shutil.copytree(base, folder)
    file = folder / "day.csv"
    if case in ("again", "first"):
        file = folder / "again.csv.gz"
        pd.read_csv(base / f"{int(case == 'again')}.csv", dtype=str).to_csv(file, index=False)
    else:
        count = rows * 3 // 2 if case == "more" else rows
        made = day(2, count, random, new_items=case == "new")
        (case(made, random) if callable(case) else made).to_csv(file, index=False)
    try:
        details = take_in(_request(folder, file), SilentProgress()).details
    except UserError as error:
        return "refused", str(error).removeprefix(f"{folder}/out/").partition("; version")[0]
    said = details["gate"]["warnings"]
    return ("said" if said else "published"), "; ".join(said)


def _request(folder: Path, file: Path) -> RunRequest:
    settings = ("train.workers=1", "train.tracking={tensorboard: false}")
    return RunRequest(recipe=str(folder / "r.yaml"), set=settings, input=(str(file),), continue_=folder / "out")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=3_000)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    os.environ.pop("RAY_ADDRESS", None)
    found: dict[str, list[tuple[str, str]]] = {}
    for seed in range(arguments.seeds):
        with tempfile.TemporaryDirectory() as scratch:
            base, random = Path(scratch) / "base", np.random.default_rng(seed)
            base.mkdir()
            for number in (0, 1):
                day(number, arguments.rows, random).to_csv(base / f"{number}.csv", index=False)
            recipe = {"label": "click", "output": base / "r.yaml"}
            inspect(InspectRequest(path=(str(base / "0.csv"),), **recipe), SilentProgress())
            for number in (0, 1):
                take_in(_request(base, base / f"{number}.csv"), SilentProgress())
            for number, (name, case) in enumerate({**BAD, **GOOD}.items()):
                folder = Path(scratch) / str(number)
                found.setdefault(name, []).append(outcome(case, base, folder, arguments.rows, random))
                shutil.rmtree(folder)
    table = [
        {
            "day": "good" if name in GOOD else "bad",
            "kind": name,
            "outcomes": " ".join(end for end, _ in ends),
            "words of the first seed": ends[0][1],
        }
        for name, ends in found.items()
    ]
    print(text_table(table, below="words of the first seed", width=150))
    if arguments.output:
        write_json(arguments.output, found)
    wrong = [n for n, ends in found.items() for end, _ in ends if (end == "published") == (n in BAD)]
    wrong = [n for n in wrong if n in BAD or any(end == "refused" for end, _ in found[n])]
    raise SystemExit(f"wrong: {', '.join(dict.fromkeys(wrong))}" if wrong else 0)


if __name__ == "__main__":
    main()
