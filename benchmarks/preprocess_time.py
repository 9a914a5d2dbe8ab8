"""Seconds of `rayrec preprocess` by the number of rows, and the rows that a core adds in a second.

    python -m benchmarks.preprocess_time --output benchmarks/results/preprocess_time.json [--before CHECKOUT]
        [--rows 1000000 4000000 16000000] [--rounds 3]

Generated rows of Criteo are preprocessed by `dlrm-criteo-small` with a split by hash, as a user does without a cluster:
what fits the memory by threads of the command, larger inputs by Spark on Ray. With `--before` another checkout, which
needs an environment in `.venv`, does the same in turn, and the files of both must be the same. Runs are added to those
in the file, which has the seconds of each by stage, and of each checkout the rows that a core adds in a second from the
second largest input to the largest, in which no start is counted.
"""

import argparse
import json
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.preprocess_kills import files_of
from rayrec.common.machine import Machine, available_cpus
from rayrec.store.artifact import MANIFEST_FILE
from rayrec.store.files import write_json
from tests.environments import environment_of_a_user

REPOSITORY = Path(__file__).resolve().parents[1]
SETTINGS = ("--set", "preprocess.split={kind: hash, validation: 0.1, test: 0.1}")
_STAGE = re.compile(r"^(.+): ([\d.]+) s(?:,|$)", re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--before", type=Path, help="another checkout")
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 4_000_000, 16_000_000])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    machine = Machine()
    checkouts = {"after": REPOSITORY}
    if options.before:
        checkouts = {"before": options.before.resolve(), **checkouts}
    runs: list[dict[str, Any]] = json.loads(options.output.read_text())["runs"] if options.output.exists() else []
    for rows in options.rows:
        with tempfile.TemporaryDirectory(prefix="rayrec-preprocess-") as folder:
            _rayrec(REPOSITORY, folder, "generate", "criteo", "--rows", str(rows), "--output", "raw")
            for number in range(options.rounds):
                for name, checkout in checkouts.items():
                    runs.append(
                        {"checkout": name, "rows": rows, "round": number + 1, **_measure(checkout, folder, name)}
                    )
                    print(runs[-1], flush=True)
                    write_json(options.output, {"machine": machine.described(), **_report(runs)})
                files = [files_of(Path(folder) / name) for name in checkouts]
                for of_side in files:
                    del of_side[MANIFEST_FILE]  # it has the recipe, to which keys may have been added
                assert all(of_side == files[0] for of_side in files), "the checkouts write different files"


def _measure(checkout: Path, folder: str, output: str) -> dict[str, Any]:
    shutil.rmtree(Path(folder) / output, ignore_errors=True)
    began = time.monotonic()
    said = _rayrec(
        checkout, folder, "preprocess", "dlrm-criteo-small", "--input", "raw/criteo.tsv", "--output", output, *SETTINGS
    )
    seconds = time.monotonic() - began
    return {"seconds": round(seconds, 1), "stages": {name: float(value) for name, value in _STAGE.findall(said)}}


def _rayrec(checkout: Path, folder: str, *arguments: str) -> str:
    """Run a command; return what it said."""
    command = [str(checkout / ".venv" / "bin" / "rayrec"), *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment_of_a_user(), capture_output=True, text=True, check=True
    ).stderr


def _report(runs: list[dict[str, Any]]) -> dict[str, Any]:
    medians: dict[str, dict[int, float]] = {run["checkout"]: {} for run in runs}
    for run in runs:
        same = [r["seconds"] for r in runs if (r["checkout"], r["rows"]) == (run["checkout"], run["rows"])]
        medians[run["checkout"]][run["rows"]] = statistics.median(same)
    added: dict[str, int] = {}
    for name, by_rows in medians.items():
        if len(by_rows) > 1:
            (few, before), (many, after) = sorted(by_rows.items())[-2:]
            added[name] = round((many - few) / (after - before) / available_cpus())
    return {"medians": medians, "rows_added_per_second_and_core": added, "runs": runs}


if __name__ == "__main__":
    main()
