"""What rows are told of earlier events: the same bits by both engines, and nothing of a label that is not known yet."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import rayrec
from benchmarks.preprocess_kills import files_of
from rayrec.features.lookups import Lookups
from rayrec.features.raw_columns import STATISTICS_FOLDER
from rayrec.features.schema import Schema
from rayrec.ingest.dataset import Dataset
from rayrec.preprocessing.engine import EmbeddedEngine, Engine
from rayrec.preprocessing.spark import SparkEngine
from rayrec.recipes import Recipe, dump_recipe
from rayrec.sources.registry import preprocessing
from tests.builders import make_recipe

TIME = {"column": "ts", "format": "s"}
BASE: dict[str, Any] = {"kind": "table", "label": "click", "time": TIME}


def make_log(rows: int = 6_000) -> pd.DataFrame:
    """Return rows, half of them of one user, many of them of one moment; numbers are no multiples of a power of 2."""
    random = np.random.default_rng(5)
    columns = {
        "ts": 1_700_000_000 + np.sort(random.integers(0, rows // 3, rows)) * 40,
        "user": np.where(random.random(rows) < 0.5, 7, random.integers(0, 300, rows)),
        "item": random.integers(0, 60, rows),
        "price": np.where(random.random(rows) < 0.1, np.nan, random.random(rows) * 9),
        "click": random.integers(0, 2, rows),
    }
    return pd.DataFrame(columns)


def recipe_of(events: Path) -> Recipe:
    last = {"op": "last", "column": "item", "length": 5}
    user = ["count", "age", "rate", {"op": "mean", "column": "price"}, {"op": "sum", "column": "price"}, last]
    source = {
        **BASE,
        "features": [
            {"kind": "categorical", "columns": ["user", "item"], "min_count": 1},
            {"kind": "numeric", "columns": "price"},
        ],
        "histories": {
            "user": {"by": "user", "take": user},
            "lately": {"by": "user", "window": "1h", "delay": "30s", "known": "10m", "take": user},
            "both": {"by": ["user", "item"], "where": {"column": "click", "equals": "1"}, "take": ["count"]},
            "views": {"by": "item", "path": str(events), "take": ["count", {"op": "rate", "column": "price"}]},
        },
        "rates": [{"keys": "item", "smoothing": 3}],
    }
    return make_recipe(source=source, preprocess={"split": {"kind": "time", "test": 0.2}, "frequency_limit": 1})


Completed = Callable[..., pa.RecordBatch]


@pytest.fixture
def completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Completed:
    """Preprocess rows that lie in some files, and return what is looked up for those of the log."""
    monkeypatch.setattr("rayrec.preprocessing.lookups.ROWS_PER_RANGE", 1_500)  # so that tables are several files
    log = make_log()
    log.assign(ts=log.ts - 7).drop(columns=["user", "click"]).to_csv(tmp_path / "events.csv", index=False)
    recipe = recipe_of(tmp_path / "events.csv")

    def run(name: str, rows: pd.DataFrame, engine: Engine, files: int, before: str | None = None) -> pa.RecordBatch:
        (tmp_path / f"{name}-log").mkdir()
        for number in range(files):
            rows[number::files].to_csv(tmp_path / f"{name}-log" / f"{files - number}.csv", index=False)
        parent = None if before is None else Dataset.open(tmp_path / before)
        preprocessing(recipe, {None: [str(tmp_path / f"{name}-log")]}, tmp_path / name, parent).run(engine)
        columns = {
            "user": log.user.astype(str),
            "item": log["item"].astype(str),
            "price": log.price,
            "ts": pd.to_datetime(log.ts, unit="s", utc=True),
        }
        raw = pa.RecordBatch.from_pydict({column: pa.array(values) for column, values in columns.items()})
        return Lookups(Schema.load(tmp_path / name), tmp_path / name).complete(raw)

    return run


def test_engines_workers_files_and_later_rows_change_no_bit(completed: Completed, spark: Any, tmp_path: Path) -> None:
    log = make_log()
    shuffled = log.sample(frac=1, random_state=3)
    later = log.assign(ts=log.ts + log.ts.max() - log.ts.min(), click=1 - log.click)
    expected = completed("one", log, EmbeddedEngine(1), 1)
    assert expected.num_columns == 4 + 2 * 6 + 1 + 2 + 1
    assert expected.equals(completed("spark", shuffled, SparkEngine(spark), 4))
    assert expected.equals(completed("two", shuffled, EmbeddedEngine(2), 3))
    # The first row of what comes later is of the moment of the last one.
    assert expected.equals(completed("more", pd.concat([log, later]), EmbeddedEngine(2), 2))
    # The rows that come later may be those of another day.
    assert expected.equals(completed("next of one", later, EmbeddedEngine(1), 1, "one"))
    assert expected.equals(completed("next of spark", later, SparkEngine(spark), 2, "spark"))

    def tables(name: str) -> dict[str, str]:
        return files_of(tmp_path / name / STATISTICS_FOLDER)

    assert tables("one") == tables("spark") == tables("two") and len(tables("one")) > 10
    assert tables("next of one") == tables("next of spark") != tables("one")


SESSIONS, USERS = 8_000, 250


def make_sessions() -> pd.DataFrame:
    """Return rows whose labels nothing tells but rows of the same moment, which share it (`own`), and later ones, which
    have the label of the user's session before (`before`).
    """
    random = np.random.default_rng(11)
    columns = {
        "ts": 1_700_000_000 + np.sort(random.choice(10**6, SESSIONS, replace=False)),
        "user": random.integers(0, USERS, SESSIONS),
        "click": random.integers(0, 2, SESSIONS),
    }
    sessions = pd.DataFrame(columns)
    sessions["own"] = sessions.click.map({0: "no", 1: "yes"})
    sessions["before"] = sessions.groupby("user").click.shift(1)
    return sessions.loc[sessions.index.repeat(random.integers(1, 4, SESSIONS))]


@pytest.mark.parametrize("is_early", [False, True])
def test_labels_that_are_not_known_yet_tell_nothing(is_early: bool, tmp_path: Path) -> None:
    log = make_sessions()
    log.to_csv(tmp_path / "log.csv", index=False)
    last = {"op": "last", "column": "own", "length": 2}
    history: dict[str, Any] = {
        "by": "user",
        "take": ["count", "age", {"op": "mean", "column": "before"}, last, {"op": "rate", "column": "before"}],
    }
    if is_early:  # the same events as a careless join has them: what is known later is there before the row
        log.assign(ts=log.ts - 1, before=log.click).to_csv(tmp_path / "events.csv", index=False)
        history["path"] = str(tmp_path / "events.csv")
    else:
        history["take"].append("rate")
    source = {
        **BASE,
        "ignore": ["own", "before"],
        "features": [{"kind": "categorical", "columns": "user", "min_count": 1}],
        "histories": {"past": history},
        "rates": [{"keys": "user"}],
    }
    recipe = make_recipe(
        source=source,
        preprocess={"split": {"kind": "time", "test": 0.5}},
        model={"kind": "dlrm", "embedding_dim": 8, "bottom_mlp": [16, 8], "top_mlp": [16]},
        train={"global_batch_size": 128, "epochs": 3, "device": "cpu"},
    )
    (tmp_path / "recipe.yaml").write_text(dump_recipe(recipe))
    preprocessing(recipe, {None: [str(tmp_path / "log.csv")]}, tmp_path / "data").run(EmbeddedEngine(2))
    metrics = rayrec.train(
        tmp_path / "recipe.yaml", data=tmp_path / "data", output=tmp_path / "run", on="process", progress=False
    ).metrics
    # Rows of one moment share their label, so that moments are what there is of independent ones.
    error = (1 / 3 / (SESSIONS / 2)) ** 0.5
    auc = metrics["test"]["auc"]
    assert auc is not None
    assert auc > 0.9 if is_early else abs(auc - 0.5) < 3 * error
