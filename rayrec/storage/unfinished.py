"""Unfinished folders at a URI, which nodes that share no disk write together.

Their files lie at the URI alone, in a folder whose name begins with a dot, which no command reads as an output. When
all are written, the store copies them to their place, and the file that says that the folder is whole comes last. After
a kill at any moment, the same work goes on from what is there.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import filterfalse
from pathlib import Path

from rayrec.common.errors import PassingError, UserError
from rayrec.common.files import require_absent
from rayrec.storage.files import exists, files_below, remove
from rayrec.storage.location import location, staged_root, unfinished_at_uri
from rayrec.storage.remote import Remote
from rayrec.storage.transfer import for_each, is_manifest, is_output

logger = logging.getLogger(__name__)


def has_unfinished_work(path: Path) -> bool:
    """Whether an attempt to write a staged folder, or one in it, left unfinished work at its URI. Raises UserError."""
    root = staged_root(path)
    if root is None:
        return False
    beginning = unfinished_at_uri(path).relative_to(root).as_posix()
    return any(name.startswith(beginning) for name in Remote(location(root)).files())


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

    `rayrec.storage.files` writes and reads them, on any node. `last`: the file that says that the folder is whole. What
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
            logger.warning("%s: keeps what is done; the same command goes on from there", location(unfinished))
        else:
            with suppress(UserError):  # it would hide the error
                remove(unfinished)
        raise


def _clear(path: Path, unfinished: Path, last: str) -> None:
    """Remove what an attempt with another fingerprint, which died as it ended, has put in place."""
    remote, name_of = _remote(path)
    placed = [name for name in remote.files(name_of(path)) if is_output(name)]
    if name_of(path / last) in placed:
        raise UserError(f"{location(path)}: already exists; give another --output, or remove it first")
    if placed:
        _remove_other_work(path, unfinished)
        for_each(remote.delete, placed)


def _move(path: Path, unfinished: Path, last: str) -> None:
    """Put all files in place. Nothing is deleted before all but the last one are; the last one goes on its own."""
    remote, name_of = _remote(path)
    _remove_other_work(path, unfinished)
    names = [name for name in files_below(unfinished) if name != last]
    for_each(lambda name: remote.copy(name_of(unfinished / name), name_of(path / name)), names)
    for_each(lambda name: remote.delete(name_of(unfinished / name)), names)
    remote.copy(name_of(unfinished / last), name_of(path / last))
    remote.delete(name_of(unfinished / last))


def _remote(path: Path) -> tuple[Remote, Callable[[Path], str]]:
    """The staged folder that `path` is or lies in, and a function that gives the name in it of a path."""
    root = staged_root(path)
    assert root is not None, path
    return Remote(location(root)), lambda path: "" if path == root else path.relative_to(root).as_posix()


def _remove_other_work(path: Path, unfinished: Path) -> None:
    """Remove what attempts to write `path` with other fingerprints left, which count on what they have put in place."""
    remote, name_of = _remote(path)
    every, own = name_of(unfinished_at_uri(path)), f"{name_of(unfinished)}/"
    names = [name for name in remote.files() if name.startswith(every) and not name.startswith(own)]
    # First what says that others are whole, so that no attempt goes on from a part of its files.
    for_each(remote.delete, filter(is_manifest, names))
    for_each(remote.delete, filterfalse(is_manifest, names))
