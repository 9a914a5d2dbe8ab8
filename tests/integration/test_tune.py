"""Sweeps on real Ray: on two CPUs, killed and resumed, with trials that cannot be trained; exchange of checkpoints."""

import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from cluster.local_cluster import ray_head
from jobs.command import RESULT_FILE
from jobs.command.placement import trial_training
from jobs.train import train_recipe
from rayrec.common.errors import ConfigError
from rayrec.common.progress import SilentProgress
from rayrec.ingest.dataset import Dataset
from rayrec.recipes import dump_recipe, load_recipe, read_recipe
from rayrec.training.run.folder import RunFolder, checkpoint_name
from rayrec.training.run.history import read_history
from tests.builders import make_dataset
from tests.environments import environment_of_open_cluster
from tests.holding import Hold
from tests.training_runs import recipe
from tune.results import SEEDS
from tune.space import parse_space
from tune.sweep_folder import Sweep
from tune.trial import EVALUATION
from tune.tuner import STATE_FOLDER, concurrent_trials

TRIALS = 4
EVALUATIONS = 3
ROWS, BATCH = 6_000, 64
STEPS = ROWS // BATCH
# The last rate makes the loss infinite.
SPACE = """
train.dense_optimizer.lr: {choice: [0.1, 0.01, 1.0e-5, 1.0e+30]}
train.embedding_optimizer.lr: {loguniform: [0.05, 1.0]}
"""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("tune") / "data"
    return make_dataset(folder, {"train": ROWS, "validation": 800, "test": 100}, numeric=3, categorical=4, seed=3)


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Streams through Ray Data, as a recipe does that says nothing else."""
    path = tmp_path_factory.mktemp("recipe") / "own.yaml"
    made = recipe(
        workers=1,
        global_batch_size=BATCH,
        epochs=1,
        ingest={"in_memory": False, "read_streams": 4},
        dense_optimizer={"kind": "adam", "lr": 0.01},
        evaluations_per_epoch=EVALUATIONS,
        log_every_steps=5,
    )
    path.write_text(dump_recipe(made))
    return path


def _trials(sweep: Path) -> dict[str, dict[str, Any]]:
    """trial.json by trial."""
    return {path.parent.name: json.loads(path.read_text()) for path in sweep.glob("trials/*/trial.json")}


def _over(sweep: Path) -> set[str]:
    return {trial for trial, record in _trials(sweep).items() if record["state"] != "running"}


def _until(step: int, history: Path) -> list[dict[str, Any]]:
    """What was trained up to a step, without the announcements of attempts."""
    return [r for r in read_history(history) if r["step"] <= step and r["event"] not in ("epoch", "phase")]


def _processes_of_trials(head: int) -> list[psutil.Process]:
    """Of actors: Tune's subclass of `Trial` with resources has this name."""
    found = []
    for child in psutil.Process(head).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # gone, or a zombie, since it was listed
            if "".join(child.cmdline()).startswith("ray::ResourceTrainable"):
                found.append(child)
    return found


def _evaluations_noted(sweep: Path, trial: str) -> int:
    """How many evaluations of a trial Tune has noted."""
    for path in sweep.glob(f"{STATE_FOLDER}/experiment_state-*.json"):
        try:
            trials = json.loads(path.read_text())["trial_data"]
        except ValueError:  # Tune writes over its own in place
            continue
        for state, metadata in trials:
            if json.loads(state)["trial_id"] == trial:
                return int(json.loads(metadata)["last_result"].get(EVALUATION, 0))
    return 0


@pytest.mark.usefixtures("ray_cluster")
def test_a_grid_runs_no_more_trials_at_once_than_it_has(recipe_file: Path, tmp_path: Path) -> None:
    """Fewer than `--trials` allows and CPUs are there for; what runs and what is recorded ask the same function."""
    space = parse_space("s.yaml", "train.dense_optimizer.lr: {choice: [0.1, 0.01]}")
    grid = Sweep(read_recipe(recipe_file), space, tmp_path, "auc", trials=30, search="grid", scheduler="none")
    assert concurrent_trials(grid, 6) == 2
    assert concurrent_trials(replace(grid, search="random"), 6) == 6
    with pytest.raises(ConfigError, match=r"--concurrent 1000: \d+ trials of 1 workers fit"):
        concurrent_trials(grid, 1000)


def _waits(hold: Hold, trial: str, checkpoint: str) -> list[int]:
    """The process of a trial that waits as it begins to write a checkpoint."""
    return [p for p, path in hold.waiting().items() if path.split("/")[1] == trial and path.endswith(checkpoint)]


@pytest.mark.minutes
def test_a_sweep_on_two_cpus_survives_kills(
    dataset: Dataset, recipe_file: Path, ray_cluster: str, tmp_path: Path
) -> None:
    """Two trials at once leave no CPU for reading. The processes of both are killed, later the driver's group."""
    space, sweep = tmp_path / "space.yaml", tmp_path / "sweep"
    space.write_text(SPACE)
    arguments = [str(recipe_file), "--data", str(dataset.folder), "--output", str(sweep)]
    arguments += ["--trials", str(TRIALS), "--scheduler", "asha", "--space", str(space), "--json"]
    own = environment_of_open_cluster()
    # Trials wait as they make a checkpoint's folder, not as they read one: before it Tune knows of no evaluation, so
    # that it stops none of them.
    first, second = (checkpoint_name(STEPS * number // EVALUATIONS) for number in (1, 2))
    hold = Hold(tmp_path / "hold", rf"trials/\w+/run/checkpoints/({first}|{second})$")

    def at(step: str) -> list[int]:
        """The processes of workers that wait at a step."""
        return [process for process, path in hold.waiting().items() if path.endswith(step)]

    with ray_head(own, num_cpus=2) as head:
        environment = {**own, "RAY_ADDRESS": head.address}
        with hold.held("jobs.tune", *arguments, environment=environment, count=2) as driver:
            hold.release(at(first)[0])
            driver.until(lambda: at(second))
            for trial in _processes_of_trials(head.pid):
                with suppress(psutil.NoSuchProcess):
                    trial.kill()
            killed = at(second)
            driver.until(lambda: set(at(second)) - set(killed))
            hold.release((set(at(second)) - set(killed)).pop())
            driver.until(lambda: _over(sweep))
            driver.kill()
        before = {trial: (sweep / "trials" / trial / "trial.json").stat().st_mtime_ns for trial in _over(sweep)}
        assert 0 < len(before) < TRIALS
        command = [sys.executable, "-m", "jobs.tune", *arguments]

        def resume(*more: str) -> "subprocess.CompletedProcess[str]":
            return subprocess.run(
                [*command, "--resume", *more], env=environment, capture_output=True, text=True, timeout=600, check=False
            )

        done = resume()
        assert done.returncode == 0, done.stderr
        tuned = load_recipe(sweep / "best.yaml")
        confirmed = resume("--confirm", "1")
    assert confirmed.returncode == 0, confirmed.stderr
    trials = _trials(sweep)
    assert len(trials) == TRIALS, done.stderr
    after = {trial: (sweep / "trials" / trial / "trial.json").stat().st_mtime_ns for trial in before}
    assert after == before, "what was over stays as it was"
    assert {record["state"] for record in trials.values()} <= {"finished", "stopped", "refused"}, done.stderr
    for trial, record in trials.items():
        diverges = record["assignment"]["train.dense_optimizer.lr"] == 1e30
        assert (record["state"] == "refused") == diverges
        evaluations = [
            r for r in read_history(sweep / "trials" / trial / "run" / "history.jsonl") if r["event"] == "evaluate"
        ]
        assert len(evaluations) == EVALUATIONS if record["state"] == "finished" else len(evaluations) <= EVALUATIONS
    (given,) = [record for record in trials.values() if record["is_given"]]
    assert given["state"] == "finished", "the given recipe is trained to its end"
    result = json.loads(done.stdout)
    assert result["execution"]["workers"] == 2
    best = result["metrics"]["validation"]["auc"]
    assert best == max(row["auc"] for row in result["details"]["trials"] if row["auc"] is not None)
    kept = list(sweep.glob("trials/*/run/checkpoints"))
    assert len(kept) == 1, "the best trial's checkpoints alone"
    # The best recipe, trained elsewhere, is the best trial.
    execution = trial_training(tuned.train)
    metrics = train_recipe(tuned, dataset, tmp_path / "run", execution, resume=False, progress=SilentProgress())
    assert metrics["validation"]["auc"] == best
    result = json.loads(confirmed.stdout)
    first, second = result["details"]["confirmed"]
    assert sorted(row["candidate"].split()[0] for row in (first, second)) == ["recipe", "trial"]
    assert result["metrics"]["validation"]["auc"] == first["auc"] > second["auc"]
    # The confirmed recipe, trained elsewhere with the other seeds, has the mean that was found.
    found = []
    for number in range(1, 1 + SEEDS):
        seed = load_recipe(recipe_file).train.seed + number
        tuned = load_recipe(sweep / "best.yaml", [f"train.seed={seed}"])
        metrics = train_recipe(
            tuned, dataset, tmp_path / f"run-{seed}", execution, resume=False, progress=SilentProgress()
        )
        found.append(metrics["validation"]["auc"])
    assert statistics.fmean(found) == first["auc"]
    assert (sweep / "report.html").stat().st_size > 5_000
    assert (sweep / "trials.csv").read_text().count("\n") == 1 + TRIALS


@pytest.mark.minutes
def test_population_based_training_goes_on_from_the_better_checkpoint(
    dataset: Dataset, recipe_file: Path, tmp_path: Path
) -> None:
    """Tune compares trials that train at the same time, so the better one waits until the other one follows it.

    The given recipe's trial is not one of them, and keeps its values.
    """
    space, sweep = tmp_path / "space.yaml", tmp_path / "sweep"
    # One of the two learns nothing at its rates.
    space.write_text("train.dense_optimizer.lr: {choice: [0.01, 1.0e-9]}\nmodel.top_mlp: {choice: [[16], [32]]}\n")
    arguments = [str(recipe_file), "--data", str(dataset.folder), "--output", str(sweep)]
    arguments += ["--trials", "3", "--space", str(space), "--search", "pbt"]
    arguments += ["--set", "train.embedding_optimizer.lr=1.0e-9", "--set", "train.seed=1"]
    first, second, last = (checkpoint_name(STEPS * number // EVALUATIONS) for number in (1, 2, 3))
    hold = Hold(tmp_path / "hold", rf"trials/\w+/run/checkpoints/({first}|{second}|{last})")
    own = environment_of_open_cluster()
    with ray_head(own, num_cpus=3) as head:
        environment = {**own, "RAY_ADDRESS": head.address, "TUNE_GLOBAL_CHECKPOINT_S": "1"}
        with hold.held("jobs.tune", *arguments, environment=environment, count=3) as driver:
            rates = {
                (record["assignment"]["train.dense_optimizer.lr"], record["is_given"]): trial
                for trial, record in _trials(sweep).items()
            }
            given, better, worse = rates[0.01, True], rates[0.01, False], rates[1e-9, False]

            def let(trial: str, step: str, until: Callable[[], Any]) -> None:
                """Let a trial write the checkpoint of a step, once it is there."""
                driver.until(lambda: _waits(hold, trial, step))
                hold.release(_waits(hold, trial, step)[0])
                driver.until(until)

            let(worse, first, until=lambda: _evaluations_noted(sweep, worse) == 1)
            let(better, first, until=lambda: _evaluations_noted(sweep, better) == 1)
            let(better, second, until=lambda: _evaluations_noted(sweep, better) == 2)
            let(worse, second, until=lambda: _trials(sweep)[worse]["run"] != "run")
            hold.end()
            driver.wait()
    assert _trials(sweep)[given]["run"] == "run"
    record = _trials(sweep)[worse]
    step = STEPS * 2 // EVALUATIONS
    assert record["run"] == f"run-{better}-{step}"
    assert record["assignment"].keys() == {"train.dense_optimizer.lr"}
    run_folder = RunFolder.open(sweep / "trials" / worse / record["run"])
    theirs = _until(step, sweep / "trials" / better / "run" / "history.jsonl")
    assert _until(step, run_folder.history) == theirs
    assert sum(r["event"] == "evaluate" for r in read_history(run_folder.history)) == EVALUATIONS
    assert run_folder.recipe.train.dense_optimizer.lr == record["assignment"]["train.dense_optimizer.lr"]
    assert record["assignment"]["train.dense_optimizer.lr"] in {0.01, 1e-9}
    best = yaml.safe_load((sweep / "best.yaml").read_text())
    assert best["train"]["dense_optimizer"]["lr"] == 0.01
    result = json.loads((sweep / RESULT_FILE).read_text())
    assert result["details"]["trials"][0]["auc"] == result["metrics"]["validation"]["auc"]
