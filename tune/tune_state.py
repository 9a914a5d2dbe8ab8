"""Ray Tune's notes on a sweep: which trials there are, and what the searcher knows.

Tune writes over them in place, every other second. A kill may tear one, and without them the trials' results have no
sweep: so a whole copy of all is kept beside them.
"""

import json
import shutil
from pathlib import Path

STATE_FOLDER = ".tune"
_KEPT_FOLDER = "tune-state"
"""Not hidden, as it is what another machine goes on from, where the sweep is one of a URI."""
# All but the first are pickles, whatever they are called.
_FILES = ("experiment_state-*.json", "searcher-state-*.pkl", "search_gen_state-*.json", "tuner.pkl")
_END_OF_PICKLE = b"."


def can_be_restored(sweep: Path) -> bool:
    """Whether Tune can go on from its notes, after the kept ones were put in place of torn ones.

    Not where it was killed before it noted a trial.
    """
    state, kept = sweep / STATE_FOLDER, sweep / _KEPT_FOLDER
    if _is_whole(state):
        return True
    if not _is_whole(kept):
        return False
    for path in _files(state):
        path.unlink()
    _copy(kept, state)
    return True


def keep(sweep: Path) -> None:
    """Copy the notes, unless one is being written just now."""
    state, kept = sweep / STATE_FOLDER, sweep / _KEPT_FOLDER
    unfinished = kept.with_name(f".{_KEPT_FOLDER}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    _copy(state, unfinished)
    if _is_whole(unfinished):
        shutil.rmtree(kept, ignore_errors=True)
        unfinished.rename(kept)


def forget(sweep: Path) -> None:
    """Remove all notes."""
    for name in (STATE_FOLDER, _KEPT_FOLDER):
        shutil.rmtree(sweep / name, ignore_errors=True)


def _files(folder: Path) -> list[Path]:
    return [path for pattern in _FILES for path in folder.glob(pattern)]


def _copy(source: Path, target: Path) -> None:
    target.mkdir(exist_ok=True)
    for path in _files(source):
        shutil.copyfile(path, target / path.name)


def _is_whole(folder: Path) -> bool:
    """Whether the newest notes of a folder are there, with a trial, to their last byte."""
    newest = [max(folder.glob(pattern), default=None) for pattern in _FILES]
    experiment, *pickles = newest
    if experiment is None:
        return False
    try:
        has_trials = bool(json.loads(experiment.read_text())["trial_data"])
    except ValueError:
        return False
    return has_trials and all(path is None or path.read_bytes().endswith(_END_OF_PICKLE) for path in pickles)
