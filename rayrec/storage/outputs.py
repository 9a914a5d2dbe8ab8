"""Which files of a folder are outputs, and in what order they may appear elsewhere."""

import os
from collections.abc import Iterable
from pathlib import Path

from rayrec.storage.journal import LocalFile

# Names that begin with a dot are temporary or of this machine; this one is a part of torch's checkpoints.
_DOTTED_OUTPUTS = {".metadata"}


def is_output(name: str) -> bool:
    """Whether a file, by its path within a folder, is a whole part of what the folder is for."""
    *folders, file = name.split("/")
    return not any(folder.startswith(".") for folder in folders) and (
        not file.startswith(".") or file in _DOTTED_OUTPUTS
    )


def outputs(folder: Path) -> dict[str, LocalFile]:
    """The output files below a folder, in the order in which they may appear elsewhere; those that vanish are left out.

    Large files first. Files of JSON say what is whole, or refer to others, so they come after all of these, in the
    order in which they were written.
    """
    found = {}
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for file in files:
            path = Path(root, file)
            name = path.relative_to(folder).as_posix()
            if is_output(name):
                try:
                    found[name] = LocalFile.of(path.stat())
                except FileNotFoundError:
                    continue
    return dict(sorted(found.items(), key=lambda item: (says_what_is_whole(item[0]), _order(*item))))


def says_what_is_whole(name: str) -> bool:
    """Whether a file must not appear before those that were written before it."""
    return name.endswith(".json")


def in_order_of_removal(names: Iterable[str]) -> list[str]:
    """The same files so that none is left that says that others are whole."""
    return sorted(names, key=lambda name: (not says_what_is_whole(name), name))


def _order(name: str, file: LocalFile) -> tuple[int, str]:
    return (file.modified_ns if says_what_is_whole(name) else 0, name)
