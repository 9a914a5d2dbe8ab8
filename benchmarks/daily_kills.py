"""A pipeline that goes on by days, and one that follows a folder, killed at random moments: is the result the same?

    python -m benchmarks.daily_kills --output benchmarks/results/daily_kills.json [--kills 10] [--rows 6000]

`rayrec run --continue` takes in generated days without disturbance; that is the reference. Then the same commands are
started again and again in a process group of their own, each time with SIGKILL for the whole group after a random part
of the time that the day took undisturbed. At the end vocabularies, counts and the weights of the last model, read
through all its deltas, are compared bit by bit. `rayrec follow` is killed at random moments while files land; then
every file must have been taken once, every row trained on once, and the model that is there must open.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

RECIPE = "dlrm-criteo-debug"
# Models of so few rows are bad; it is not the gate that is looked at.
SETTINGS = (
    *("--set", "preprocess.split={kind: hash, test: 0.2}"),
    *("--set", "preprocess.expire_after=2d"),
    *("--set", "publish={max_drift: null, max_loss_increase: 100, max_miscalibration: 100}"),
    *("--set", "train.global_batch_size=512"),
    *("--workers", "1"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--rows", type=int, default=6_000, help="rows of a day")
    parser.add_argument("--days", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rayrec-daily-") as temporary:
        folder = Path(temporary)
        _run(
            "generate",
            "criteo",
            "--rows",
            options.rows * options.days,
            "--days",
            options.days,
            "--output",
            folder / "raw",
        )
        moments = random.Random(options.seed)
        report = {
            "rows_of_a_day": options.rows,
            "days": options.days,
            "seed": options.seed,
            "continue": continued(folder, options.kills, options.days, moments),
            "follow": followed(folder, options.kills, moments),
        }
    options.output.write_text(json.dumps(report, indent=2) + "\n")
    sys.exit(0 if report["continue"]["same"] and report["follow"]["once"] else 1)


def continued(folder: Path, kills: int, days: int, moments: random.Random) -> dict[str, Any]:
    """Whether a pipeline of days that was killed ends as the undisturbed one, and in which phases it was."""
    seconds = []
    for day in range(days):
        began = time.perf_counter()
        assert _attempt(_day(folder, "undisturbed", day), folder, None) is None
        seconds.append(time.perf_counter() - began)
    killed: Counter[str] = Counter()
    remaining = kills
    for day in range(days):
        of_day = remaining // (days - day)
        while True:
            limit = moments.uniform(0, seconds[day]) if of_day else None
            said = _attempt(_day(folder, "killed", day), folder, limit)
            if said is None:
                break
            phases = [line.split(" -> ")[0] for line in said.splitlines() if " -> " in line]
            killed[phases[-1] if phases else "start"] += 1
            of_day, remaining = of_day - 1, remaining - 1
            print(f"day {day}: killed in {phases[-1:] or 'start'}", file=sys.stderr, flush=True)
    same = state(folder / "killed", days) == state(folder / "undisturbed", days)
    return {"kills": sum(killed.values()), "killed_in": dict(killed), "same": same, "undisturbed_seconds": seconds}


def followed(folder: Path, kills: int, moments: random.Random) -> dict[str, Any]:
    """Whether `rayrec follow`, killed while files land, takes each of them once."""
    landing, output, models = folder / "landing", folder / "followed", folder / "followed" / "models"
    landing.mkdir()
    shutil.copytree(folder / "undisturbed", output)
    last = sorted((folder / "raw").glob("day_*"))[-1].read_text().splitlines(keepends=True)
    parts = [last[start : start + 200] for start in range(0, len(last), 200)][: 2 * kills]
    # Other rows than those of the day that was taken in: their numbers in the file are part of none of its ends.
    files = []
    command = [sys.executable, "-m", "jobs.follow", RECIPE, *SETTINGS, "--input", landing, "--output", output]
    command += ["--serve", models]
    done = 0
    for number, part in enumerate(parts):
        path = landing / f".{number:03d}"
        path.write_text("".join(part))
        files.append(path.rename(landing / f"part-{number:03d}.tsv"))
        if number % 2:
            said = _attempt(command, folder, moments.uniform(4, 12))
            assert said is not None, "it follows until it is killed"
            done += 1
            print(f"follow: killed {done} times", file=sys.stderr, flush=True)
    while _landed_and_not_taken(output, files):
        _attempt(command, folder, 15)
    rows = _rows_by_file(output)
    taken = {name: count for name, count in rows.items() if "/landing/" in name}
    return {
        "kills": done,
        "files": len(files),
        "once": all(taken.get(str(path), 0) == 1 for path in files),
        "versions": len(list(models.glob("[0-9]*"))),
    }


def _landed_and_not_taken(output: Path, files: list[Path]) -> bool:
    taken = _rows_by_file(output)
    unfinished = any(not (day / "outcome.json").exists() for day in (output / "days").glob("[0-9]*"))
    return unfinished or any(str(path) not in taken for path in files)


def _rows_by_file(output: Path) -> Counter[str]:
    """How many published days took in each file."""
    found: Counter[str] = Counter()
    for day in (output / "days").glob("[0-9]*"):
        outcome = day / "outcome.json"
        if outcome.exists() and json.loads(outcome.read_text())["version"] is not None:
            found.update(json.loads((day / "day.json").read_text())["input"])
    return found


def state(output: Path, days: int) -> dict[str, Any]:
    """Vocabularies and counts of the last day, and every weight of the last model."""
    from rayrec.inference.folder.model_folder import ModelFolder

    dataset = output / "days" / f"{days - 1:04d}" / "dataset"
    model = ModelFolder.open(output / "models" / str(days))
    tables = {}
    for table in model.tables:
        rows = np.empty((table.rows, table.dim), np.float32)
        model.mapped_table(table).read(np.arange(table.rows), rows)
        tables[table.name] = rows.tobytes()
    files = [path for name in ("vocabulary", "counts", "train") for path in sorted((dataset / name).glob("*.parquet"))]
    return {
        "tables": tables,
        "dense": {name: tensor.numpy().tobytes() for name, tensor in model.dense().items()},
        "dataset": {str(path.relative_to(dataset)): pq.read_table(path).to_pydict() for path in files},
    }


def _day(folder: Path, name: str, day: int) -> list[str | Path]:
    raw = folder / "raw" / f"day_{day}"
    return [sys.executable, "-m", "jobs.run", RECIPE, *SETTINGS, "--input", raw, "--continue", folder / name]


def _attempt(command: list[Any], folder: Path, limit: float | None) -> str | None:
    """Run a command, for at most `limit` seconds; what it said if it was killed, None if it finished."""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    with (folder / "log").open("w+") as log:
        process = subprocess.Popen(
            list(map(str, command)), stdout=log, stderr=log, env=environment, start_new_session=True
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = None
        log.seek(0)
        said = log.read()
    if code is None:
        return said
    if code != 0:
        raise RuntimeError(f"exit code {code}:\n{said}")
    return None


def _run(*words: Any) -> None:
    subprocess.run([sys.executable, "-m", "rayrec.cli", *map(str, words)], check=True, capture_output=True)


if __name__ == "__main__":
    main()
