"""Preprocessing of every kind of data, killed at random moments: the files of an undisturbed run."""

from pathlib import Path

import pytest

from benchmarks.preprocess_kills import ROWS, measure


@pytest.mark.minutes
@pytest.mark.kills
@pytest.mark.parametrize("kind", ROWS)
def test_killed_preprocessing_ends_in_the_same_files(
    kind: str, ray_cluster: str, no_spark: None, tmp_path: Path
) -> None:
    """Two kills; `measure` fails if a byte differs or if a finished stage is done again."""
    result = measure(tmp_path, kind, ROWS[kind] // 20, kills=2, seed=None)
    assert len(result["kills"]) == 2
