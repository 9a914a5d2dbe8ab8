"""A trial as Tune sees it: evaluations one at a time, then the end."""

import json
from pathlib import Path
from typing import Any

import pytest

from rayrec.common.errors import DiskError, SmallClusterError, UserError
from rayrec.ingest.dataset import Dataset
from rayrec.recipes import Recipe, dump_recipe, read_recipe
from rayrec.training.run.folder import CheckpointManifest, RunProgress, checkpoint_name
from tests.builders import make_dataset
from tests.training_runs import recipe
from tune.space import parse_space
from tune.sweep_folder import State, SweepSettings, TrainFunction, TrialRecord
from tune.trial import EVALUATION, OBJECTIVE, Trial

ID = "default"
"""What Tune calls a trial that it has not named."""
SPACE = parse_space("s.yaml", "train.dense_optimizer.lr: {uniform: [0.001, 0.1]}")
AUCS = (0.6, 0.8, 0.7)


def _write_run(run: Path) -> None:
    """What training leaves of three evaluations."""
    records = [{"event": "evaluate", "step": step, "seconds": 1.0, "auc": auc} for step, auc in enumerate(AUCS, 1)]
    run.mkdir(parents=True, exist_ok=True)
    (run / "history.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    CheckpointManifest(progress=RunProgress()).save(run / "checkpoints" / checkpoint_name(len(AUCS)))


def _trains(recipe: Recipe, dataset: Dataset, run: Path, resume: bool) -> None:
    assert recipe.train.dense_optimizer.lr == 0.01
    _write_run(run)


def _diverges(recipe: Recipe, dataset: Dataset, run: Path, resume: bool) -> None:
    _write_run(run)
    raise UserError("the loss is not finite")


def _dies(recipe: Recipe, dataset: Dataset, run: Path, resume: bool) -> None:
    raise OSError("its process died")


def _fills_the_disk(recipe: Recipe, dataset: Dataset, run: Path, resume: bool) -> None:
    raise DiskError("/sweep/run: no space left on its disk")


def _finds_too_few_nodes(recipe: Recipe, dataset: Dataset, run: Path, resume: bool) -> None:
    raise SmallClusterError("train.workers: each of 2 workers needs a CPU, but Ray has 1")


def _never(recipe: Recipe, dataset: Dataset, run: Path, resume: bool) -> None:
    raise AssertionError("trained again")


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training ends at once here."""
    monkeypatch.setattr("tune.trial.pause_between_looks", lambda _: 0.01)


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    make_dataset(tmp_path / "data", {"train": 64, "validation": 16}, numeric=3, categorical=4)
    return tmp_path / "data"


def _trial(tmp_path: Path, dataset: Path, train: TrainFunction) -> Trial:
    path = tmp_path / "own.yaml"
    path.write_text(dump_recipe(recipe()))
    settings = SweepSettings(
        read_recipe(path), SPACE, tmp_path / "sweep", "auc", 4, "optuna", "none", dataset, train
    )  # fmt: skip

    class WithSettings(Trial):
        def setup(self, config: dict[str, Any], settings: SweepSettings = settings) -> None:
            super().setup(config, settings)

    return WithSettings(config={"train.dense_optimizer.lr": 0.01})


def _record(tmp_path: Path) -> TrialRecord:
    record = TrialRecord.load(tmp_path / "sweep" / "trials" / ID)
    assert record is not None
    return record


def _steps(trial: Trial) -> list[dict[str, Any]]:
    results = [trial.step()]
    while not results[-1].get("done"):
        results.append(trial.step())
    return results


def test_an_objective_is_the_best_value_so_far(tmp_path: Path, dataset: Path) -> None:
    *evaluations, end = _steps(_trial(tmp_path, dataset, _trains))
    assert [(r[EVALUATION], r[OBJECTIVE]) for r in evaluations] == [(1, 0.6), (2, 0.8), (3, 0.8)]
    assert end == {"done": True, EVALUATION: 3, OBJECTIVE: 0.8}
    assert _record(tmp_path).state == "finished"


def test_values_that_cannot_be_trained_end_without_an_objective(tmp_path: Path, dataset: Path) -> None:
    *evaluations, end = _steps(_trial(tmp_path, dataset, _diverges))
    assert len(evaluations) == 3
    assert end == {"done": True, EVALUATION: 3}
    assert (_record(tmp_path).state, _record(tmp_path).message) == ("refused", "the loss is not finite")


@pytest.mark.parametrize(
    ("train", "message"),
    [(_dies, "died"), (_fills_the_disk, "no space left"), (_finds_too_few_nodes, "each of 2 workers needs a CPU")],
)
def test_a_failure_is_raised_so_that_tune_tries_again(
    train: TrainFunction, message: str, tmp_path: Path, dataset: Path
) -> None:
    """A full disk, or a cluster that lost nodes, says nothing about the values."""
    with pytest.raises((OSError, DiskError, SmallClusterError), match=message):
        _steps(_trial(tmp_path, dataset, train))
    assert _record(tmp_path).state == "failed"
    again = _trial(tmp_path, dataset, _trains)
    assert _record(tmp_path).state == "running"
    assert len(_steps(again)) == 4


@pytest.mark.parametrize(("state", "has_objective"), [("finished", True), ("stopped", True), ("refused", False)])
def test_what_was_over_is_told_again_and_not_trained(
    state: State, has_objective: bool, tmp_path: Path, dataset: Path
) -> None:
    folder = tmp_path / "sweep" / "trials" / ID
    TrialRecord(ID, {"train.dense_optimizer.lr": 0.01}, state=state).save(folder)
    _write_run(folder / "run")
    before = (folder / "trial.json").stat().st_mtime_ns
    *evaluations, end = _steps(_trial(tmp_path, dataset, _never))
    assert [r[OBJECTIVE] for r in evaluations] == [0.6, 0.8, 0.8]
    assert (OBJECTIVE in end) == has_objective
    assert (folder / "trial.json").stat().st_mtime_ns == before
