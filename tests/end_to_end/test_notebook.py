"""The notebook runs as it stands, and shows what it puts out."""

import pytest

from tests.end_to_end.notebook import executed, outline, read


@pytest.mark.minutes
def test_the_notebook_shows_what_it_puts_out(ray_cluster: str, no_spark: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", ray_cluster)
    assert outline(executed()) == outline(read())
