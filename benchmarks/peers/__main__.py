"""rayrec beside its peers: the same data and model, in turns, on this machine.

    python -m benchmarks.peers [--rounds 5] [--only CASE ...] [--beside NEIGHBOURS] [--environments build/peers]

- `preprocess`, `preprocess_4m`: one and four million generated rows of Criteo's layout to vocabularies, ids,
  logarithms, shuffled Parquet files; seconds of the whole program, and the most memory that its processes have for
  themselves.
- `table`: a generated table of a million rows and 31 columns to scores of 100,000 other rows; seconds of `rayrec
  inspect`, `run` and `predict` together, and the AUC of the scores.
- `dlrm`: DLRM with 26 tables of 100,000 x 64, float32, SGD, batches of 8,192; samples/s after ten steps.
- `wide_deep`: Wide & Deep on the same rows with tables of width 16, Adagrad; samples/s of the second epoch.
- `neumf`: NeuMF as the NCF paper's code has it by default, on a million generated interactions with four negatives
  each, Adam; samples/s of the second epoch.
- `request`, `requests`: a DLRM of Criteo's shape behind HTTP with one thread; rows/s of one client that asks for a row
  at a time, and of four that ask for 256.

rayrec's side is what a user runs: `rayrec preprocess` and `rayrec train`, Ray included, reading from disk. The peers
are small programs in `benchmarks/peers/programs`, written as their users write them; rows to train on are in memory
before the clock starts. A server written by hand, with FastAPI, shares the torch module with rayrec; one without a
framework, in NumPy, shares nothing. polars, DeepCTR-Torch, RecBole and that server are installed into environments of
their own (a minute, once); DuckDB, plain torch, TorchRec, FBGEMM, LightGBM and PySpark run in rayrec's, in the same
versions. Where pip finds no CPU build of torch, set
PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu.

Results go to benchmarks/results/peers.json, by case and condition; a table is printed. The ratio is rayrec's speed
divided by the peer's, of one round; its median and its extremes over the rounds are given. With `--beside`, the busy
loops of `benchmarks.conditions` run all the while that sides do.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import yaml
from pyarrow import csv
from sklearn.metrics import roc_auc_score

from benchmarks import serving
from benchmarks.conditions import ALONE, NEIGHBOURS, neighbours
from benchmarks.mixed_table import LABEL, mixed_table
from benchmarks.peers.environments import python_of
from benchmarks.process_tree import MIB, sampled
from cluster.java import provide_java
from jobs.benchmark_serve import Post, measured
from jobs.command.result import text_table
from jobs.serve import ServeRequest
from jobs.serve import serving as serve
from rayrec.common.machine import Machine, available_cpus, free_port
from rayrec.common.progress import SilentProgress
from rayrec.features.schema import Schema
from rayrec.inference.predictor import load_model
from rayrec.store.files import write_json
from rayrec.training.run.folder import HISTORY_FILE
from rayrec.training.run.history import read_history
from tests.builders import make_dataset
from tests.model_folders import make_model_folder

REPOSITORY = Path(__file__).resolve().parents[2]
RESULTS = REPOSITORY / "benchmarks" / "results" / "peers.json"
THREADS = available_cpus()

FREQUENCY_LIMIT = 10
TABLE_CASE_ROWS, HELD_OUT_ROWS = 1_000_000, 100_000
BATCH, WARM_UP, STEPS = 8192, 10, 30
TABLE_ROWS, DIM, BOTTOM_MLP, TOP_MLP = 100_000, 64, [512, 256, 64], [512, 256]
WIDE_DEEP_DIM, WIDE_DEEP_MLP = 16, [512, 256]
SECONDS = 5.0
"""Length of each measurement of a server."""
INTERACTIONS, NEGATIVES, FACTORS, NEUMF_MLP = 1_000_000, 4, 8, [64, 32, 16, 8]

_BARE = {"evaluations_per_epoch": 0, "checkpoint": {"keep_best": None, "every_minutes": None}}
"""Training without what the peers' programs do not do."""

Side = Callable[[Path], dict[str, Any]]
"""Does the work once, given a folder that is not there yet, and says what it measured."""


@dataclass(frozen=True)
class Case:
    """The same work, done by rayrec and by peers."""

    prepare: Callable[[Path, Path, ExitStack], dict[str, Side]]
    """Makes the data in a folder and, with the folder of environments, the sides; the first is rayrec's.

    What the sides need until the end is put on the stack.
    """
    figure: str
    """What is compared, a key of what the sides say."""
    equal: str
    """Another key, which has to agree: the sides did the same work."""
    tolerance: float = 0.0
    shown: tuple[str, ...] = ()
    """What else the table gives of each side."""


def _preprocess(rows: int, folder: Path, environments: Path, stack: ExitStack) -> dict[str, Side]:
    _rayrec("generate", "criteo", "--rows", str(rows), "--output", str(folder / "raw"))
    raw = folder / "raw" / "criteo.tsv"

    def by_rayrec(output: Path) -> dict[str, Any]:
        arguments = ("preprocess", "dlrm-criteo-small", "--input", f"train={raw}", "--output", str(output))
        with _cost() as cost:
            _rayrec(*arguments)
        ids = {feature.name: feature.cardinality - 1 for feature in Schema.load(output).categorical}
        return {**cost, "ids": ids}

    def by(python: Path, program: str, output: Path) -> dict[str, Any]:
        with _cost() as cost:
            found = _program(python, program, {"limit": FREQUENCY_LIMIT, "input": str(raw), "output": str(output)})
        return {**found, **cost}

    return {
        "rayrec preprocess": by_rayrec,
        "polars": partial(by, python_of("polars", environments), "polars_preprocess"),
        "DuckDB": partial(by, Path(sys.executable), "duckdb_preprocess"),
        "PySpark": partial(by, Path(sys.executable), "spark_preprocess"),
    }


@contextmanager
def _cost() -> Iterator[dict[str, Any]]:
    """Fill in the seconds of the programs that the block runs, and their memory."""
    found: dict[str, Any] = {}
    own, began = psutil.Process().memory_full_info().uss, time.perf_counter()
    with sampled(psutil.Process(), {}, 0.2) as seen:
        yield found
    found.update(seconds=time.perf_counter() - began, peak_mib=(seen.largest["all processes"] - own) // MIB)


def _table_case(folder: Path, environments: Path, stack: ExitStack) -> dict[str, Side]:
    rows = mixed_table(TABLE_CASE_ROWS + HELD_OUT_ROWS)
    train, held_out = folder / "train.csv", folder / "held-out.csv"
    csv.write_csv(rows.slice(0, TABLE_CASE_ROWS), train)
    csv.write_csv(rows.slice(TABLE_CASE_ROWS), held_out)
    label = rows[LABEL].slice(TABLE_CASE_ROWS).to_numpy()

    def measured_by(scores: Path) -> dict[str, Any]:
        found = pq.read_table(scores)["score"].to_numpy()
        return {"rows": len(found), "auc": float(roc_auc_score(label, found))}

    def by_rayrec(output: Path) -> dict[str, Any]:
        output.mkdir()
        recipe, run, scores = output / "recipe.yaml", output / "run", output / "scores"
        began = time.perf_counter()
        _rayrec("inspect", str(train), "--label", LABEL, "--output", str(recipe))
        _rayrec("run", str(recipe), "--input", str(train), "--output", str(run))
        _rayrec("predict", str(run / "model"), "--raw", "--input", str(held_out), "--output", str(scores))
        return {"seconds": time.perf_counter() - began, **measured_by(scores / "scores")}

    def by_lightgbm(output: Path) -> dict[str, Any]:
        output.mkdir()
        scores = output / "scores.parquet"
        files = {"train": str(train), "held_out": str(held_out), "scores": str(scores)}
        arguments = {**files, "label": LABEL, "threads": THREADS}
        return {**_program(Path(sys.executable), "lightgbm_table", arguments), **measured_by(scores)}

    return {"rayrec inspect, run, predict": by_rayrec, "LightGBM": by_lightgbm}


def _encoded_rows(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return a dataset of Criteo's shape, and the arguments with which programs read its rows."""
    dataset = make_dataset(
        folder / "dataset",
        BATCH * (WARM_UP + STEPS),
        numeric=13,
        categorical=26,
        cardinalities=(TABLE_ROWS,),
        rows_per_part=8 * BATCH,
        rows_per_row_group=2 * BATCH,
    )
    parts = [str(dataset.folder / part.path) for part in dataset.split("train").parts]
    sizes = {"batch": BATCH, "warmup": WARM_UP, "steps": STEPS, "rows_of_table": TABLE_ROWS}
    return dataset.folder, {"parts": parts, **sizes, "threads": THREADS}


def _dlrm(folder: Path, environments: Path, stack: ExitStack) -> dict[str, Side]:
    dataset, rows = _encoded_rows(folder)
    arguments = {**rows, "dim": DIM, "bottom_mlp": BOTTOM_MLP, "top_mlp": TOP_MLP, "lr": 0.1}
    sgd = {"kind": "sgd", "lr": 0.1}
    model = {"kind": "dlrm", "embedding_dim": DIM, "bottom_mlp": BOTTOM_MLP, "top_mlp": TOP_MLP, "interaction": "dot"}
    train = {"epochs": 1, "log_every_steps": WARM_UP, "embedding_optimizer": sgd, "dense_optimizer": sgd}
    recipe = _recipe(folder, model, {"global_batch_size": BATCH, **train})
    here = Path(sys.executable)
    return {
        "rayrec train": partial(_train, recipe, dataset, 1),
        "rayrec train, 2 workers": partial(_train, recipe, dataset, 2),
        "plain torch": lambda _: _program(here, "torch_dlrm", arguments),
        "TorchRec by hand": lambda _: _program(here, "torchrec_dlrm", arguments),
        "FBGEMM by hand": lambda _: _program(here, "tbe_dlrm", arguments),
    }


def _wide_deep(folder: Path, environments: Path, stack: ExitStack) -> dict[str, Side]:
    dataset, rows = _encoded_rows(folder)
    arguments = {**rows, "dim": WIDE_DEEP_DIM, "mlp": WIDE_DEEP_MLP, "lr": 0.01}
    adagrad = {"kind": "adagrad", "lr": 0.01}
    optimizers = {"embedding_optimizer": adagrad, "dense_optimizer": adagrad}
    model = {"kind": "wide_deep", "embedding_dim": WIDE_DEEP_DIM, "mlp": WIDE_DEEP_MLP}
    train = {"epochs": 2, "log_every_steps": WARM_UP, **optimizers, "parts": {"wide": optimizers}}
    recipe = _recipe(folder, model, {"global_batch_size": BATCH, **train})
    deepctr = python_of("deepctr", environments)
    return {
        "rayrec train": partial(_train, recipe, dataset, 1),
        "DeepCTR-Torch": lambda _: _program(deepctr, "deepctr_wide_deep", {**arguments, "steps": WARM_UP + STEPS}),
    }


def _neumf(folder: Path, environments: Path, stack: ExitStack) -> dict[str, Side]:
    _rayrec("generate", "interactions", "--rows", str(INTERACTIONS), "--output", str(folder / "raw"))
    ratings = folder / "raw" / "ratings.csv"
    adam = {"kind": "adam", "lr": 0.001}
    model = {"kind": "neumf", "factors": FACTORS, "mlp": NEUMF_MLP, "dropout": 0.0, "gmf_output": "learned"}
    split = {"kind": "leave_one_out", "min_interactions": 0, "validation": True}
    train = {
        "global_batch_size": BATCH // (1 + NEGATIVES) * (1 + NEGATIVES),
        "epochs": 2,
        "log_every_steps": 100,
        "embedding_optimizer": adam,
        "dense_optimizer": adam,
        "sharding": {"default": "data_parallel"},
        "negatives": {"per_positive": NEGATIVES},
        "ingest": {"in_memory": True},
    }
    recipe = _recipe(folder, model, train, source={"kind": "interactions"}, preprocess={"split": split})
    _rayrec("preprocess", str(recipe), "--input", str(ratings), "--output", str(folder / "dataset"))
    arguments = {
        "ratings": str(ratings),
        "factors": FACTORS,
        "mlp": NEUMF_MLP,
        "negatives": NEGATIVES,
        "batch": train["global_batch_size"],
        "lr": adam["lr"],
        "threads": THREADS,
    }
    recbole = python_of("recbole", environments)
    return {
        "rayrec train": partial(_train, recipe, folder / "dataset", 1),
        "RecBole": lambda output: _program(recbole, "recbole_neumf", {**arguments, "folder": str(output)}),
    }


def _serving(rows: int, clients: int, folder: Path, environments: Path, stack: ExitStack) -> dict[str, Side]:
    model = folder / "dlrm"
    make_model_folder(model, config=serving.CONFIG, numeric=13, categorical=26)
    url = stack.enter_context(serve(ServeRequest(model=(model,), port=free_port()), SilentProgress()))
    by_hand = stack.enter_context(serving.servers_by_hand(model, environments))
    posts = serving.posts_of(load_model(model), rows, url, by_hand)
    serving.require_equal_scores(posts)

    def measure(post: Post, _: Path) -> dict[str, Any]:
        found = measured(post, clients, SECONDS)
        return {"rows_per_second": rows * found["requests_per_second"], "errors": found["errors"]}

    return {name: partial(measure, post) for name, post in posts.items()}


CASES = {
    "preprocess": Case(partial(_preprocess, 1_000_000), "seconds", equal="ids", shown=("peak_mib",)),
    "preprocess_4m": Case(partial(_preprocess, 4_000_000), "seconds", equal="ids", shown=("peak_mib",)),
    "table": Case(_table_case, "seconds", equal="rows", shown=("auc",)),
    # TorchRec's layers start with other weights.
    "dlrm": Case(_dlrm, "samples_per_second", equal="loss", tolerance=0.02),
    "wide_deep": Case(_wide_deep, "samples_per_second", equal="loss", tolerance=0.02),
    "neumf": Case(_neumf, "samples_per_second", equal="loss", tolerance=0.05),
    "request": Case(partial(_serving, 1, 1), "rows_per_second", equal="errors"),
    "requests": Case(partial(_serving, 256, 4), "rows_per_second", equal="errors"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="CASE")
    parser.add_argument(
        "--beside", choices=NEIGHBOURS[1:], default=ALONE, metavar="NEIGHBOURS", help=str(NEIGHBOURS[1:])
    )
    parser.add_argument("--environments", type=Path, default=Path("build/peers"), help="folder of the peers' packages")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    provide_java()
    results = json.loads(options.output.read_text()) if options.output.exists() else {}
    for name in options.only:
        machine = Machine()
        with (
            tempfile.TemporaryDirectory(prefix="rayrec-peers-", ignore_cleanup_errors=True) as folder,
            ExitStack() as stack,
        ):
            sides = CASES[name].prepare(Path(folder), options.environments.resolve(), stack)
            with neighbours(options.beside):
                rounds = _rounds(CASES[name], sides, Path(folder), options.rounds)
        key = name if options.beside == ALONE else f"{name}, {options.beside}"
        table = _table(CASES[name], rounds)
        results[key] = {"machine": machine.described(), "condition": options.beside, "rounds": rounds, "table": table}
        write_json(options.output, results)
        print(f"{key}\n{text_table(table)}\n", flush=True)


def _rounds(case: Case, sides: dict[str, Side], folder: Path, count: int) -> list[dict[str, dict[str, Any]]]:
    """Return what each side measured, round after round."""
    rounds = []
    for number in range(count):
        found = {}
        for index, (name, side) in enumerate(sides.items()):
            found[name] = side(folder / f"{number}-{index}")
            print(f"round {number + 1}: {name}: {found[name][case.figure]:,.1f}", file=sys.stderr, flush=True)
        _require_same_work(case, found)
        rounds.append(found)
    return rounds


def _require_same_work(case: Case, found: dict[str, dict[str, Any]]) -> None:
    """Exit if a side ended with another result than rayrec: its speed would say nothing."""
    (_, ours), *others = ((name, measured[case.equal]) for name, measured in found.items())
    for name, theirs in others:
        same = abs(ours - theirs) <= case.tolerance if case.tolerance else ours == theirs
        if not same:
            raise SystemExit(f"{name}: {case.equal} is {theirs}, rayrec's {ours}; the work differs")


def _table(case: Case, rounds: list[dict[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    ours = [next(iter(found.values()))[case.figure] for found in rounds]
    table = []
    for name in rounds[0]:
        values = [found[name][case.figure] for found in rounds]
        ratios = [mine / theirs for mine, theirs in zip(ours, values, strict=True)]
        if case.figure == "seconds":
            ratios = [1 / ratio for ratio in ratios]
        table.append({
            "side": name,
            case.figure: round(statistics.median(values), 1),
            **{key: round(statistics.median(found[name][key] for found in rounds), 4) for key in case.shown},
            "rayrec's speed / its": round(statistics.median(ratios), 2),
            "from": round(min(ratios), 2),
            "to": round(max(ratios), 2),
        })  # fmt: skip
    return table


def _train(recipe: Path, dataset: Path, workers: int, output: Path) -> dict[str, Any]:
    """Train; samples/s (median) and the mean loss of the records of the second half, the warm-up left out."""
    _rayrec("train", str(recipe), "--data", str(dataset), "--output", str(output), "--workers", str(workers))
    records = [record for record in read_history(output / HISTORY_FILE) if record["event"] == "train"]
    epochs = records[-1]["epoch"]
    measured = [record for record in records[1:] if record["epoch"] == epochs]
    return {
        "samples_per_second": statistics.median(record["samples_per_second"] for record in measured),
        "loss": statistics.fmean(record["loss"] for record in measured),
    }


def _recipe(folder: Path, model: dict[str, Any], train: dict[str, Any], **sections: dict[str, Any]) -> Path:
    path = folder / "recipe.yaml"
    train = {"device": "cpu", "precision": "fp32", **_BARE, **train}
    content = {"name": "peers", "source": {"kind": "criteo"}, "model": model, "train": train, **sections}
    path.write_text(yaml.safe_dump(content))
    return path


def _rayrec(*arguments: str) -> None:
    """Run a command as a user does, in an environment in which nothing was set for Ray."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    command = [str(Path(sys.executable).parent / "rayrec"), *arguments]
    _checked(subprocess.run(command, env=own, capture_output=True, text=True, check=False))


def _program(python: Path, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return what a peer's program printed last."""
    command = [str(python), "-m", f"benchmarks.peers.programs.{name}", json.dumps(arguments)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    # Some write logs into the folder that they run in.
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    found: dict[str, Any] = json.loads(_checked(done).splitlines()[-1])
    return found


def _checked(done: "subprocess.CompletedProcess[str]") -> str:
    if done.returncode:
        raise SystemExit(f"{' '.join(done.args)[:300]} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout


if __name__ == "__main__":
    main()
