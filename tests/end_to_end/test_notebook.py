"""The notebooks of docs/examples run as they stand, and show what they print."""

import os
from pathlib import Path

import pytest

from tests.end_to_end.notebook import NOTEBOOKS, executed, outline, read
from tests.environments import environment_of_a_user


@pytest.mark.minutes
@pytest.mark.parametrize("path", NOTEBOOKS.values(), ids=NOTEBOOKS)
def test_the_notebook_shows_what_it_prints(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As its reader runs it, without a cluster."""
    for name in set(os.environ) - set(environment_of_a_user()):
        monkeypatch.delenv(name)
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # its new folder goes with the test
    assert outline(executed(path)) == outline(read(path))
