"""Something done again and again while a block runs."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rayrec.common.process import in_background


@contextmanager
def repeated(action: Callable[[], object], seconds: float) -> Iterator[None]:
    """Call `action` at once, then every `seconds`, and once more at the end."""

    def work(ended: threading.Event) -> None:
        action()
        while not ended.wait(seconds):
            action()
        action()

    with in_background(work, "repeated"):
        yield
