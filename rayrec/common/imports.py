"""Imports of large packages."""

import gc
import importlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def quick_imports() -> Iterator[None]:
    """Keep Python's garbage collector away during the block: of what is imported, nothing is garbage.

    It would take a third of the time in which torch and TorchRec are imported.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def import_meanwhile(module: str) -> None:
    """Import a module in a thread while the caller waits for something else; an error shows at the next import."""

    def run() -> None:
        with suppress(Exception):
            importlib.import_module(module)

    threading.Thread(target=run, name="rayrec-import", daemon=True).start()
