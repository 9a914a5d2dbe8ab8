"""Generated ratings: MovieLens' layout, the same rows for a seed, preferences that a model can learn."""

import gzip
import hashlib
import io
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rayrec.common.errors import UserError
from rayrec.common.progress import Progress, SilentProgress
from rayrec.sources.generated_files import GeneratorOptions
from rayrec.sources.interactions import generator
from rayrec.sources.interactions.generator import (
    BLOCK_USERS,
    DAYS_OF_A_USER,
    LEAST_INTERACTIONS,
    NUM_ITEMS,
    Ratings,
)


def generate(output: Path, rows: int, progress: Progress | None = None, **options: Any) -> dict[str, int]:
    return generator.generate(output, GeneratorOptions(rows, **options), progress or SilentProgress())


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


def test_rows_are_those_of_earlier_releases(tmp_path: Path) -> None:
    generate(tmp_path / "data", 10_000, seed=5)
    content = (tmp_path / "data" / "ratings.csv").read_bytes()
    assert hashlib.sha256(content).hexdigest() == "4291dfb3c5148261845e4a8f1ffc183ede442f67492fe139efac907d550b8dd2"


def test_preferences_can_be_learnt() -> None:
    """Items that users with the same choices chose are far likelier than chance, and than popularity explains."""
    blocks = [block.to_pandas() for block in islice(Ratings(seed=3).blocks(), 1_024 // BLOCK_USERS)]
    frame = pd.concat(blocks)
    chosen = np.zeros((1_024, NUM_ITEMS), np.float32)
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


NUM_DAYS, ROWS_OF_A_DAY = 9, 12_000


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> list[pd.DataFrame]:
    """Return the ratings of each day."""
    folder = tmp_path_factory.mktemp("days")
    made = generate(folder / "data", NUM_DAYS * ROWS_OF_A_DAY, seed=1, days=NUM_DAYS, drift=1.0)
    frames = [pd.read_csv(folder / "data" / f"day_{day}.csv") for day in range(NUM_DAYS)]
    assert made == {"items": pd.concat(frames)["movieId"].max()}
    return frames


def test_a_day_is_a_file_of_its_ratings(days: list[pd.DataFrame]) -> None:
    starts = [day["timestamp"].min() // 86_400 for day in days]
    assert starts == list(range(starts[0], starts[0] + NUM_DAYS))
    assert starts == [day["timestamp"].max() // 86_400 for day in days]
    assert [len(day) for day in days] == [ROWS_OF_A_DAY] * NUM_DAYS
    for day in days:
        assert day["userId"].value_counts()[day["userId"].unique()[:-1]].min() >= LEAST_INTERACTIONS
    assert not pd.concat(days).duplicated(["userId", "movieId"]).any()


def test_users_and_items_come_and_users_go(days: list[pd.DataFrame]) -> None:
    users, items = set(days[0]["userId"]), NUM_ITEMS
    assert days[0]["movieId"].max() <= items
    for number, day in enumerate(days[1:], start=1):
        ids = set(day["userId"])
        assert 0.08 < len(ids - users) / len(ids) < 0.25
        assert max(ids - users) > number * 10**9 > max(users)
        assert len(ids & set(days[number - 1]["userId"])) > 0.6 * len(ids)
        users |= ids
        assert (day["movieId"] > items).any()
        items += 20
        assert day["movieId"].max() <= items
    assert set(days[0]["userId"]).isdisjoint(days[DAYS_OF_A_USER]["userId"])


def test_a_day_depends_on_the_seed_its_number_and_the_drift_alone(tmp_path: Path, days: list[pd.DataFrame]) -> None:
    for name, rows, seed, drift in [("few", 900, 1, 1.0), ("other", 900, 2, 1.0), ("steady", 900, 1, 0.0)]:
        generate(tmp_path / name, rows, seed=seed, days=3, drift=drift)
    few, other, steady = (pd.read_csv(tmp_path / name / "day_2.csv") for name in ("few", "other", "steady"))
    pd.testing.assert_frame_equal(few, days[2][:300])
    assert not other.equals(few)
    assert steady["movieId"].max() <= NUM_ITEMS
    assert not steady.equals(few)
    with pytest.raises(UserError, match=r"^days: 6; give 1 to 5"):
        generate(tmp_path / "none", 5, days=6)
