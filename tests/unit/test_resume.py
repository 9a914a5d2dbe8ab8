"""`--resume` continues what is in the output, begins where nothing is, and leaves other folders alone."""

from pathlib import Path

import pytest

from jobs.command import execute
from jobs.train import COMMAND, TrainRequest, run
from rayrec.common.errors import ConfigError
from rayrec.common.progress import SilentProgress
from rayrec.recipes import load_recipe, read_recipe
from rayrec.training.run.folder import Origin, RunFolder
from tests.builders import make_dataset, make_recipe
from tune.space import parse_space
from tune.sweep_folder import SWEEP_FILE, SweepSettings, owned_folder

RECIPE = "dlrm-criteo-debug"


class BegunError(Exception):
    """Training was about to begin."""


@pytest.fixture
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where nothing is; the dataset is beside it."""

    def begin(*_: object, resume: bool, **__: object) -> None:
        assert resume
        raise BegunError

    make_dataset(tmp_path / "data", recipe=load_recipe(RECIPE))
    monkeypatch.setattr("jobs.train.train_recipe", begin)
    return tmp_path / "out"


@pytest.mark.parametrize("make", [lambda path: None, Path.mkdir], ids=["absent", "empty"])
def test_a_run_begins(make, output: Path) -> None:
    make(output)
    with pytest.raises(BegunError):
        _train(output)


def _train(output: Path) -> None:
    run(
        TrainRequest(recipe=RECIPE, data=output.parent / "data", output=output, resume=True, workers=1),
        SilentProgress(),
    )


FROM = Origin("/runs/7", "step-00000009", "hash", ("C1",))
OTHER = Origin("/runs/6", "step-00000009", "another hash", ("C1",))
WITH = r"run: the run was started with --warm-start /runs/7 --reset C1; --resume it with the same$"


@pytest.mark.parametrize(
    ("before", "given", "message"),
    [
        (FROM, None, WITH),
        (FROM, OTHER, WITH),
        (FROM, Origin("/runs/7", "step-00000009", "hash", ()), WITH),
        (None, FROM, r"run: the run was not warm-started; leave --warm-start out, or give another --output$"),
    ],
)
def test_a_warm_started_run_continues_from_the_same_alone(
    tmp_path: Path, before: Origin | None, given: Origin | None, message: str
) -> None:
    dataset, recipe = make_dataset(tmp_path / "data"), make_recipe()
    RunFolder.create(tmp_path / "run", recipe, dataset, dataset.schema, before)
    assert RunFolder.open(tmp_path / "run").origin == before
    assert RunFolder.resume(tmp_path / "run", recipe, dataset, before).origin == before
    with pytest.raises(ConfigError, match=message):
        RunFolder.resume(tmp_path / "run", recipe, dataset, given)


def test_reset_needs_a_warm_start(tmp_path: Path) -> None:
    request = TrainRequest(recipe=RECIPE, data=tmp_path, output=tmp_path / "out", reset=("C1",))
    with pytest.raises(ConfigError, match=r"^--reset: only for a warm start; add --warm-start"):
        execute(COMMAND, request, SilentProgress())


@pytest.mark.parametrize("make", [lambda path: None, Path.mkdir], ids=["absent", "empty"])
def test_a_sweep_begins(make, output: Path) -> None:
    make(output)
    with owned_folder(_sweep(output), resume=True):
        assert (output / SWEEP_FILE).exists()
    assert not output.exists(), "no trial has begun"


def test_a_sweep_is_continued_by_the_same_sweep_alone(output: Path) -> None:
    with owned_folder(_sweep(output), resume=False):
        (output / "trials").mkdir()
    with owned_folder(_sweep(output), resume=True):
        pass
    assert (output / "trials").exists()
    with pytest.raises(ConfigError, match="--resume needs the trials"), owned_folder(_sweep(output, 3), resume=True):
        pass


def _sweep(folder: Path, trials: int = 2) -> SweepSettings:
    space = parse_space("s.yaml", "train.dense_optimizer.lr: {choice: [0.1, 0.2]}")
    return SweepSettings(
        read_recipe(RECIPE), space, folder, "auc", trials, "grid", "none", folder.parent / "data", print
    )
