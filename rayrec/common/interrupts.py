"""Ctrl-C in a process whose libraries handle it in ways of their own."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupts_kept() -> Iterator[None]:
    """Put back, at the end of the block, the handler of Ctrl-C that was there before a library installed its own.

    Spark's turns an interrupt of a running job into a Py4JError. That of Ray Train stays when the training is over: it
    then calls a process that is gone, and raises the error of that instead of KeyboardInterrupt.
    """
    if threading.current_thread() is not threading.main_thread():  # which alone has handlers
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
