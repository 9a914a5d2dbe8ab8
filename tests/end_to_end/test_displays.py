"""From Outbrain's tables to ranked ads, by the command line alone."""

import csv
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from rayrec import load_ranker
from tests.end_to_end.conftest import Finished, Pipeline, run_pipeline

RECIPE = "wide-deep-outbrain-debug"
FULL = ("--set", "preprocess.feature_set=full")
pytestmark = pytest.mark.minutes


@pytest.fixture(scope="module")
def displays(rayrec: Callable[..., Finished], tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """Generated tables brought to predictions: raw/, dataset/, run/, model/, scores/."""
    folder = tmp_path_factory.mktemp("displays")
    commands = [
        ["generate", "outbrain", "--rows", "12000", "--output", "raw"],
        ["preprocess", RECIPE, *FULL, "--input", "raw", "--output", "dataset"],
        ["train", RECIPE, *FULL, "--data", "dataset", "--output", "run", "--workers", "2"],
        ["export", "run", "--output", "model"],
        ["predict", "model", "--input", "dataset", "--split", "submission", "--output", "scores"],
    ]
    return run_pipeline(rayrec, folder, commands)


def test_one_row_a_click_and_no_metric_of_what_has_no_label(displays: Pipeline) -> None:
    splits = displays.results["preprocess"]["details"]["splits"]
    with (displays.raw / "clicks_test.csv").open() as file:
        assert splits["submission"] == sum(1 for _ in file) - 1 == displays.results["predict"]["rows"]
    assert splits["train"] + splits["validation"] == 12_000
    assert set(displays.results["train"]["metrics"]) == {"validation"}


def test_it_ranks_better_than_popularity(displays: Pipeline) -> None:
    reached = displays.results["train"]["metrics"]["validation"]["map@12"]
    truth = displays.results["generate"]["details"]["truth"]["held_out"]
    assert truth["quality_alone"] < reached < truth["best"] + 0.05


def test_what_cannot_be_measured_is_refused(displays: Pipeline, rayrec: Callable[..., Finished]) -> None:
    done = rayrec("evaluate", "model", "--data", "dataset", "--split", "submission", folder=displays.folder)
    assert done.code != 0
    assert "split 'submission' has no labels" in done.err


def test_files_and_ranker_agree(displays: Pipeline) -> None:
    scores: dict[int, dict[int, float]] = defaultdict(dict)
    for row in pq.read_table(displays.scores / "scores").to_pylist():
        scores[row["display_id"]][row["candidate"]] = row["score"]
    events = {row["display_id"]: row for row in _events(displays)}
    ranker = load_ranker(displays.model)
    for display, scored in list(scores.items())[:50]:
        # A source of traffic is of the page views, which a request would bring along.
        context = {name: value for name, value in events[display].items() if name != "display_id"}
        sources = [None, 1, 2, 3]
        offline = np.array(list(scored.values()))
        online = [ranker.scores({**context, "traffic_source": source}, list(scored)) for source in sources]
        assert min(np.abs(found - offline).max() for found in online) < 1e-6


def _events(displays: Pipeline) -> list[dict[str, Any]]:
    rows = []
    with (displays.raw / "events.csv").open() as file:
        for row in csv.DictReader(file):
            known = {name: None if value in {"", "\\N"} else value for name, value in row.items()}
            texts = {"uuid", "geo_location"}
            rows.append({n: v if n in texts or v is None else int(v) for n, v in known.items()})
    return rows
