"""From generated ratings to recommendations, by the command line alone."""

import csv
from collections import defaultdict
from collections.abc import Callable

import pyarrow.parquet as pq
import pytest

from tests.end_to_end.conftest import Finished, Pipeline, run_pipeline

RECIPE = "neumf-ml-1m-debug"
pytestmark = pytest.mark.minutes


@pytest.fixture(scope="module")
def ratings(rayrec_alone: Callable[..., Finished], tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """Generated ratings brought to recommendations: raw/, dataset/, run/, model/, best/."""
    folder = tmp_path_factory.mktemp("ratings")
    commands = [
        ["generate", "interactions", "--rows", "30000", "--output", "raw"],
        ["preprocess", RECIPE, "--input", "raw/ratings.csv", "--output", "dataset"],
        ["train", RECIPE, "--data", "dataset", "--output", "run", "--workers", "2"],
        ["export", "run", "--output", "model"],
        ["predict", "model", "--top-k", "10", "--output", "best"],
    ]
    return run_pipeline(rayrec_alone, folder, commands)


def test_it_learns_to_rank(ratings: Pipeline) -> None:
    for metrics in ratings.results["train"]["metrics"].values():
        assert metrics["groups"] > 100
        # Of 51 candidates a constant order puts one positive in five among the first ten.
        assert metrics["hr@10"] > 0.3
        assert 0 < metrics["ndcg@10"] < metrics["hr@10"]


def test_every_user_gets_new_items(ratings: Pipeline) -> None:
    watched: dict[str, set[str]] = defaultdict(set)
    with (ratings.raw / "ratings.csv").open() as file:
        for row in csv.DictReader(file):
            watched[row["userId"]].add(row["movieId"])
    rows = pq.read_table(ratings.best / "recommendations").to_pylist()
    recommended: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        recommended[row["user"]].append(row["item"])
    assert len(recommended) == ratings.results["predict"]["rows"] > 100
    for user, items in recommended.items():
        assert len(set(items)) == len(items) == 10
        assert not watched[user] & set(items), "what was held out of train is not new either"
