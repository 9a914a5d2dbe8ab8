"""Checkpoints of one rank: whole or absent."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rayrec.config.train import CheckpointConfig
from rayrec.internals.torch_checkpoint import load
from rayrec.training.loop.records import Checkpoints
from rayrec.training.run.folder import RunProgress, checkpoint_name, checkpoint_steps

pytestmark = pytest.mark.usefixtures("one_rank")


def _step(value: float) -> Any:
    return SimpleNamespace(state_dict=lambda: {"weight": torch.full((3,), value)})


def _saved(checkpoint: Path) -> list[float]:
    state = {"weight": torch.zeros(3)}
    load(state, checkpoint)
    return state["weight"].tolist()


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, CheckpointConfig(keep_last=2, keep_best=None))
    for step in range(1, 5):
        checkpoints.save(_step(step), RunProgress(step=step))
    assert checkpoint_steps(tmp_path) == [3, 4]
    assert _saved(tmp_path / checkpoint_name(4)) == [4.0] * 3


def test_a_checkpoint_that_is_there_is_never_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the same step of the same run, of which a kill must not leave less than there was."""
    checkpoints = Checkpoints(tmp_path, CheckpointConfig(keep_best=None))
    checkpoints.save(_step(1), RunProgress(step=5))
    removed: list[Path] = []
    monkeypatch.setattr(shutil, "rmtree", lambda path, **_: removed.append(path))
    checkpoints.save(_step(1), RunProgress(step=5))
    assert not removed
    assert checkpoint_steps(tmp_path) == [5]
    assert _saved(tmp_path / checkpoint_name(5)) == [1.0] * 3


def test_what_a_kill_left_is_removed(tmp_path: Path) -> None:
    for step in (7, 8):
        (tmp_path / checkpoint_name(step)).mkdir()
        (tmp_path / checkpoint_name(step) / "__3_0.distcp").touch()
    assert checkpoint_steps(tmp_path) == []
    Checkpoints(tmp_path, CheckpointConfig(keep_best=None)).save(_step(1), RunProgress(step=8))
    assert not (tmp_path / checkpoint_name(8) / "__3_0.distcp").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index.json", checkpoint_name(8)]
