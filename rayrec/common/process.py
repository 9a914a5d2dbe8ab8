"""This process: imports, threads that accompany a block, handlers of Ctrl-C and SIGTERM, environment variables."""

import gc
import importlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress


@contextmanager
def quick_imports() -> Iterator[None]:
    """Keep Python's garbage collector away during the block: imports leave no garbage.

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


@contextmanager
def environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Set the variables during the block, or unset those that are None; all are afterwards as they were."""
    before = {name: os.environ.get(name) for name in variables}
    _set_variables(variables)
    try:
        yield
    finally:
        _set_variables(before)


def _set_variables(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
