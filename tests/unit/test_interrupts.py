"""Ctrl-C and SIGTERM stay what they were when a library has handled them."""

import signal
import threading

import pytest

from rayrec.common.interrupts import interrupts_kept


def _of_a_library(number: int, frame: object) -> None:
    """A handler such as that of Ray Train."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("fails", [False, True])
def test_the_handler_is_put_back(number: signal.Signals, fails: bool) -> None:
    before = signal.getsignal(number)
    try:
        with interrupts_kept():
            signal.signal(number, _of_a_library)
            assert not fails or 1 / 0
    except ZeroDivisionError:
        pass
    assert signal.getsignal(number) == before


def test_other_threads_have_no_handlers() -> None:
    done = []

    def work() -> None:
        with interrupts_kept():
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done
