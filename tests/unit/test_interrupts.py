"""Ctrl-C stays what it was when a library has handled it."""

import signal
import threading

import pytest

from rayrec.common.interrupts import interrupts_kept


def _of_a_library(number: int, frame: object) -> None:
    """A handler such as that of Ray Train."""


@pytest.mark.parametrize("fails", [False, True])
def test_the_handler_is_put_back(fails: bool) -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        with interrupts_kept():
            signal.signal(signal.SIGINT, _of_a_library)
            assert not fails or 1 / 0
    except ZeroDivisionError:
        pass
    assert signal.getsignal(signal.SIGINT) == before


def test_other_threads_have_no_handlers() -> None:
    done = []

    def work() -> None:
        with interrupts_kept():
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done
