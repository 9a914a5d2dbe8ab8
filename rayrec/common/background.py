"""Runs work in a thread while a block runs."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)


@contextmanager
def in_background(work: Callable[[threading.Event], None], name: str) -> Iterator[None]:
    """Run `work` in a thread while the block runs, and wait for it; its argument is set when the block has ended.

    Such work only accompanies the block, which goes on if it fails; the log has its error.
    """
    ended = threading.Event()

    def run() -> None:
        try:
            work(ended)
        except Exception:
            logger.exception("background task '%s' failed and has stopped; everything else keeps running", name)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
