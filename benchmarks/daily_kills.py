"""Days that are taken in, a folder that is followed and a server, killed at random moments: is the result the same?

    python -m benchmarks.daily_kills --output benchmarks/results/daily_kills.json [--kills 10] [--rows 6000]

- `rayrec run --continue` takes in generated days without disturbance; that is the reference. Then the same days are
  taken in again, in as many copies as it takes, with SIGKILL for the whole process group after a random part of the
  time that a phase took undisturbed, until each phase was killed `--kills` times: preprocess --extend, train
  --warm-start, export, the gate, and publishing. At the end vocabularies, counts, encoded rows, the histories of users
  and items, and weights and histories of the last model, read as a delta on its base, are compared bit by bit.
- `rayrec follow` is killed at random moments while files land. Then every file must have been taken in once.
- `rayrec serve` is killed at random moments while it applies deltas. Then it must serve the last version, with the
  scores that the same version gives in Python.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import requests

from benchmarks.killable import attempt, moments, started
from rayrec.common.machine import Machine, free_port
from rayrec.store.files import write_json

RECIPE = """\
name: clicks
source:
  kind: table
  format: delimited
  separator: "\\t"
  header: [click, ts, user, item, price]
  label: click
  time: {column: ts, format: s}
  features:
  - {columns: [user, item], kind: categorical, min_count: 3}
  - {columns: price, kind: numeric, transforms: [standardize]}
  histories:
    user: {by: user, take: [count, age, rate, {op: mean, column: price}, {op: last, column: item, length: 5}]}
    clicked: {by: [user, item], where: {column: click, equals: "1"}, window: 1d, delay: 1m, take: [count]}
  rates: [{keys: item}]
preprocess:
  layout: {rows_per_row_group: 4096}
model: {kind: dlrm, embedding_dim: 16, bottom_mlp: [64, 16], top_mlp: [64, 32]}
train:
  epochs: 2
  device: cpu
  evaluations_per_epoch: 1
  embedding_optimizer: {kind: rowwise_adagrad, lr: 0.05}
  dense_optimizer: {kind: adam, lr: 0.002}
"""
# Models of so few rows are bad; it is not the gate that is looked at.
SETTINGS = (
    *("--set", "preprocess.split={kind: hash, test: 0.2}"),
    *("--set", "preprocess.expire_after=2d"),
    *("--set", "publish={max_drift: null, max_loss_increase: 100, max_miscalibration: 100}"),
    *("--set", "train.global_batch_size=512"),
    *("--workers", "1"),
)
DAYS = 3
PHASES = {
    "preprocess": "\npreprocess -> ",
    "train": "\ntrain -> ",
    "export": "\nexport -> ",
    "gate": "\ncompare with version ",
    "publish": "\npublish version ",
}
"""For each phase the words with which it begins."""
_READY_SECONDS = 120
_FIRST_MOMENT = 1_700_006_400
"""Seconds since 1970 at which the first day begins."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--kills", type=int, default=10, help="of each phase, of the follower and of the server")
    parser.add_argument("--rows", type=int, default=6_000, help="rows of a day")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    options = parser.parse_args()
    machine = Machine()
    with tempfile.TemporaryDirectory(prefix="rayrec-daily-") as temporary:
        folder = Path(temporary)
        write_days(folder, options.rows)
        chance = random.Random(options.seed)
        report = {
            "rows_of_a_day": options.rows,
            "days": DAYS,
            "seed": options.seed,
            "continue": continued(folder, options.kills, chance),
            "follow": followed(folder, options.kills, chance),
            "serve": served(folder, options.kills, chance),
        }
    write_json(options.output, {"machine": machine.described(), **report})
    print(json.dumps(report, indent=2))
    sys.exit(0 if all(report[part]["same"] for part in ("continue", "follow", "serve")) else 1)


def write_days(folder: Path, rows: int) -> None:
    """Write the recipe, and the log of each day: users who like some items more than others, and new ones every day."""
    (folder / "clicks.yaml").write_text(RECIPE)
    (folder / "raw").mkdir()
    rng = np.random.default_rng(0)
    likes = rng.normal(size=(100 * (DAYS + 3), 50))
    for day in range(DAYS):
        seconds = _FIRST_MOMENT + 86_400 * day + np.sort(rng.integers(0, 86_400, rows))
        user, item = rng.integers(0, 100 * (day + 3), rows), rng.integers(0, 50, rows)
        clicks = rng.random(rows) < 1 / (1 + np.exp(1 - likes[user, item]))
        columns = (clicks.astype(int), seconds, user, item, rng.random(rows).round(3))
        lines = ["\t".join(map(str, row)) for row in zip(*columns, strict=True)]
        (folder / "raw" / f"day_{day}").write_text("\n".join(lines) + "\n")


def continued(folder: Path, kills: int, chance: random.Random) -> dict[str, Any]:
    """Return whether days that are killed end as undisturbed ones, and how often each phase was killed."""
    undisturbed, first_day = folder / "undisturbed", folder / "first-day"
    times: dict[str, float] = {}
    for day in range(DAYS):
        times = moments(_day(folder, undisturbed, day), folder / "log", PHASES.values())
        if day == 0:
            shutil.copytree(undisturbed, first_day)
    begins = [*(times[phrase] for phrase in PHASES.values()), times[""]]
    seconds = dict(zip(PHASES, np.diff(begins).tolist(), strict=True))
    expected = state(undisturbed)
    killed: Counter[str] = Counter()
    copies, same = 0, True
    while any(killed[phase] < kills for phase in PHASES):
        # The same place each time: a day remembers where its files are.
        output = folder / "killed"
        shutil.copytree(first_day, output)
        for day in range(1, DAYS):
            for phase in PHASES:
                # A day that was killed after its last file was written is over; its rows are refused from then on.
                if (output / "days" / f"{day:04d}" / "manifest.json").exists():
                    break
                limit = chance.uniform(0, seconds[phase])
                said = attempt(_day(folder, output, day), folder / "log", limit, after=PHASES[phase])
                if said is None:
                    break
                killed[next(name for name in reversed(PHASES) if PHASES[name] in said)] += 1
                print(f"day {day}: {dict(killed)}", file=sys.stderr, flush=True)
            if not (output / "days" / f"{day:04d}" / "manifest.json").exists():
                attempt(_day(folder, output, day), folder / "log", None)
        same = state(output) == expected and same
        copies += 1
        shutil.rmtree(output)
    return {
        "killed_in": dict(killed),
        "copies": copies,
        "same": same,
        "seconds_of_each_phase": {phase: round(value, 2) for phase, value in seconds.items()},
    }


def followed(folder: Path, kills: int, chance: random.Random) -> dict[str, Any]:
    """Return whether `rayrec follow`, killed while files land, takes each of them in once."""
    landing, output = folder / "landing", folder / "followed"
    landing.mkdir()
    shutil.copytree(folder / "undisturbed", output)
    lines = (folder / "raw" / f"day_{DAYS - 1}").read_text().splitlines(keepends=True)
    each = len(lines) // (2 * kills)
    recipe = folder / "clicks.yaml"
    command = ["jobs.follow", recipe, *SETTINGS, "--input", landing, "--output", output, "--serve", output / "models"]
    files = []
    for number in range(2 * kills):
        hidden = landing / f".{number:03d}"
        hidden.write_text("".join(lines[number * each : (number + 1) * each]))
        files.append(hidden.rename(landing / f"part-{number:03d}.tsv"))
        if number % 2:
            assert attempt(command, folder / "log", chance.uniform(2, 12)) is not None, "it follows until it is killed"
            print(f"follow: killed {number // 2 + 1} times", file=sys.stderr, flush=True)
    while _waiting(output, files):
        attempt(command, folder / "log", 15)
    taken = _published_inputs(output)
    versions = sorted(int(path.name) for path in (output / "models").glob("[0-9]*"))
    return {"kills": kills, "files": len(files), "same": all(taken[str(path)] == 1 for path in files),
            "versions": len(versions)}  # fmt: skip


def served(folder: Path, kills: int, chance: random.Random) -> dict[str, Any]:
    """Return whether a server that is killed while it applies deltas answers as the last version does in Python."""
    from rayrec.inference.predictor import load_model

    versions = folder / "followed" / "models"
    numbers = sorted(int(path.name) for path in versions.glob("[0-9]*"))[: DAYS + 6]
    models = folder / "served" / "ctr"
    moment = _FIRST_MOMENT + 86_400 * DAYS
    rows = [{"ts": moment, "user": str(number), "item": str(number)} for number in range(50)]
    for kill in range(kills):
        shutil.rmtree(models, ignore_errors=True)
        shutil.copytree(versions / str(numbers[0]), models / str(numbers[0]))
        with _server(models, folder / "log"):
            for number in numbers[1:]:
                shutil.copytree(versions / str(number), models / ".new")
                (models / ".new").rename(models / str(number))
            time.sleep(chance.uniform(0, 3))
        print(f"serve: killed {kill + 1} times", file=sys.stderr, flush=True)
    with _server(models, folder / "log") as address:
        deadline = time.monotonic() + _READY_SECONDS
        version, scores = _scores(address, rows)
        while version != numbers[-1] and time.monotonic() < deadline:
            time.sleep(0.2)
            version, scores = _scores(address, rows)
    expected = load_model(versions / str(numbers[-1])).predict(rows)
    return {"kills": kills, "deltas": len(numbers) - 1, "version": version,
            "same": version == numbers[-1] and np.array_equal(np.array(scores, np.float32), expected)}  # fmt: skip


@contextmanager
def _server(models: Path, log: Path) -> Iterator[str]:
    """Yield a server that answers, which is killed at the end of the block; yields the address of its model `ctr`.

    Its port is a new one, as the proxy of one that was killed may live for some seconds.
    """
    port = free_port()
    address = f"http://127.0.0.1:{port}/v1/models/ctr"
    with started(["jobs.serve", f"ctr={models}", "--port", port], log) as process:
        deadline = time.monotonic() + _READY_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            try:
                _scores(address, [{"ts": _FIRST_MOMENT + 86_400 * DAYS, "user": "1"}])
                break
            except requests.RequestException:
                time.sleep(0.1)
        else:
            raise RuntimeError(log.read_text())
        yield address


def _scores(address: str, rows: list[dict[str, Any]]) -> tuple[int, list[float]]:
    """Return the version that answers, and the scores of some rows."""
    answer = requests.post(f"{address}:predict", json={"instances": rows}, timeout=10)
    answer.raise_for_status()
    return int(answer.json()["version"]), answer.json()["predictions"]


def state(output: Path) -> dict[str, Any]:
    """Return vocabularies, counts, rows and histories of the last day, and weights and histories of the last model."""
    from rayrec.inference.folder.delta import write_whole
    from rayrec.inference.folder.model_folder import ModelFolder

    dataset = output / "days" / f"{DAYS - 1:04d}" / "dataset"
    model = ModelFolder.open(output / "models" / str(DAYS))
    tables = {}
    for table in model.tables:
        rows = np.empty((table.rows, table.dim), np.float32)
        model.mapped_table(table).read(np.arange(table.rows), rows)
        tables[table.name] = rows.tobytes()
    files = [path for name in ("vocabulary", "counts", "train") for path in sorted((dataset / name).glob("*.parquet"))]
    whole = output / "whole"
    write_whole(model, whole)
    past = [*sorted((dataset / "statistics").rglob("*.*")), *sorted((whole / "statistics").rglob("*.*"))]
    histories = {str(path.relative_to(output)): path.read_bytes() for path in past if path.is_file()}
    shutil.rmtree(whole)
    return {
        "histories": histories,
        "tables": tables,
        "dense": {name: tensor.numpy().tobytes() for name, tensor in model.dense().items()},
        "dataset": {str(path.relative_to(dataset)): pq.read_table(path).to_pydict() for path in files},
    }


def _day(folder: Path, output: Path, day: int) -> list[object]:
    return [
        "jobs.run",
        folder / "clicks.yaml",
        *SETTINGS,
        "--input",
        folder / "raw" / f"day_{day}",
        "--continue",
        output,
    ]


def _waiting(output: Path, files: list[Path]) -> bool:
    """Return whether a file was not taken in yet, or a day that was begun has not ended."""
    taken = _published_inputs(output)
    unfinished = any(not (day / "manifest.json").exists() for day in (output / "days").glob("[0-9]*"))
    return unfinished or any(str(path) not in taken for path in files)


def _published_inputs(output: Path) -> Counter[str]:
    """Return how many published days took in each file."""
    found: Counter[str] = Counter()
    for day in (output / "days").glob("[0-9]*"):
        manifest = day / "manifest.json"
        if manifest.exists() and json.loads(manifest.read_text())["published"] is not None:
            found.update(json.loads((day / "day.json").read_text())["input"])
    return found


if __name__ == "__main__":
    main()
