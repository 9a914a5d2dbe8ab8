"""Seconds of `rayrec preprocess` by the number of rows, and the rows that a core adds in a second.

    python -m benchmarks.preprocess_time --output benchmarks/results/preprocess_time.json [--before CHECKOUT]
        [--on process ray] [--rows 1000000 4000000 16000000] [--rounds 3]

Generated rows of Criteo are preprocessed by `dlrm-criteo-small` with a split by hash: in the command's process, or by
Spark on a Ray cluster on this machine, whose head has no CPU and which has a node of one CPU for each that the process
would use. With `--before` another checkout, which needs an environment in `.venv`, does the same in turn, and the files
of all must be the same. Runs are added to those in the file, which has the seconds of each by stage, the CPU seconds of
each stage by kind of process, and the rows that a core adds in a second from the second largest input to the largest,
in which no start is counted.
"""

import argparse
import json
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

from benchmarks.preprocess_kills import files_of
from benchmarks.process_tree import CpuByKind, repeated
from cluster.java import provide_java
from cluster.local_cluster import ray_head, ray_nodes
from cluster.ray_serve import NICENESS
from rayrec.common.machine import Machine, available_cpus
from rayrec.store.artifact import MANIFEST_FILE
from rayrec.store.files import write_json
from tests.environments import environment_of_a_user

REPOSITORY = Path(__file__).resolve().parents[1]
SETTINGS = ("--set", "preprocess.split={kind: hash, validation: 0.1, test: 0.1}")
_STAGE = re.compile(r"^(.+): ([\d.]+) s(?:,|$)")
_LOOK_SECONDS = 0.3
_OF_START = "start "
"""How the names of stages begin that do no work."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--before", type=Path, help="another checkout")
    parser.add_argument("--on", nargs="+", choices=["process", "ray"], default=["process"])
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 4_000_000, 16_000_000])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    machine = Machine()
    provide_java()
    checkouts = {"after": REPOSITORY}
    if options.before:
        checkouts = {"before": options.before.resolve(), **checkouts}
    ways = {
        name if on == "process" else f"{name} on ray": (checkout, on)
        for name, checkout in checkouts.items()
        for on in options.on
    }
    runs: list[dict[str, Any]] = json.loads(options.output.read_text())["runs"] if options.output.exists() else []
    for rows in options.rows:
        with tempfile.TemporaryDirectory(prefix="rayrec-preprocess-") as folder:
            raw = ["generate", "criteo", "--rows", str(rows), "--output", "raw"]
            subprocess.run(_rayrec(REPOSITORY, raw), cwd=folder, env=_environment(REPOSITORY), check=True)
            for number in range(options.rounds):
                for way, (checkout, on) in ways.items():
                    runs.append({"way": way, "rows": rows, "round": number + 1, **_measure(checkout, on, folder, way)})
                    print(runs[-1], flush=True)
                    write_json(options.output, {"machine": machine.described(), **_report(runs)})
                files = [files_of(Path(folder) / way) for way in ways]
                for of_way in files:
                    del of_way[MANIFEST_FILE]  # it has the recipe, to which keys may have been added
                assert all(of_way == files[0] for of_way in files), "not all write the same files"


def _measure(checkout: Path, on: str, folder: str, output: str) -> dict[str, Any]:
    """Run the command; return its seconds, and by stage seconds and CPU seconds."""
    shutil.rmtree(Path(folder) / output, ignore_errors=True)
    words = ["preprocess", "dlrm-criteo-small", "--input", "raw/criteo.tsv", "--output", output, *SETTINGS, "--on", on]
    environment = _environment(checkout)
    with ExitStack() as stack:
        if on == "ray":
            # Ray's workers would stand back behind all other processes.
            environment |= {"RAY_AUTH_MODE": "disabled", NICENESS: "0"}
            head = stack.enter_context(ray_head(environment, num_cpus=0))
            stack.enter_context(ray_nodes(head, environment, available_cpus()))
            environment["RAY_ADDRESS"] = head.address
        cpu = CpuByKind(psutil.Process())
        began, before = time.monotonic(), cpu.look()
        stages: dict[str, float] = {}
        cpu_seconds: dict[str, dict[str, float]] = {}
        command = stack.enter_context(
            subprocess.Popen(_rayrec(checkout, words), cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)
        )
        stack.enter_context(repeated(cpu.look, _LOOK_SECONDS))
        assert command.stderr is not None
        for line in command.stderr:
            if stage := _STAGE.match(line):
                stages[stage[1]], spent = float(stage[2]), cpu.look()
                cpu_seconds[stage[1]] = {kind: round(s - before.get(kind, 0.0), 2) for kind, s in spent.items()}
                before = spent
        assert command.wait() == 0
        seconds = time.monotonic() - began
    return {"seconds": round(seconds, 1), "stages": stages, "cpu_seconds": cpu_seconds}


def _rayrec(checkout: Path, arguments: Sequence[str]) -> list[str]:
    return [str(checkout / ".venv" / "bin" / "rayrec"), *arguments]


def _environment(checkout: Path) -> dict[str, str]:
    """Return what a command of a checkout has, also where the environment is that of another one."""
    return {**environment_of_a_user(), "PYTHONPATH": str(checkout)}


def _report(runs: list[dict[str, Any]]) -> dict[str, Any]:
    medians: dict[str, dict[int, dict[str, Any]]] = {}
    for way, rows in dict.fromkeys((run["way"], run["rows"]) for run in runs):
        of_way = [run for run in runs if (run["way"], run["rows"]) == (way, rows)]
        medians.setdefault(way, {})[rows] = {
            "seconds": statistics.median(run["seconds"] for run in of_way),
            "without_start": round(statistics.median(map(_work, (run["stages"] for run in of_way))), 1),
            "cpu_seconds_without_start": round(
                statistics.median(
                    _work({stage: sum(spent.values()) for stage, spent in run["cpu_seconds"].items()}) for run in of_way
                ),
                1,
            ),
            "stages": {
                stage: statistics.median(run["stages"][stage] for run in of_way) for stage in of_way[0]["stages"]
            },
        }
    added: dict[str, int] = {}
    for way, by_rows in medians.items():
        if len(by_rows) > 1:
            (few, before), (many, after) = sorted(by_rows.items())[-2:]
            added[way] = round((many - few) / (after["seconds"] - before["seconds"]) / available_cpus())
    return {"medians": medians, "rows_added_per_second_and_core": added, "runs": runs}


def _work(stages: Mapping[str, float]) -> float:
    """Return the sum over all stages but those that start something."""
    return sum(value for stage, value in stages.items() if not stage.startswith(_OF_START))


if __name__ == "__main__":
    main()
