"""The notebook runs as it stands, and shows what it puts out."""

import os

import pytest

from tests.end_to_end.notebook import executed, outline, read
from tests.environments import environment_of_a_user


@pytest.mark.minutes
def test_the_notebook_shows_what_it_puts_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As its reader runs it, without a cluster."""
    for name in set(os.environ) - set(environment_of_a_user()):
        monkeypatch.delenv(name)
    assert outline(executed()) == outline(read())
