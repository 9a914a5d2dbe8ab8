"""A whole copy of the state that Ray Tune keeps of a sweep.

Tune overwrites its files in place every other second: a kill may cut one short, or leave files of two moments, after
which Tune waits forever for a trial that has ended. So a copy of one moment is kept beside them as one file, which is
all that another machine needs.
"""

import io
import json
import time
import zipfile
from pathlib import Path

from rayrec.store.files import remove, write_atomically
from rayrec.store.paths import RemotePath, confined, copy_of

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
_Files = dict[str, tuple[bytes, int]]
"""Content and time of change, in nanoseconds, by the file's name."""


def state_folder(sweep: Path) -> Path:
    """Return the folder of this node in which Tune keeps its state of a sweep."""
    return (copy_of(sweep) if isinstance(sweep, RemotePath) else sweep) / STATE_FOLDER


def can_be_restored(sweep: Path) -> bool:
    """Return whether Tune can continue from its state, after the backup has replaced files that are cut short or
    missing.

    It cannot if it was killed before it had saved a trial.
    """
    state, backup_file = state_folder(sweep), sweep / _BACKUP_FILE
    found = _read(state)
    if _is_complete(found) and (_is_of_one_save(found) or not backup_file.exists()):
        return True
    if not backup_file.exists():
        return False
    for name in found:
        (state / name).unlink()
    with zipfile.ZipFile(io.BytesIO(backup_file.read_bytes())) as archive:
        archive.extractall(state, [confined(name, backup_file) for name in archive.namelist()])
    return True


def backup(sweep: Path) -> None:
    """Copy the state, unless Tune is writing it at this moment."""
    found = _read(state_folder(sweep))
    if not _is_complete(found) or not _is_of_one_save(found):
        return
    time.sleep(_QUIET_SECONDS)
    if _read(state_folder(sweep)) != found:
        return
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, (content, _) in found.items():
            archive.writestr(name, content)
    write_atomically(sweep / _BACKUP_FILE, packed.getvalue())


def forget(sweep: Path) -> None:
    """Remove the state and its backup."""
    remove(state_folder(sweep))
    (sweep / _BACKUP_FILE).unlink(missing_ok=True)


def _read(folder: Path) -> _Files:
    paths = [path for pattern in (*_STATE_FILES, _TUNER_FILE) for path in folder.glob(pattern)]
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}


def _newest(files: _Files) -> dict[str, tuple[bytes, int]]:
    """Return the newest state file of each kind, by its pattern; names contain the time at which Tune began."""
    names = {pattern: [name for name in files if Path(name).match(pattern)] for pattern in _STATE_FILES}
    return {pattern: files[max(found)] for pattern, found in names.items() if found}


def _is_complete(files: _Files) -> bool:
    """Return whether the newest state files are there to their last byte and know a trial."""
    newest = {pattern: content for pattern, (content, _) in _newest(files).items()}
    try:
        has_trials = bool(json.loads(newest.pop(_STATE_FILES[0], b"{}")).get("trial_data"))
    except ValueError:
        return False
    return has_trials and all(content.endswith(_END_OF_PICKLE) for content in newest.values())


def _is_of_one_save(files: _Files) -> bool:
    times = [changed for _, changed in _newest(files).values()]
    return max(times) - min(times) < _SAVE_SECONDS * 1e9
