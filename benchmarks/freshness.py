"""How soon a click in a file changes what the server answers: `rayrec follow` beside `rayrec serve`.

    python -m benchmarks.freshness --output benchmarks/results/freshness.json [--seconds 180] [--rows-per-second 1000]

The first day of generated Criteo rows makes the first model, which `rayrec serve` answers with. Then a file of the
next second's rows lands every second, and `rayrec follow` takes them in. A client asks for a row's score all the time.
The freshness of a row is the time from the moment when its file landed to the first answer of a version that was
trained on it; all rows of a file count alike. Client, server, follower and generator share the machine.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import requests

from benchmarks.killable import attempt, started
from rayrec.common.machine import Machine, free_port
from rayrec.store.files import write_json

RECIPE = "dlrm-criteo-debug"
SETTINGS = ("--set", "preprocess.split={kind: hash, test: 0.1}", "--set", "train.global_batch_size=512",
            "--set", "train.tracking={tensorboard: false}", "--workers", "1")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seconds", type=int, default=180)
    parser.add_argument("--rows-per-second", type=int, default=1_000)
    parser.add_argument("--first-rows", type=int, default=50_000)
    options = parser.parse_args()
    machine = Machine()
    with tempfile.TemporaryDirectory(prefix="rayrec-fresh-") as temporary:
        report = measure(Path(temporary), options.seconds, options.rows_per_second, options.first_rows)
    write_json(options.output, {"machine": machine.described(), **report})
    print(json.dumps(report, indent=2))


def measure(folder: Path, seconds: int, rows: int, first_rows: int) -> dict[str, Any]:
    generate = ("--rows", first_rows + seconds * rows, "--output", folder / "raw")
    attempt(["jobs.generate", "criteo", *generate], folder / "log", None)
    lines = (folder / "raw" / "criteo.tsv").read_text().splitlines(keepends=True)
    (folder / "first.tsv").write_text("".join(lines[:first_rows]))
    output, landing = folder / "clicks", folder / "landing"
    landing.mkdir()
    first = ("--input", folder / "first.tsv", "--continue", output)
    attempt(["jobs.run", RECIPE, *SETTINGS, *first], folder / "log", None)
    port = free_port()
    address = f"http://127.0.0.1:{port}/v1/models/clicks"
    serve = ["jobs.serve", f"clicks={output / 'models'}", "--port", port]
    follow = ["jobs.follow", RECIPE, *SETTINGS, "--input", landing, "--serve", output / "models", "--output", output]
    landed: dict[str, float] = {}
    answered: dict[int, float] = {}
    with started(serve, folder / "serve.log"):
        _wait_until_ready(address)
        with started(follow, folder / "follow.log"):
            began = time.perf_counter()
            number = 0
            while len(landed) < seconds or _newest(output, landed) > max(answered):
                now = time.perf_counter()
                if number < seconds and now - began >= number:
                    start = first_rows + number * rows
                    hidden = landing / f".{number:05d}.tsv"
                    hidden.write_text("".join(lines[start : start + rows]))
                    hidden.rename(landing / hidden.name[1:])
                    landed[str(landing / hidden.name[1:])] = time.perf_counter()
                    number += 1
                answer = requests.post(f"{address}:predict", json={"instances": [{"I1": 3}]}, timeout=10)
                answer.raise_for_status()
                answered.setdefault(int(answer.json()["version"]), time.perf_counter())
                time.sleep(0.05)
                if now - began > 3 * seconds + 120:
                    raise RuntimeError((folder / "follow.log").read_text()[-3_000:])
    versions = _version_of_file(output)
    first_answer = {
        file: min(moment for answering, moment in answered.items() if answering >= version)
        for file, version in versions.items()
    }
    ages = sorted(first_answer[file] - when for file, when in landed.items())
    return {
        "rows_per_second": rows,
        "files": seconds,
        "versions": len(answered) - 1,
        "median_seconds": round(statistics.median(ages), 2),
        "worst_seconds": round(ages[-1], 2),
        "least_seconds": round(ages[0], 2),
        "ninety_percent_seconds": round(ages[int(0.9 * len(ages))], 2),
    }


def _newest(output: Path, landed: dict[str, float]) -> int:
    """Return the version that was trained on the file that landed last; beyond all versions if there is none yet."""
    return _version_of_file(output).get(list(landed)[-1], 2**31)


def _version_of_file(output: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for day in (output / "days").glob("[0-9]*"):
        manifest = day / "manifest.json"
        if manifest.exists() and (version := json.loads(manifest.read_text())["published"]):
            found |= dict.fromkeys(json.loads((day / "day.json").read_text())["input"], int(version))
    return found


def _wait_until_ready(address: str) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            if requests.get(address, timeout=2).ok:
                return
        except requests.RequestException:
            time.sleep(0.5)
    raise RuntimeError(f"{address}: does not answer")


if __name__ == "__main__":
    main()
