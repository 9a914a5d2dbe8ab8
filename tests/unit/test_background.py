"""Work beside a block: its failure is neither lost nor the block's."""

import threading
from unittest import TestCase

import pytest

from rayrec.common.background import in_background


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
