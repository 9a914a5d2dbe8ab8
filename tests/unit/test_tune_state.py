"""Tune's notes after a kill: whole, torn, or not begun."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tune.tuner import STATE_FOLDER, backup, can_be_restored, forget

FIRST, SECOND = "2026-01-01_00-00-00", "2026-01-02_00-00-00"


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody writes while these tests back up."""
    monkeypatch.setattr("tune.tuner._QUIET_SECONDS", 0.0)


def _note(sweep: Path, session: str, trials: int) -> None:
    state = sweep / STATE_FOLDER
    state.mkdir(exist_ok=True)
    (state / f"experiment_state-{session}.json").write_text(json.dumps({"trial_data": [["a", "b"]] * trials}))
    (state / f"searcher-state-{session}.pkl").write_bytes(b"\x80\x05.")
    (state / f"search_gen_state-{session}.json").write_bytes(b"\x80\x05.")
    (state / "tuner.pkl").write_bytes(b"\x80\x05.")


def _trials(sweep: Path) -> int:
    newest = max((sweep / STATE_FOLDER).glob("experiment_state-*.json"))
    return len(json.loads(newest.read_text())["trial_data"])


@pytest.mark.parametrize("torn", ["experiment_state", "searcher-state", "search_gen_state"])
def test_torn_notes_are_replaced_by_the_kept_ones(torn: str, tmp_path: Path) -> None:
    _note(tmp_path, FIRST, trials=2)
    backup(tmp_path)
    _note(tmp_path, SECOND, trials=3)
    (path,) = (tmp_path / STATE_FOLDER).glob(f"{torn}-{SECOND}.*")
    path.write_bytes(path.read_bytes()[:1])
    backup(tmp_path)
    assert can_be_restored(tmp_path)
    assert _trials(tmp_path) == 2


def test_notes_of_two_moments_are_replaced_and_never_kept(tmp_path: Path) -> None:
    """Each file is whole; Tune was killed, or is, between two of them."""
    _note(tmp_path, FIRST, trials=2)
    backup(tmp_path)
    _note(tmp_path, FIRST, trials=3)
    for path in (tmp_path / STATE_FOLDER).glob("search*"):
        os.utime(path, ns=(0, path.stat().st_mtime_ns - 2 * 10**9))
    backup(tmp_path)
    assert can_be_restored(tmp_path)
    assert _trials(tmp_path) == 2


def test_another_machine_has_what_is_kept_alone(tmp_path: Path) -> None:
    _note(tmp_path, FIRST, trials=2)
    backup(tmp_path)
    shutil.rmtree(tmp_path / STATE_FOLDER)
    assert can_be_restored(tmp_path)
    assert _trials(tmp_path) == 2
    assert (tmp_path / STATE_FOLDER / "tuner.pkl").exists()


def test_whole_notes_are_taken_as_they_are(tmp_path: Path) -> None:
    _note(tmp_path, FIRST, trials=2)
    backup(tmp_path)
    _note(tmp_path, SECOND, trials=3)
    assert can_be_restored(tmp_path)
    assert _trials(tmp_path) == 3


def test_a_sweep_without_a_noted_trial_cannot_be_restored(tmp_path: Path) -> None:
    backup(tmp_path)
    assert not can_be_restored(tmp_path)
    _note(tmp_path, FIRST, trials=0)
    backup(tmp_path)
    assert not can_be_restored(tmp_path)
    _note(tmp_path, FIRST, trials=1)
    backup(tmp_path)
    forget(tmp_path)
    assert not can_be_restored(tmp_path)
