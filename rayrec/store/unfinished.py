"""Unfinished folders at a URI, which nodes that share no disk write together.

Their files lie at the URI alone, in a folder whose name begins with a dot, which no command reads as an output. When
all are written, the store copies them to their place, and the file that says that the folder is whole comes last. After
a kill at any moment, the same work goes on from what is there.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import filterfalse
from pathlib import Path

from rayrec.common.errors import PassingError, UserError
from rayrec.store.files import exists, files_below, remote_folder, remove, require_absent
from rayrec.store.objects import for_each
from rayrec.store.paths import location, name_at_uri, staged_root, unfinished_at_uri
from rayrec.store.transfer import is_manifest, is_output

logger = logging.getLogger(__name__)


def has_unfinished_work(path: Path) -> bool:
    """Return whether an attempt to write a staged folder, or one in it, left unfinished work at its URI.

    Raises UserError.
    """
    if staged_root(path) is None:
        return False
    every = name_at_uri(unfinished_at_uri(path))
    return any(name.startswith(every) for name in remote_folder(path).files())


def require_new(path: Path) -> None:
    """Raise UserError if `path` is not an empty folder, and no unfinished work at its URI explains what is in it."""
    try:
        require_absent(path)
    except UserError:
        if not has_unfinished_work(path):
            raise


@contextmanager
def new_folder_at_uri(path: Path, fingerprint: str, last: str) -> Iterator[Path]:
    """Yield an unfinished folder at a URI, whose files become those of the staged `path` when the block ends.

    `rayrec.store.files` writes and reads them, on any node. `last`: the file that says that the folder is whole. What
    was done survives a kill and every error except a `UserError` after which the same work could not succeed, and the
    next caller with the same fingerprint finds it. Raises UserError if the folder at the URI is whole, or if the URI
    cannot be read or written.
    """
    unfinished = unfinished_at_uri(path, fingerprint)
    if not exists(unfinished / last):
        _clear(path, unfinished, last)
    try:
        yield unfinished
        _move(path, unfinished, last)
    except BaseException as error:
        if isinstance(error, PassingError) or not isinstance(error, UserError):
            logger.warning("%s: finished parts are kept; run the same command again to continue", location(unfinished))
        else:
            with suppress(UserError):  # it would hide the error
                remove(unfinished)
        raise


def _clear(path: Path, unfinished: Path, last: str) -> None:
    """Remove what an attempt with another fingerprint, which died as it ended, has put in place."""
    remote = remote_folder(path)
    placed = [name for name in remote.files(name_at_uri(path)) if is_output(name)]
    if name_at_uri(path / last) in placed:
        raise UserError(f"{location(path)}: already exists; give another --output, or remove it first")
    if placed:
        _remove_other_work(path, unfinished)
        for_each(remote.delete, placed)


def _move(path: Path, unfinished: Path, last: str) -> None:
    """Put all files in place. Nothing is deleted before all but the last one are; the last one goes on its own."""
    remote = remote_folder(path)
    _remove_other_work(path, unfinished)
    names = [name for name in files_below(unfinished) if name != last]
    for_each(lambda name: remote.copy(name_at_uri(unfinished / name), name_at_uri(path / name)), names)
    for_each(lambda name: remote.delete(name_at_uri(unfinished / name)), names)
    remote.copy(name_at_uri(unfinished / last), name_at_uri(path / last))
    remote.delete(name_at_uri(unfinished / last))


def _remove_other_work(path: Path, unfinished: Path) -> None:
    """Remove what attempts to write `path` with other fingerprints left, which count on what they have put in place."""
    remote = remote_folder(path)
    every, own = name_at_uri(unfinished_at_uri(path)), f"{name_at_uri(unfinished)}/"
    names = [name for name in remote.files() if name.startswith(every) and not name.startswith(own)]
    # First what says that others are whole, so that no attempt goes on from a part of its files.
    for_each(remote.delete, filter(is_manifest, names))
    for_each(remote.delete, filterfalse(is_manifest, names))
