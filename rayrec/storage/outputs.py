"""The output files of a folder, and the order in which they may appear elsewhere."""

import os
from collections.abc import Iterable
from pathlib import Path

from rayrec.storage.journal import LocalFile

# Other names that begin with a dot are temporary or concern this machine only; this one is in torch's checkpoints.
_DOTTED_OUTPUTS = {".metadata"}


def is_output(name: str) -> bool:
    """Whether a file, given by its path in a folder, is a finished part of the folder's content."""
    *folders, file = name.split("/")
    return not any(folder.startswith(".") for folder in folders) and (
        not file.startswith(".") or file in _DOTTED_OUTPUTS
    )


def outputs(folder: Path) -> dict[str, LocalFile]:
    """The output files below a folder, in the order in which they may appear elsewhere; those that vanish are left out.

    Manifests come after all other files, in the order in which they were written.
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
    return dict(sorted(found.items(), key=lambda item: (is_manifest(item[0]), _order(*item))))


def is_manifest(name: str) -> bool:
    """Whether a file says that other files are complete, or refers to them, so that it must not appear before them."""
    return name.endswith(".json")


def in_order_of_removal(names: Iterable[str]) -> list[str]:
    """The files with manifests first, so that none is left that refers to a file that is gone."""
    return sorted(names, key=lambda name: (not is_manifest(name), name))


def _order(name: str, file: LocalFile) -> tuple[int, str]:
    return (file.modified_ns if is_manifest(name) else 0, name)
