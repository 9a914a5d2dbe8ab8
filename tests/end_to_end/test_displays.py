"""From Outbrain's tables to a model that ranks ads, by the command line alone."""

from collections.abc import Callable

import pytest

from tests.end_to_end.conftest import Finished, Pipeline, run_pipeline

RECIPE = "wide-deep-outbrain-debug"
FULL = ("--set", "preprocess.feature_set=full")
pytestmark = pytest.mark.minutes


@pytest.fixture(scope="module")
def displays(rayrec: Callable[..., Finished], tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """Generated tables brought to a model: raw/, dataset/, run/, model/."""
    folder = tmp_path_factory.mktemp("displays")
    commands = [
        ["generate", "outbrain", "--rows", "12000", "--output", "raw"],
        ["preprocess", RECIPE, *FULL, "--input", "raw", "--output", "dataset"],
        ["train", RECIPE, *FULL, "--data", "dataset", "--output", "run", "--workers", "2"],
        ["export", "run", "--output", "model"],
    ]
    return run_pipeline(rayrec, folder, commands)


def test_it_ranks_better_than_popularity(displays: Pipeline) -> None:
    reached = displays.results["train"]["metrics"]["validation"]["map@12"]
    truth = displays.results["generate"]["details"]["truth"]["held_out"]
    assert truth["quality_alone"] < reached < truth["best"] + 0.05
    assert set(displays.results["train"]["metrics"]) == {"validation"}, "of submission nothing can be measured"


def test_what_cannot_be_measured_is_refused(displays: Pipeline, rayrec: Callable[..., Finished]) -> None:
    done = rayrec("evaluate", "model", "--data", "dataset", "--split", "submission", folder=displays.folder)
    assert done.code != 0
    assert "split 'submission' has no labels" in done.err
