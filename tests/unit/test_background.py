"""Work beside a block: its failure is neither lost nor the block's."""

import logging
import threading

import pytest

from rayrec.common.background import in_background


def test_a_failure_is_logged_once_and_the_block_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def fail(ended: threading.Event) -> None:
        raise KeyError("στήλη")

    done = False
    with caplog.at_level(logging.ERROR, "rayrec"), in_background(fail, "beside"):
        done = True
    (record,) = caplog.records
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
