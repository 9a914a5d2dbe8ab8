"""Which keys `rayrec inspect` proposes the past of, on generated logs whose truth is known."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from rayrec.inspection.profiles import table_figures
from rayrec.inspection.table.inspected_table import InspectedTable, inspect_table
from rayrec.pages.page import html_of
from rayrec.pages.profiles import inspection_page
from rayrec.preprocessing.column_plan import plan_columns
from rayrec.recipes import load_recipe

ROWS, DAY = 8_000, 86_400
START = 1_700_000_000
Inspect = Callable[[pd.DataFrame], InspectedTable]


@pytest.fixture
def inspect(tmp_path: Path) -> Inspect:
    """Inspects a log, whose recipe must load and suit its columns."""

    def inspect(log: pd.DataFrame) -> InspectedTable:
        path = tmp_path / "log.csv"
        log.to_csv(path, index=False)
        found = inspect_table([str(path)], "click", None, 100_000, "rayrec inspect log.csv")
        (tmp_path / "recipe.yaml").write_text(found.recipe)
        recipe = load_recipe(tmp_path / "recipe.yaml")
        plan_columns(recipe.source, recipe.preprocess.split, list(log.columns), {})
        return found

    return inspect


def source(found: InspectedTable) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(found.recipe)["source"]
    return content


def chances(logit: Any, rng: np.random.Generator) -> Any:
    return (rng.random(len(logit)) < 1 / (1 + np.exp(-logit))).astype(int)


def times(rng: np.random.Generator, rows: int = ROWS) -> Any:
    return START + np.sort(rng.integers(0, 30 * DAY, rows))


def log_of_newcomers(seed: int = 0) -> pd.DataFrame:
    """People come for three days each, and like more or less of what they see; items differ, too."""
    rng = np.random.default_rng(seed)
    ts = times(rng)
    people = np.sort(rng.uniform(-3, 30, 400))
    day = (ts - START) / DAY
    first, end = np.searchsorted(people, day - 3), np.searchsorted(people, day)
    user = first + (rng.random(ROWS) * np.maximum(end - first, 1)).astype(int)
    item = rng.integers(0, 100, ROWS)
    logit = rng.normal(0, 1.5, 500)[user] + rng.normal(0, 0.7, 100)[item]
    return pd.DataFrame({"user_id": user, "item_id": item, "ts": ts, "click": chances(logit, rng)})


def test_the_past_of_new_people_is_proposed(inspect: Inspect) -> None:
    found = inspect(log_of_newcomers())
    first = found.histories[0]
    assert first.by == ("user_id",) and first.auc > first.without + 0.03
    proposed = source(found)["histories"]["user_id"]
    assert proposed["by"] == "user_id" and proposed["take"][:2] == ["count", "rate"] and "delay" not in proposed
    assert "labels count at once: say `delay: 1d`" in found.recipe
    assert f"from {first.without:.3f} to {first.auc:.3f}" in found.recipe
    assert found.new_values is not None and "but the past of 'user_id' tells of them" in found.new_values
    figures = table_figures(found, "log.csv")
    assert figures["histories"][0]["take"][:2] == ["count", "rate"] and figures["histories"][0]["auc"] == first.auc
    assert "AUC without it" in html_of(inspection_page(figures))


def test_the_count_alone_is_proposed_where_people_tire(inspect: Inspect) -> None:
    rng = np.random.default_rng(0)
    user = rng.integers(0, 400, ROWS)
    seen = pd.Series(user).groupby(user).cumcount().to_numpy()
    log = pd.DataFrame({"user_id": user, "ts": times(rng), "click": chances(1 - 0.15 * seen, rng)})
    assert "count" in source(inspect(log))["histories"]["user_id"]["take"]


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_proposed_where_the_past_tells_nothing(inspect: Inspect, seed: int) -> None:
    """Random keys, keys of one row each, and ids that `train` knows already."""
    rng = np.random.default_rng(seed)
    item = rng.integers(0, 50, ROWS)
    logit = rng.normal(0, 1, 50)[item] - 1
    log = pd.DataFrame({
        "request_no": rng.permutation(ROWS),
        "visitor": [f"v{n}" for n in rng.integers(0, 900, ROWS)],
        "item_id": item,
        "price": rng.random(ROWS).round(3),
        "ts": times(rng),
        "click": chances(logit, rng),
    })  # fmt: skip
    found = inspect(log)
    assert not found.histories and "histories" not in source(found)


@pytest.mark.parametrize("ts", ["constant", "none"])
def test_nothing_is_proposed_without_times(inspect: Inspect, ts: str) -> None:
    log = log_of_newcomers().assign(ts=START)
    found = inspect(log if ts == "constant" else log.drop(columns="ts"))
    assert "histories" not in source(found) and "time" not in source(found)


def test_rows_of_one_moment_are_no_past(inspect: Inspect) -> None:
    """All rows of a person are of one moment, so none is told of another."""
    log = log_of_newcomers()
    log["ts"] = log.groupby("user_id")["ts"].transform("first")
    assert all(history.by != ("user_id",) for history in inspect(log).histories)


def test_rows_of_one_key(inspect: Inspect) -> None:
    """A key with all rows is constant, and one with many of them is as good as others."""
    log = log_of_newcomers()
    assert "user_id" not in source(inspect(log.assign(user_id=7))).get("histories", {})
    rng = np.random.default_rng(0)
    crowd = log.assign(user_id=np.where(rng.random(ROWS) < 0.4, 7, log["user_id"]))
    assert inspect(crowd).histories[0].by == ("user_id",)


def test_a_pair_is_proposed_if_its_past_tells_more(inspect: Inspect) -> None:
    """The taste of each person for each shop, which neither of them tells; a recipe with times has no other rates."""
    rng = np.random.default_rng(0)
    user, shop = rng.integers(0, 60, 2 * ROWS), rng.integers(0, 6, 2 * ROWS)
    logit = 2 * rng.normal(size=(60, 6))[user, shop]
    log = pd.DataFrame({"user": user, "shop": [f"s{n}" for n in shop], "ts": times(rng, 2 * ROWS)})
    found = source(inspect(log.assign(click=chances(logit, rng))))
    assert "rates" not in found
    (proposed,) = [history for history in found["histories"].values() if isinstance(history["by"], list)]
    assert set(proposed["by"]) == {"user", "shop"}
    assert any(isinstance(take, dict) and take["op"] == "rate" for take in proposed["take"])


def test_a_time_that_comes_with_the_label_says_the_delay(inspect: Inspect) -> None:
    """What is bought within five hours is not known before: the past of a row ends so much earlier."""
    log = log_of_newcomers()
    rng = np.random.default_rng(0)
    log["bought_at"] = np.where(log["click"] == 1, log["ts"] + rng.integers(0, 5 * 3_600, ROWS), np.nan)
    log["bought_at"] = pd.to_datetime(log["bought_at"], unit="s").dt.strftime("%Y-%m-%d %H:%M:%S")
    found = inspect(log)
    assert "bought_at" in source(found)["ignore"]
    assert {history["delay"] for history in source(found)["histories"].values()} == {"5h"}
    assert "a label is known 5h later: 'bought_at' is in 99% of the rows with it" in found.recipe


def test_names_that_are_taken(inspect: Inspect) -> None:
    log = log_of_newcomers()
    rng = np.random.default_rng(1)
    log = log.rename(columns={"user_id": "user.id"}).assign(user_id_count=rng.integers(0, 9, ROWS))
    assert source(inspect(log))["histories"]["user_id_"]["by"] == "user.id"
