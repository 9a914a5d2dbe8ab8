"""`rayrec preprocess` of every kind of data, killed at ten random moments: the same files, and how much is done again?

    python -m benchmarks.preprocess_kills --output benchmarks/results/preprocess_kills.json [--kills 10] [--kinds ...]

An undisturbed run of each kind is the reference. Its work is the time from when Spark has started; moments are drawn
uniformly from it. Then the same command is started again and again, each time with SIGKILL for its process group at the
next moment, counted from what was finished before. After five kills it may end: all files of its dataset are compared
byte by byte (but `result.json`, which tells how long it took), and another dataset is begun. Marks of finished stages
are watched: a stage whose mark is written a second time was done again. What a kill costs is the time since the last
mark. All commands run on one Ray session. A kind that is in the file already is not run again.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

import rayrec
from benchmarks.result_rows import ResultRows
from cluster.ray_session import ray_session
from jobs.command import RESULT_FILE
from rayrec.sources.registry import source_of
from rayrec.store.files import sha256_of
from tests.wide_table import SOURCE, SPLIT, side_tables, write_log, write_side_tables

REPOSITORY = Path(__file__).resolve().parents[1]
ROWS = {"criteo": 100_000, "table": 20_000, "interactions": 200_000, "displays": 20_000}
_GENERATED = {
    "criteo": ("criteo", "dlrm-criteo-debug"),
    "interactions": ("interactions", "neumf-ml-1m-debug"),
    "displays": ("outbrain", "wide-deep-outbrain-debug"),
}
"""The source that generates the rows of a kind, and the recipe."""
_KILLS_PER_DATASET = 5
_POLL_SECONDS = 0.02


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--kinds", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    options = parser.parse_args()
    results = ResultRows(options.output, keys=("kind",), printed=("kind", "datasets"))
    with ray_session():
        for kind in options.kinds:
            if not results.has(kind=kind):
                # Spark's processes may still be removing files of their own.
                with tempfile.TemporaryDirectory(prefix="rayrec-kills-", ignore_cleanup_errors=True) as folder:
                    results.add(measure(Path(folder), kind, ROWS[kind], options.kills, options.seed))


def measure(folder: Path, kind: str, rows: int, kills: int, seed: int) -> dict[str, Any]:
    """Return what `kills` kills of one kind cost, with Spark on the Ray session of this process.

    Raises AssertionError if the files differ in the end, or if a finished stage was done again.
    """
    import ray

    environment = {**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    arguments = [*write_raw(folder, kind, rows), "--set", "preprocess.spark.executor_memory=1g"]
    undisturbed = _Dataset(folder / "undisturbed", arguments, environment)
    undisturbed.attempt(None)
    expected, work = files_of(undisturbed.output), undisturbed.seconds
    moments = random.Random(seed)
    killed: list[dict[str, Any]] = []
    datasets = 0
    while len(killed) < kills:
        dataset = _Dataset(folder / f"dataset-{datasets}", arguments, environment)
        remaining = min(_KILLS_PER_DATASET, kills - len(killed))
        for moment in sorted(moments.uniform(0.0, work) for _ in range(remaining)):
            done = [ended for name, ended in undisturbed.marks.items() if name in dataset.marks]
            begins = max([undisturbed.began, *done]) - undisturbed.began
            kill = dataset.attempt(max(0.0, moment - begins))
            if kill is None:  # it was faster than the undisturbed run
                break
            killed.append({"moment": round(moment, 2), **kill})
            print(f"{kind}: {killed[-1]}", file=sys.stderr, flush=True)
            if dataset.output.exists():  # it was killed when all was done
                break
        if not dataset.output.exists():
            dataset.attempt(None)
        assert files_of(dataset.output) == expected, f"{dataset.output} differs from {undisturbed.output}"
        datasets += 1
    return {
        "kind": kind,
        "rows": rows,
        "seconds_undisturbed": round(work, 1),
        "seconds_by_stage": undisturbed.seconds_by_stage(),
        "kills": killed,
        "datasets": datasets,
        "same_files": True,
        "finished_stages_done_again": 0,
    }


@dataclass
class _Dataset:
    """A dataset that one attempt after another works on."""

    output: Path
    arguments: list[str]
    environment: dict[str, str]
    marks: dict[str, float] = field(default_factory=dict)
    """When each stage was finished (Unix time), in order."""
    began: float = 0.0
    seconds: float = 0.0
    """From the start of the last attempt's work to its end."""

    def attempt(self, limit: float | None) -> dict[str, Any] | None:
        """Run the command; None if it finished, else what it lost as it was killed `limit` seconds into its work."""
        before, is_new = set(self.marks), not self._scratches()
        self.began = 0.0
        log_file = self.output.with_suffix(".log")
        command = [sys.executable, "-m", "jobs.preprocess", *self.arguments, "--output", str(self.output)]
        with log_file.open("w") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, env=self.environment, start_new_session=True, cwd=REPOSITORY
            )
            while process.poll() is None:
                self._look(is_new, said=log_file)
                if limit is not None and self.began and time.time() >= self.began + limit:
                    os.killpg(process.pid, signal.SIGKILL)
                time.sleep(_POLL_SECONDS)
        ended = time.time()
        self._look(is_new, said=log_file)
        self.seconds = ended - self.began
        if process.returncode == 0:
            return None
        if process.returncode != -signal.SIGKILL or limit is None:
            raise RuntimeError(f"exit code {process.returncode}:\n{log_file.read_text()}")
        last = max([self.began, *self.marks.values()])
        return {
            "after_seconds": round(self.seconds, 2),
            "stages_done": len(self.marks),
            "of_them_before": len(before),
            "lost_seconds": round(ended - last, 2),
        }

    def seconds_by_stage(self) -> dict[str, float]:
        """Return the time from one mark to the next."""
        times = [self.began, *self.marks.values()]
        return {name: round(end - start, 2) for name, start, end in zip(self.marks, times, times[1:], strict=False)}

    def _scratches(self) -> list[Path]:
        return list(self.output.parent.glob(f".{self.output.name}.unfinished-*/.scratch"))

    def _look(self, is_new: bool, said: Path) -> None:
        """Note the marks, and whether the work has begun, which the command says if it goes on with old work.

        Raises AssertionError if a mark was written again.
        """
        found: dict[str, float] = {}
        for scratch in self._scratches():
            if not self.began and (is_new or "continuing unfinished work" in said.read_text()):
                self.began = time.time()
            for mark in scratch.glob("[!.]*.json"):
                with suppress(FileNotFoundError):
                    found[mark.stem] = mark.stat().st_mtime
        for name, moment in sorted(found.items(), key=lambda item: item[1]):
            assert self.marks.setdefault(name, moment) == moment, f"{name} was done again"


def write_raw(folder: Path, kind: str, rows: int) -> list[str]:
    """Write raw data; return the arguments of `preprocess` but for the output."""
    raw = folder / "raw"
    if kind != "table":
        source, recipe = _GENERATED[kind]
        rayrec.generate(source, rows, raw, progress=False)
        generated = source_of(source).generated
        assert generated is not None
        split = ["--set", f"preprocess.split.kind={generated.split}"]
        return [recipe, "--input", str(raw / generated.path), *split]
    raw.mkdir(parents=True)
    write_log(raw, rows, 4)
    write_side_tables(raw)
    recipe_file = folder / "recipe.yaml"
    source_section = {"kind": "table", "tables": side_tables(raw), **SOURCE}
    preprocess = {"split": SPLIT, "frequency_limit": 15}
    model = {"kind": "dcnv2", "embedding_dim": 8}
    sections = {"source": source_section, "preprocess": preprocess, "model": model}
    recipe_file.write_text(yaml.safe_dump(sections, sort_keys=False))
    return [str(recipe_file), "--input", str(raw / "csv")]


def files_of(dataset: Path) -> dict[str, str]:
    """Return the SHA-256 of every file but the result, which has the time that the command took."""
    files = (path for path in sorted(dataset.rglob("*")) if path.is_file() and path.name != RESULT_FILE)
    return {path.relative_to(dataset).as_posix(): sha256_of(path) for path in files}


if __name__ == "__main__":
    main()
