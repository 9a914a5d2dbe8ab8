"""The folders that are served and stand for URIs: each replica's machine has them, and looks for new versions."""

import time
from collections.abc import Iterable
from pathlib import Path

from rayrec.storage.location import uri_of
from rayrec.storage.staged import fetch

_SECONDS = 30.0
"""Between two looks at a URI; a listing of a bucket costs more than one of a folder."""


class StagedModels:
    """Keeps the staged ones of some folders like their URIs."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = [folder for folder in folders if uri_of(folder) is not None]
        self._next = 0.0

    def refresh(self) -> None:
        """Fetch what is new, if it is time to. Raises UserError."""
        if self._folders and time.monotonic() >= self._next:
            self._next = time.monotonic() + _SECONDS
            for folder in self._folders:
                fetch(folder)
