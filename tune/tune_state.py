"""Backs up the state that Ray Tune keeps of a sweep: which trials there are, and what the searcher knows.

Tune overwrites its files in place every other second. A kill may cut one short, or leave files of two moments, after
which Tune waits forever for a trial that has ended; without them no trial would be known. So a copy of one moment is
kept beside them as one file, which is all that another machine needs.
"""

import io
import json
import shutil
import time
import zipfile
from pathlib import Path

from rayrec.common.files import write_atomically

STATE_FOLDER = ".tune"
_BACKUP_FILE = "tune-state.zip"
# The last two are pickles, despite their names.
_STATE_FILES = ("experiment_state-*.json", "searcher-state-*.pkl", "search_gen_state-*.json")
_TUNER_FILE = "tuner.pkl"
"""The arguments of the Tuner, written once."""
_END_OF_PICKLE = b"."
_QUIET_SECONDS = 0.2
_SAVE_SECONDS = 1.0
"""Tune writes all files of one save within this time; the previous save is older."""


def can_be_restored(sweep: Path) -> bool:
    """Whether Tune can continue from its state, after the backup has replaced files that are cut short or missing.

    It cannot if it was killed before it had saved a trial.
    """
    state, backup_file = sweep / STATE_FOLDER, sweep / _BACKUP_FILE
    is_complete = _is_complete(_contents(state))
    if is_complete and _is_of_one_save(state):
        return True
    if not backup_file.exists():
        return is_complete
    for path in _files(state):
        path.unlink()
    with zipfile.ZipFile(backup_file) as archive:
        archive.extractall(state)
    return True


def backup(sweep: Path) -> None:
    """Copy the state, unless Tune is writing it at this moment."""
    state = sweep / STATE_FOLDER
    before = _sizes_and_times(state)
    contents = _contents(state)
    if not _is_complete(contents) or not _is_of_one_save(state):
        return
    time.sleep(_QUIET_SECONDS)
    if _sizes_and_times(state) != before:
        return
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    write_atomically(sweep / _BACKUP_FILE, packed.getvalue())


def forget(sweep: Path) -> None:
    """Remove the state and its backup."""
    shutil.rmtree(sweep / STATE_FOLDER, ignore_errors=True)
    (sweep / _BACKUP_FILE).unlink(missing_ok=True)


def _files(folder: Path) -> list[Path]:
    return [path for pattern in (*_STATE_FILES, _TUNER_FILE) for path in folder.glob(pattern)]


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in _files(folder)}


def _sizes_and_times(folder: Path) -> dict[str, tuple[int, int]]:
    return {path.name: ((status := path.stat()).st_size, status.st_mtime_ns) for path in _files(folder)}


def _newest(names: list[str]) -> list[str]:
    """The newest state file of each kind; their names contain the time at which Tune began."""
    newest = (max((name for name in names if Path(name).match(pattern)), default=None) for pattern in _STATE_FILES)
    return [name for name in newest if name is not None]


def _is_complete(contents: dict[str, bytes]) -> bool:
    """Whether the newest state files are there to their last byte and know a trial."""
    newest = _newest(list(contents))
    if not newest or not Path(newest[0]).match(_STATE_FILES[0]):
        return False
    experiment, *pickles = (contents[name] for name in newest)
    try:
        has_trials = bool(json.loads(experiment)["trial_data"])
    except ValueError:
        return False
    return has_trials and all(content.endswith(_END_OF_PICKLE) for content in pickles)


def _is_of_one_save(folder: Path) -> bool:
    files = _sizes_and_times(folder)
    times = [files[name][1] for name in _newest(list(files))]
    return max(times) - min(times) < _SAVE_SECONDS * 1e9
