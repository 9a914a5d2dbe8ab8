"""Ctrl-C and SIGTERM in a process whose libraries handle them in ways of their own."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupts_kept() -> Iterator[None]:
    """Put back, at the end of the block, the handlers of Ctrl-C and SIGTERM that were there before a library's own.

    Spark's turns Ctrl-C in a running job into a Py4JError. That of Ray Train stays when the training is over: it then
    calls a process that is gone, and raises the error of that. Ray leaves no handler of SIGTERM when its session ends:
    the process would die at once, and leave behind what it has started.
    """
    if threading.current_thread() is not threading.main_thread():  # which alone has handlers
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
