"""Work beside a block."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def in_background(work: Callable[[threading.Event], None], name: str) -> Iterator[None]:
    """Run `work` in a thread beside the block, however that ends; it gets the event of the block's end, and is waited
    for."""
    ended = threading.Event()
    thread = threading.Thread(target=work, args=(ended,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
