"""Ray Tune's notes on a sweep: which trials there are, and what the searcher knows.

Tune writes over them in place, file by file, every other second. A kill may tear one, or leave files of two moments,
after which Tune waits for ever for a trial that has ended; and without them the trials' results have no sweep. So a
copy of one moment is kept beside them, as one file: on another machine it is all that there is.
"""

import io
import json
import shutil
import time
import zipfile
from pathlib import Path

from rayrec.common.files import write_atomically

STATE_FOLDER = ".tune"
_KEPT_FILE = "tune-state.zip"
# The last two are pickles, whatever they are called.
_NOTES = ("experiment_state-*.json", "searcher-state-*.pkl", "search_gen_state-*.json")
_TUNER = "tuner.pkl"
"""What Tune was asked, written once."""
_END_OF_PICKLE = b"."
_QUIET_SECONDS = 0.2
_ONE_WRITE_SECONDS = 1.0
"""Within which Tune writes all its notes; the write before was earlier."""


def can_be_restored(sweep: Path) -> bool:
    """Whether Tune can go on from its notes, after the kept ones were put in place of torn or missing ones.

    Not where it was killed before it noted a trial.
    """
    state, kept = sweep / STATE_FOLDER, sweep / _KEPT_FILE
    whole = _is_whole(_contents(state))
    if whole and _is_of_one_moment(state):
        return True
    if not kept.exists():
        return whole
    for path in _files(state):
        path.unlink()
    with zipfile.ZipFile(kept) as archive:
        archive.extractall(state)
    return True


def keep(sweep: Path) -> None:
    """Copy the notes, unless some are being written just now."""
    state = sweep / STATE_FOLDER
    before = _states(state)
    contents = _contents(state)
    if not _is_whole(contents) or not _is_of_one_moment(state):
        return
    time.sleep(_QUIET_SECONDS)
    if _states(state) != before:
        return
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    write_atomically(sweep / _KEPT_FILE, packed.getvalue())


def forget(sweep: Path) -> None:
    """Remove all notes."""
    shutil.rmtree(sweep / STATE_FOLDER, ignore_errors=True)
    (sweep / _KEPT_FILE).unlink(missing_ok=True)


def _files(folder: Path) -> list[Path]:
    return [path for pattern in (*_NOTES, _TUNER) for path in folder.glob(pattern)]


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in _files(folder)}


def _states(folder: Path) -> dict[str, tuple[int, int]]:
    return {path.name: ((status := path.stat()).st_size, status.st_mtime_ns) for path in _files(folder)}


def _newest(names: list[str]) -> list[str]:
    """The last note of each kind; their names have the time at which Tune began."""
    newest = (max((name for name in names if Path(name).match(pattern)), default=None) for pattern in _NOTES)
    return [name for name in newest if name is not None]


def _is_whole(contents: dict[str, bytes]) -> bool:
    """Whether the newest notes are there, with a trial, to their last byte."""
    newest = _newest(list(contents))
    if not newest or not Path(newest[0]).match(_NOTES[0]):
        return False
    experiment, *pickles = (contents[name] for name in newest)
    try:
        has_trials = bool(json.loads(experiment)["trial_data"])
    except ValueError:
        return False
    return has_trials and all(content.endswith(_END_OF_PICKLE) for content in pickles)


def _is_of_one_moment(folder: Path) -> bool:
    states = _states(folder)
    times = [states[name][1] for name in _newest(list(states))]
    return max(times) - min(times) < _ONE_WRITE_SECONDS * 1e9
