"""Generated ratings: MovieLens' layout, the same rows for a seed, preferences that a model can learn."""

import gzip
import io
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rayrec.sources.interactions.generator import LEAST_INTERACTIONS, NUM_ITEMS, RatingsGenerator, generate


@pytest.fixture(scope="module")
def ratings(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    folder = tmp_path_factory.mktemp("ratings")
    made = generate(folder / "data", 60_000, seed=1)
    frame = pd.read_csv(folder / "data" / "ratings.csv")
    assert (made["users"], made["items"]) == (frame["userId"].max(), NUM_ITEMS)
    return frame


def test_layout(ratings: pd.DataFrame, tmp_path: Path) -> None:
    generate(tmp_path / "data", 3)
    lines = (tmp_path / "data" / "ratings.csv").read_text().splitlines()
    assert lines[0] == "userId,movieId,rating,timestamp" and len(lines) == 4
    assert len(ratings) == 60_000
    assert set(ratings["rating"]) <= {half / 2 for half in range(1, 11)}
    assert lines[1].split(",")[2][-2:] in {".0", ".5"}
    assert ratings["movieId"].between(1, NUM_ITEMS).all() and ratings["timestamp"].dtype == np.int64
    assert not ratings.duplicated(["userId", "movieId"]).any()
    assert ratings.equals(ratings.sort_values(["userId", "movieId"]))


def test_the_seed_decides_and_more_rows_begin_as_fewer_do(ratings: pd.DataFrame, tmp_path: Path) -> None:
    generate(tmp_path / "more", 70_000, seed=1, compress=True)
    more = pd.read_csv(io.BytesIO(gzip.decompress((tmp_path / "more" / "ratings.csv.gz").read_bytes())))
    others = ratings["userId"] < ratings["userId"].max()
    pd.testing.assert_frame_equal(more[: others.sum()], ratings[others])
    generate(tmp_path / "other", 1_000, seed=2)
    assert not pd.read_csv(tmp_path / "other" / "ratings.csv").equals(ratings[:1_000])


def test_activity_and_popularity_have_long_tails(ratings: pd.DataFrame) -> None:
    activity = ratings["userId"].value_counts()[:-1]
    assert activity.min() >= LEAST_INTERACTIONS
    assert activity.max() > 8 * activity.median()
    popularity = ratings["movieId"].value_counts()
    assert popularity.iloc[: NUM_ITEMS // 20].sum() > 0.2 * len(ratings)


def test_preferences_can_be_learnt() -> None:
    """Items that users with the same choices chose are far likelier than chance, and than popularity explains."""
    blocks = [block.to_pandas() for block in islice(RatingsGenerator(seed=3).blocks(), 4)]
    frame = pd.concat(blocks)
    chosen = np.zeros((len(blocks) * 256, NUM_ITEMS), np.float32)
    chosen[frame["userId"] - 1, frame["movieId"] - 1] = 1.0
    rng = np.random.default_rng(0)
    held_out = np.array([rng.choice(np.flatnonzero(row)) for row in chosen])
    users = np.arange(len(chosen))
    chosen[users, held_out] = 0.0
    popularity = chosen.sum(axis=0)
    expected = popularity / len(chosen) * chosen.sum(axis=1, keepdims=True) / chosen.sum(axis=1).mean()
    surprise = (chosen - expected) / np.sqrt(expected + 0.02)
    _, axes = np.linalg.eigh(surprise @ surprise.T)
    by_neighbours = np.log(popularity + 1.0) + 4.0 * axes[:, -5:] @ (axes[:, -5:].T @ surprise)

    def hit_rate(scores: np.ndarray) -> float:
        """HR@10 among 99 items that the user has not chosen."""
        hits = 0
        for user in users:
            others = rng.choice(np.flatnonzero(chosen[user] == 0), 99, replace=False)
            hits += (scores[user, others] > scores[user, held_out[user]]).sum() < 10
        return hits / len(users)

    popular = hit_rate(np.broadcast_to(popularity, chosen.shape))
    assert popular > 0.12
    assert hit_rate(by_neighbours) > popular + 0.15
