"""A failure beside a block is neither lost nor the block's; handlers of Ctrl-C and SIGTERM stay what they were."""

import signal
import threading
from unittest import TestCase

import pytest

from rayrec.common.process import in_background, interrupts_kept


def test_a_failure_is_logged_once_and_the_block_goes_on() -> None:
    def fail(ended: threading.Event) -> None:
        raise KeyError("στήλη")

    done = False
    with TestCase().assertLogs("rayrec", "ERROR") as logs, in_background(fail, "beside"):
        done = True
    (record,) = logs.records
    assert done and "'beside'" in record.getMessage()
    assert record.exc_info is not None and record.exc_info[0] is KeyError


def test_the_error_of_the_block_is_the_blocks() -> None:
    seen = threading.Event()

    def work(ended: threading.Event) -> None:
        ended.wait()
        seen.set()

    with pytest.raises(ValueError, match="of the block"), in_background(work, "beside"):
        raise ValueError("of the block")
    assert seen.is_set()


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
