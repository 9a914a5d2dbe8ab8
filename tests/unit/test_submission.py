"""Kaggle's file: the ads of each display in order of score, however the rows come in blocks."""

from pathlib import Path

import numpy as np
import pytest

from rayrec.common.errors import UserError
from rayrec.inference.submission import Submission

DISPLAY = np.array([3, 3, 3, 5, 8, 8])
AD = np.array([10, 11, 12, 10, 7, 70])
SCORE = np.float32([0.1, 0.9, 0.1, 0.5, 0.2, 0.3])
EXPECTED = "display_id,ad_id\n3,11 10 12\n5,10\n8,70 7\n"


@pytest.mark.parametrize("cuts", [[6], [1, 2, 3, 4, 5, 6], [2, 6], [0, 3, 3, 6], [4, 5, 6]])
def test_ads_by_score_equal_ones_as_they_come(cuts: list[int], tmp_path: Path) -> None:
    with Submission(tmp_path / "out.csv") as submission:
        for start, stop in zip([0, *cuts], cuts, strict=False):
            submission.add(DISPLAY[start:stop], AD[start:stop], SCORE[start:stop])
    assert (tmp_path / "out.csv").read_text() == EXPECTED


def test_scattered_displays_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="random order"), Submission(tmp_path / "out.csv") as submission:
        submission.add(DISPLAY[:5], AD[:5], SCORE[:5])
        submission.add(DISPLAY[:1], AD[:1], SCORE[:1])


def test_no_rows(tmp_path: Path) -> None:
    with Submission(tmp_path / "out.csv"):
        pass
    assert (tmp_path / "out.csv").read_text() == "display_id,ad_id\n"
