"""Do two checkouts of rayrec compute the same bits?

    python -m benchmarks.same_bits --before CHECKOUT [--work FOLDER] [--rows 6000] [--tolerance 0] [--output FILE]

Each checkout runs its own `rayrec` commands on a Ray of its own: the three generators, `preprocess`, a short training
of the four models on one and on two workers, `export`, and requests to `rayrec serve`. Files are compared by their
SHA-256, numbers exactly or to a tolerance, which suits a change that adds up in another order. The program prints one
row for each comparison with its first difference, and exits with 1 if any row differs. It knows recipes, commands,
folders and HTTP only, so that the code behind them may change.

CHECKOUT needs an environment with its dependencies in `.venv`, as `make setup` makes it. What a commit computes
is kept in `--work` and found there by the next run; without `--work` nothing is kept.
"""

import argparse
import csv
import hashlib
import json
import math
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import chdir
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import requests
from rich.console import Console
from rich.table import Table
from safetensors.numpy import load_file

from cluster.local_cluster import ray_head
from rayrec.common.machine import Machine, free_port
from rayrec.store.files import write_json
from tests.environments import environment_of_open_cluster

REPOSITORY = Path(__file__).resolve().parents[1]
RECIPES = {
    "dlrm": "dlrm-criteo-debug",
    "dcnv2": "dcnv2-criteo-debug",
    "neumf": "neumf-ml-1m-debug",
    "wide_deep": "wide-deep-outbrain-debug",
}
DATASETS = {"criteo": ("dlrm", "criteo.tsv"), "interactions": ("neumf", "ratings.csv"), "outbrain": ("wide_deep", "")}
"""The model whose recipe makes each dataset folder, and the raw file or folder that it reads."""
DATA_OF = {"dlrm": "criteo", "dcnv2": "criteo", "neumf": "interactions", "wide_deep": "outbrain"}
BROKEN_LINES = {"criteo.tsv": "1\tno number\n", "ratings.csv": "1,2\n"}
"""A line that preprocessing must reject, added to a raw file."""
TRAINING = ("--set", "train.epochs=1", "--set", "train.log_every_steps=1")
MEASURED = {"seconds", "samples_per_second", "rows_per_second", "data_wait_share", "peak_memory_bytes", "overflows"}
"""Keys of history.jsonl that differ from run to run."""

SHA256 = "sha256"
"""Of a tensor; numbers that may differ by a tolerance are not compared by it."""


@dataclass
class Side:
    """A checkout, the folder that it writes to, and what it computed."""

    checkout: Path
    folder: Path
    rows: int

    def compute(self) -> dict[str, Any]:
        """Return what the checkout computes: the name of a comparison -> nested dicts and lists of what is compared."""
        self.folder.mkdir(parents=True, exist_ok=True)
        cache = self.folder / "computed.json"
        computed = json.loads(cache.read_text()) if cache.exists() else {}
        parts: dict[str, Callable[[], dict[str, Any]]] = {data: partial(self._dataset, data) for data in DATASETS}
        parts |= {model: partial(self._model, model) for model in RECIPES}
        parts["answers"] = self._answers
        missing = [name for name in parts if name not in computed]
        if missing:
            # Processes of Ray import from the folder in which Ray was started.
            ray = ray_head(self._environment, num_cpus=8, program=self.checkout / ".venv/bin/ray")
            with chdir(self.checkout), ray as head:
                self._environment["RAY_ADDRESS"] = head.address
                for name in missing:
                    computed[name] = parts[name]()
                    cache.write_text(json.dumps(computed))
        # From JSON, so that both sides have the same types, whether they were computed now or before.
        return {what: found for part in json.loads(cache.read_text()).values() for what, found in part.items()}

    @cached_property
    def _environment(self) -> dict[str, str]:
        return {**environment_of_open_cluster(), "PYTHONPATH": str(self.checkout)}

    @property
    def _program(self) -> list[str]:
        return [str(self.checkout / ".venv/bin/python"), "-m", "rayrec.cli"]

    def _new(self, kind: str, name: str) -> Path:
        """Return a folder that a command writes; what a run that was interrupted left there is removed."""
        shutil.rmtree(self.folder / kind / name, ignore_errors=True)
        return self.folder / kind / name

    def _rayrec(self, *arguments: object) -> str:
        """Run a command in the folder; return what it prints. Raises RuntimeError if it fails."""
        print(f"{self.checkout.name}: rayrec {' '.join(map(str, arguments))}", file=sys.stderr, flush=True)
        command = [*self._program, *map(str, arguments)]
        done = subprocess.run(
            command, cwd=self.checkout, env=self._environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}:\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def _dataset(self, data: str) -> dict[str, Any]:
        """Return the generated raw files, and the dataset folder that the debug recipe makes of them."""
        model, file = DATASETS[data]
        raw, dataset = self._new("raw", data), self._new("dataset", data)
        # One generator for both sides: a later one may draw other rows.
        Side(REPOSITORY, self.folder, self.rows)._rayrec("generate", data, "--rows", self.rows, "--output", raw)
        generated = _hashes(raw)
        if file in BROKEN_LINES:
            with (raw / file).open("a") as lines:
                lines.write(BROKEN_LINES[file])
        self._rayrec("preprocess", RECIPES[model], "--input", raw / file, "--output", dataset)
        schema = json.loads((dataset / "schema.json").read_text())
        manifest = json.loads((dataset / "manifest.json").read_text())
        rejected = [row for path in sorted(dataset.glob("rejected/*")) for row in pq.read_table(path).to_pylist()]
        return {
            f"{data}: raw files": generated,
            f"{data}: dataset folder": _hashes(dataset, without=("manifest.json", "schema.json", "rejected")),
            f"{data}: schema.json": schema,
            f"{data}: splits of manifest.json": manifest["splits"],
            f"{data}: rejected rows": json.loads(json.dumps(rejected, default=str).replace(str(self.folder), "")),
        }

    def _model(self, model: str) -> dict[str, Any]:
        """Return the losses, metrics and weights of a short training on one and on two workers."""
        computed: dict[str, Any] = {}
        for workers in (1, 2):
            run, exported = (self._new(kind, f"{model}-{workers}") for kind in ("run", "model"))
            data = self.folder / "dataset" / DATA_OF[model]
            self._rayrec("train", RECIPES[model], "--data", data, "--output", run, "--workers", workers, *TRAINING)
            self._rayrec("export", run, "--output", exported)
            history = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
            numbers = [_without_measured(record) for record in history if record["event"] in {"train", "evaluate"}]
            tables = {file.stem: load_file(file) for file in (exported / "weights").rglob("*.safetensors")}
            computed |= {
                f"{model}, workers: {workers}: losses": [number for number in numbers if "loss" in number],
                f"{model}, workers: {workers}: metrics": [number for number in numbers if "loss" not in number],
                f"{model}, workers: {workers}: weights": {
                    f"{table}/{name}": {
                        SHA256: hashlib.sha256(value.tobytes()).hexdigest(),
                        "mean": float(value.mean(dtype=np.float64)),
                        "standard deviation": float(value.std(dtype=np.float64)),
                    }
                    for table, tensors in tables.items()
                    for name, value in tensors.items()
                },
            }
        return computed

    def _answers(self) -> dict[str, Any]:
        """Return what `rayrec serve` answers with the models of two workers."""
        port = free_port()
        models = [f"{model}={self.folder / 'model' / f'{model}-2'}" for model in RECIPES]
        command = [*self._program, "serve", *models, "--port", str(port)]
        with (self.folder / "serve.log").open("w") as log:
            server = subprocess.Popen(
                command, cwd=self.checkout, env=self._environment, stdout=log, stderr=subprocess.STDOUT
            )
        url = f"http://127.0.0.1:{port}/v1/models"
        answers: dict[str, Any] = {}
        try:
            while not all(_answers(f"{url}/{model}:predict", {"instances": [{}]}) for model in RECIPES):
                assert server.poll() is None, (self.folder / "serve.log").read_text()
                time.sleep(1)
            for model in RECIPES:
                examples = json.loads((self.folder / "model" / f"{model}-2" / "examples.json").read_text())
                answer = _answers(f"{url}/{model}:predict", {"instances": examples["instances"]})
                answers[f"{model}: :predict over HTTP"] = {"examples": examples, "predictions": answer["predictions"]}
            users = sorted({row["userId"] for row in _rows(self.folder / "raw/interactions/ratings.csv")})[:20]
            answers["neumf: :recommend over HTTP"] = [
                _answers(f"{url}/neumf:recommend", {"user": user, "k": 10})["items"] for user in users
            ]
            answers["wide_deep: :rank over HTTP"] = self._rankings(f"{url}/wide_deep:rank")
            return answers
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(timeout=120)

    def _rankings(self, url: str) -> list[list[Any]]:
        """Return the candidates with their scores, best first, for the first displays of the test clicks."""
        candidates: dict[str, list[int]] = {}
        for row in _rows(self.folder / "raw/outbrain/clicks_test.csv"):
            candidates.setdefault(row["display_id"], []).append(int(row["ad_id"]))
        events = {row.pop("display_id"): row for row in _rows(self.folder / "raw/outbrain/events.csv")}
        rankings = []
        for display, ads in list(candidates.items())[:20]:
            texts = {"uuid", "geo_location"}
            context = {name: value if name in texts else int(value) for name, value in events[display].items() if value}
            answer = _answers(url, {"context": context, "candidates": ads})
            rankings.append([sorted(entry.values()) for entry in answer["candidates"]])
        return rankings


def _hashes(folder: Path, without: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the SHA-256 of each file in a folder, but for results and what `without` names."""
    names = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    kept = {name: path for name, path in names.items() if path.name != "result.json" and not name.startswith(without)}
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in kept.items()}


def _without_measured(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record of history.jsonl without what was measured."""
    return {key: value for key, value in record.items() if key not in MEASURED}


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def _answers(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a POST; empty if it is refused or nobody listens yet."""
    try:
        answer = requests.post(url, json=body, timeout=60)
    except requests.ConnectionError:
        return {}
    return answer.json() if answer.ok else {}


def flat(value: Any, where: str = "") -> dict[str, Any]:
    """Return the numbers and texts of nested dicts and lists, by their path."""
    if not isinstance(value, dict | list) or not value:
        return {where: value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return {path: leaf for key, item in items for path, leaf in flat(item, f"{where}/{key}").items()}


def first_difference(before: dict[str, Any], after: dict[str, Any], tolerance: float = 0.0) -> str | None:
    """Return the first path whose values differ, with both; None if all are equal, or numbers within `tolerance`."""
    for path in {**before, **after}:
        old, new = (side.get(path, "nothing") for side in (before, after))
        if tolerance and path.endswith(f"/{SHA256}"):
            continue
        is_near = isinstance(old, float) and isinstance(new, float) and math.isclose(old, new, abs_tol=tolerance)
        if old != new and not is_near:
            return f"{path}: {str(old)[:80]} before, {str(new)[:80]} after"
    return None


def largest_difference(before: dict[str, Any], after: dict[str, Any]) -> float:
    """Return the largest difference between two numbers with a fraction at the same path; 0 if there are none."""
    pairs = [(before[path], after[path]) for path in before.keys() & after.keys()]
    return max((abs(old - new) for old, new in pairs if isinstance(old, float) and isinstance(new, float)), default=0.0)


def _folder(checkout: Path, work: Path | None, temporary: Path) -> Path:
    """Return where a checkout writes: by its commit in `work`, so that another run finds it, if nothing is changed
    since.
    """

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=checkout, capture_output=True, text=True, check=True).stdout

    keeps = work is not None and not git("status", "--porcelain")
    return (work if work and keeps else temporary / checkout.name).resolve() / git("rev-parse", "HEAD").strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="the other checkout")
    parser.add_argument("--work", type=Path, help="folder that keeps what commits computed")
    parser.add_argument("--rows", type=int, default=6000, help="rows of each generated data set")
    parser.add_argument("--tolerance", type=float, default=0.0, help="how much numbers with a fraction may differ")
    parser.add_argument("--output", type=Path, help="file to write the table to, as JSON")
    options = parser.parse_args()
    machine = Machine()
    before = options.before.resolve()
    with tempfile.TemporaryDirectory(prefix="rayrec-same-bits-") as temporary:
        folders = [_folder(checkout, options.work, Path(temporary)) for checkout in (before, REPOSITORY)]
        expected = Side(before, folders[0] / f"rows-{options.rows}", options.rows).compute()
        actual = Side(REPOSITORY, folders[1] / f"rows-{options.rows}", options.rows).compute()
    sides = {what: (flat(expected.get(what)), flat(actual.get(what))) for what in {**expected, **actual}}
    differences = {what: first_difference(*values, options.tolerance) for what, values in sides.items()}
    largest = {what: largest_difference(*values) for what, values in sides.items()}
    table = Table(
        "what", "values", "largest difference", "equal, or the first difference", title=f"{before} and {REPOSITORY}"
    )
    for what, difference in differences.items():
        table.add_row(what, str(len(sides[what][0])), f"{largest[what]:.1e}", difference or "equal")
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    if options.output:
        report = {"commits": [folder.name for folder in folders], "rows": options.rows}
        report |= {"tolerance": options.tolerance, "largest_differences": largest, "differences": differences}
        write_json(options.output, {"machine": machine.described(), **report})
    sys.exit(any(differences.values()))


if __name__ == "__main__":
    main()
