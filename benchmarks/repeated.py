"""Something done again and again while a block runs."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeated(action: Callable[[], None], seconds: float) -> Iterator[None]:
    """Call `action` at once, then every `seconds`, and once more at the end."""
    ended = threading.Event()

    def work() -> None:
        action()
        while not ended.wait(seconds):
            action()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        action()
