"""SASRec on sequences that papers use: the last item of each person among all items.

    python -m benchmarks.next_items SEQUENCES.txt.gz [...] --output benchmarks/results/next_items.json

A line of a file is a person and their items in order (`user item item ...`), as S3-Rec's Beauty and Toys have them. The
last item of a person is test, the one before validation, which chooses the epoch. Commands run as a user types them, in
this process's share of the machine; `cpu seconds` are those of both cores, whatever else is running.
"""

import argparse
import gzip
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.result_rows import ResultRows

RECIPE = "sasrec"
_LEAVE_ONE_OUT = (
    "preprocess.split={kind: leave_one_out, validation: true, min_interactions: 0, negatives: 1}",
    "train.device=cpu",
    "train.precision=fp32",
)


def write_table(sequences: Path, table: Path) -> None:
    """Write a row for each user and item, in order, with a header."""
    with gzip.open(sequences, "rt") as lines, table.open("w") as rows:
        rows.write("user,item\n")
        for line in lines:
            user, *items = line.split()
            rows.writelines(f"{user},{item}\n" for item in items)


def rayrec(*words: str) -> dict[str, Any]:
    """Run a command in a process of its own; return its result."""
    command = [sys.executable, "-m", "rayrec.cli", *words, "--on", "process", "--json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def measure(sequences: Path, changes: list[str], folder: Path) -> dict[str, Any]:
    """Return the metrics of test, and what training took."""
    table, data, run = (str(folder / name) for name in ("table.csv", "data", "run"))
    write_table(sequences, Path(table))
    settings = [word for change in (*_LEAVE_ONE_OUT, *changes) for word in ("--set", change)]
    rayrec("preprocess", RECIPE, "--input", table, "--output", data, *settings)
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    result = rayrec("train", RECIPE, "--data", data, "--output", run, "--workers", "1", *settings)
    seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    test = {name: value for name, value in result["metrics"]["test"].items() if "@" in name}
    used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return {"sequences": sequences.name.partition(".")[0], **test, "seconds": seconds, "cpu seconds": used}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sequences", nargs="+", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], help="a setting of the recipe, as for rayrec")
    arguments = parser.parse_args()
    rows = ResultRows(arguments.output, ("sequences", "set"), ("sequences", "hr@10", "ndcg@10", "seconds"))
    for sequences in arguments.sequences:
        with tempfile.TemporaryDirectory(prefix="rayrec-next-items-") as folder:
            row = measure(sequences, arguments.set, Path(folder))
        rows.add({**row, "set": arguments.set, "load at the end": os.getloadavg()[0]})


if __name__ == "__main__":
    main()
