"""What rows are told of earlier events is what pandas finds by going through all of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from rayrec.features.lookups import Lookups
from rayrec.features.schema import Schema
from rayrec.preprocessing.engine import EmbeddedEngine
from rayrec.sources.registry import preprocessing
from tests.builders import make_recipe

DAY = 86_400
SOURCE: dict[str, Any] = {
    "kind": "table",
    "label": "click",
    "time": {"column": "ts", "format": "s"},
    "features": [{"kind": "categorical", "columns": ["user", "item"]}, {"kind": "numeric", "columns": "price"}],
    "histories": {
        "user": {
            "by": "user",
            "window": "1h",
            "delay": "30s",
            "take": [
                "count",
                "age",
                "rate",
                {"op": "mean", "column": "price"},
                {"op": "sum", "column": "price"},
                {"op": "last", "column": "item", "length": 5},
            ],
        },
        "liked": {"by": ["user", "item"], "where": {"column": "click", "equals": "1"}, "take": ["count"]},
        "daily": {"by": "item", "known": "1h", "take": ["count"]},
    },
    "rates": [{"keys": "item", "smoothing": 3}],
}


def make_log(rows: int = 500) -> pd.DataFrame:
    """Return rows in order of time, many of them of one moment, some without a price."""
    rng = np.random.default_rng(3)
    times = 1_700_000_000 + np.sort(rng.integers(0, rows // 3, rows)) * 40
    prices = np.where(rng.random(rows) < 0.1, np.nan, np.round(rng.random(rows) * 9, 2))
    users, items = rng.integers(0, 25, rows), rng.integers(0, 12, rows)
    return pd.DataFrame(
        {"ts": times, "user": users, "item": items, "price": prices, "click": rng.integers(0, 2, rows)}
    ).astype({"user": str, "item": str})


def completed(
    log: pd.DataFrame, folder: Path, source: dict[str, Any] = SOURCE, split: dict[str, Any] | None = None
) -> pd.DataFrame:
    """Preprocess a log, and return its rows with what is looked up for them."""
    folder.mkdir()
    log.to_csv(folder / "log.csv", index=False)
    split = split or {"kind": "fraction", "test": 0.2}
    recipe = make_recipe(source=source, preprocess={"split": split, "frequency_limit": 1})
    preprocessing(recipe, {None: [str(folder / "log.csv")]}, folder / "dataset").run(EmbeddedEngine(2))
    columns = {"user": log["user"], "item": log["item"], "ts": pd.to_datetime(log["ts"], unit="s", utc=True)}
    raw = pa.RecordBatch.from_pydict({name: pa.array(column) for name, column in columns.items()})
    return Lookups(Schema.load(folder / "dataset"), folder / "dataset").complete(raw).to_pandas()


def test_counts_rates_ages_and_lists_are_those_of_earlier_events(tmp_path: Path) -> None:
    log = make_log()
    found = completed(log, tmp_path / "all")
    for row, given in zip(found[::4].itertuples(), log[::4].itertuples(), strict=True):
        seen = log[log.ts + 30 < given.ts]
        past = seen[(seen.user == given.user) & (seen.ts >= given.ts - 30 - 3_600)]
        assert row.user_count == len(past)
        assert row.user_age == pytest.approx((given.ts - past.ts.max()) / DAY, nan_ok=True)
        assert row.user_mean_price == pytest.approx(past.price.mean(), nan_ok=True)
        assert row.user_sum_price == pytest.approx(past.price.sum())
        # Ties of time are in the order of values: of the label, the price and the item.
        ordered = past.sort_values(["ts", "click", "price", "item"])
        assert list(row.user_last_item) == ordered["item"].tolist()[-5:]
        minutes = log[log.ts < (given.ts - 30) // 60 * 60].click
        mean, smoothing = (minutes.mean(), 5) if len(minutes) else (0.0, 0)
        rate = (past.click.sum() + smoothing * mean) / max(len(past) + smoothing, 1e-9)
        assert row.user_rate == pytest.approx(rate if len(past) + smoothing else np.nan, nan_ok=True)
        assert row.liked_count == len(
            log[(log.user == given.user) & (log.item == given.item) & (log.ts < given.ts) & (log.click == 1)]
        )
        assert row.daily_count == len(log[(log.item == given.item) & (log.ts < given.ts // 3_600 * 3_600)])
        earlier = log[(log.ts < given.ts) & (log.item == given.item)].click
        minutes = log[log.ts < given.ts // 60 * 60].click
        if len(minutes):
            assert row.rate_item == pytest.approx((earlier.sum() + 3 * minutes.mean()) / (len(earlier) + 3))


def test_later_rows_and_the_order_of_rows_change_nothing(tmp_path: Path) -> None:
    log = make_log()
    until = log.ts.searchsorted(log.ts[300])  # later rows may be of the same moment
    first, all_rows = completed(log[:until], tmp_path / "first"), completed(log, tmp_path / "all")
    pd.testing.assert_frame_equal(first, all_rows[:until])
    order = np.random.default_rng(0).permutation(len(log))
    shuffled = completed(log.iloc[order].reset_index(drop=True), tmp_path / "shuffled")
    pd.testing.assert_frame_equal(shuffled.iloc[order.argsort()].reset_index(drop=True), all_rows)


def test_events_are_told_by_columns_of_side_tables(tmp_path: Path) -> None:
    log = make_log(200)
    cities = np.array(["p", "q", "r"])[np.arange(25) % 3]
    pd.DataFrame({"id": np.arange(25), "city": cities}).to_csv(tmp_path / "users.csv", index=False)
    history = {
        "by": "item",
        "where": {"column": "of_city", "equals": ["p", "q"]},
        "take": ["count", {"op": "last", "column": "of_city", "length": 2}],
    }
    source = {
        **SOURCE,
        "rates": [],
        "tables": {"of": {"path": str(tmp_path / "users.csv"), "key": "id", "on": "user"}},
        "histories": {"item": history},
    }
    found = completed(log, tmp_path / "all", source)
    of_user = log.user.astype(int) % 3
    for row, given in zip(found.itertuples(), log.itertuples(), strict=True):
        past = log[(log.ts < given.ts) & (log.item == given.item) & (of_user < 2)]
        assert row.item_count == len(past)
        # Events of one moment are in the order of their values.
        by_time = past.assign(city=cities[of_user[past.index]]).sort_values(["ts", "city"]).city
        assert list(row.item_last_of_city) == by_time.tolist()[-2:]
