"""Rows of keys, item and time alone get the score of their evaluation, whatever way they come in."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import requests
from numpy.typing import NDArray

import rayrec
from jobs.serve import ServeRequest, serving
from rayrec.common.machine import free_port
from rayrec.common.progress import SilentProgress
from rayrec.features.raw_columns import STATISTICS_FOLDER
from rayrec.features.schema import Schema
from rayrec.inference.export import write_statistics
from serve.arrow import MEDIA_TYPE, stream_of
from tests.end_to_end.bad_tables import PAST
from tests.model_folders import finish

FIRST, DAY = 1_700_000_000, 86_400
TEST = 0.2
RECIPE: dict[str, Any] = {
    "name": "past",
    "source": {
        "kind": "table",
        "label": {"column": "rating", "at_least": 4},
        "candidate": "item_id",
        "time": {"column": "ts", "format": "s"},
        "features": [
            {"kind": "categorical", "columns": ["user_id", "item_id"]},
            {"kind": "timestamp", "columns": "ts", "format": "s", "derive": ["hour"]},
        ],
        "histories": {
            "user": {
                "by": "user_id",
                "take": ["count", "rate", "age", {"op": "last", "column": "item_id", "length": 4}],
            },
            "liked": {
                "by": "user_id",
                "where": {"column": "rating", "at_least": 4},
                "window": "2d",
                "take": ["count", {"op": "mean", "column": "price"}],
            },
            "item": {"by": "item_id", "known": "1h", "delay": "10m", "take": ["count"]},
        },
        "rates": [{"keys": "user_id"}],
    },
    "preprocess": {"split": {"kind": "time", "test": TEST}, "frequency_limit": 2},
    "model": {
        "kind": "wide_deep",
        "embedding_dim": 8,
        "mlp": [16, 8],
        "sequences": {"user": {"kind": "transformer"}},
    },
    "train": {"epochs": 1, "global_batch_size": 64},
}
KEYS = ["user_id", "item_id", "ts"]
EVENTS = {"user": ["ts", "rating", "item_id"], "liked": ["ts", "rating", "price"], "rate_user_id": ["ts", "rating"]}


def make_log(rows: int = 1_500) -> pd.DataFrame:
    """Return rows in order of time: some people come late, so that `train` has none of them."""
    rng = np.random.default_rng(7)
    times = FIRST + np.sort(rng.integers(0, 8 * DAY, rows)) // 20 * 20
    late = (np.arange(rows) > 0.78 * rows) * 40
    users = rng.integers(0, 40, rows) + late
    ratings = rng.integers(1, 6, rows)
    prices = np.where(rng.random(rows) < 0.2, np.nan, np.round(rng.random(rows) * 9, 2))
    items = rng.integers(0, 25, rows)
    frame = {
        "user_id": users.astype(str),
        "item_id": items.astype(str),
        "ts": times,
        "rating": ratings,
        "price": prices,
    }
    return pd.DataFrame(frame)


def exported(log: pd.DataFrame, folder: Path) -> Path:
    """Preprocess a log, train a model, and return the folder of the export."""
    folder.mkdir()
    log.to_csv(folder / "log.csv", index=False)
    (folder / "recipe.yaml").write_text(json.dumps(RECIPE))
    data, ran = folder / "data", folder / "run"
    rayrec.preprocess(
        recipe=folder / "recipe.yaml", input=[str(folder / "log.csv")], output=data, on="process", progress=False
    )
    rayrec.train(recipe=folder / "recipe.yaml", data=data, output=ran, on="process", progress=False)
    rayrec.export(run=ran, output=folder / "past", progress=False)
    return folder / "past"


@pytest.fixture(scope="module")
def log() -> pd.DataFrame:
    return make_log()


@pytest.fixture(scope="module")
def model(log: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(log, tmp_path_factory.mktemp("past") / "all")


@pytest.fixture(scope="module")
def evaluated(model: Path) -> NDArray[np.float32]:
    """Return the scores of the test split, as evaluations have them."""
    output = model.parent / "scores"
    rayrec.predict(
        model=model, input=str(model.parent / "data"), split="test", output=output, on="process", progress=False
    )
    scores: NDArray[np.float32] = pq.read_table(output / "scores")["score"].to_numpy()
    return scores


@pytest.fixture(scope="module")
def url(ray_cluster: str, model: Path) -> Iterator[str]:
    with serving(ServeRequest(model=(model,), port=free_port()), SilentProgress()) as address:
        yield address


def _test_rows(log: pd.DataFrame) -> pd.DataFrame:
    return log.iloc[-int(TEST * len(log)) :][KEYS]


def _predictions(url: str, instances: list[dict[str, Any]]) -> NDArray[np.float32]:
    answer = requests.post(f"{url}/v1/models/past:predict", json={"instances": instances}, timeout=60)
    assert answer.status_code == 200, answer.text
    return np.array(answer.json()["predictions"], np.float32)


def test_keys_and_times_alone_get_the_score_of_their_evaluation(
    url: str, log: pd.DataFrame, model: Path, evaluated: NDArray[np.float32]
) -> None:
    rows = _test_rows(log)
    is_new = ~rows.user_id.isin(log.user_id[: -len(rows)])
    assert is_new.sum() > 20 and len(rows) == len(evaluated)

    assert np.array_equal(_predictions(url, rows.to_dict("records")), evaluated)
    body = stream_of(pa.RecordBatch.from_pandas(rows, preserve_index=False))
    answer = requests.post(f"{url}/v1/models/past:predict", data=body, headers={"Content-Type": MEDIA_TYPE}, timeout=60)
    assert np.array_equal(pa.ipc.open_stream(answer.content).read_all()["score"].to_numpy(), evaluated)
    for suffix, write in (("csv", rows.to_csv), ("parquet", rows.to_parquet)):
        path = model.parent / f"rows.{suffix}"
        write(path, index=False)
        output = model.parent / f"scores of {suffix}"
        rayrec.predict(model=model, input=str(path), raw=True, output=output, on="process", progress=False)
        assert np.array_equal(pq.read_table(output / "scores")["score"].to_numpy(), evaluated)


def test_a_context_brings_a_session_once_for_all_candidates(url: str, log: pd.DataFrame, model: Path) -> None:
    moment, session = int(log.ts.max()) + 60, [{"ts": int(log.ts.max()) + 1, "rating": 5, "item_id": "3"}]
    context = {"user_id": "nobody knows", "ts": moment, "user_events": session}
    candidates = [str(item) for item in range(25)]
    body = {"context": context, "candidates": candidates}
    answer = requests.post(f"{url}/v1/models/past:rank", json=body, timeout=60).json()
    rows = [{**context, "item_id": item} for item in candidates]
    expected = dict(zip(candidates, _predictions(url, rows), strict=True))
    assert {one["candidate"]: np.float32(one["score"]) for one in answer["candidates"]} == expected
    without = requests.post(f"{url}/v1/models/past:predict", json={**rows[0], "user_events": []}, timeout=60).json()
    assert abs(without["predictions"][0] - expected["0"]) > 1e-6, "the session plays a part"
    explained = requests.post(f"{url}/v1/models/past:explain", json=rows[0], timeout=60).json()["explanations"][0]
    assert explained["parts"].keys() >= {"user_count", "user_rate", "liked_count", "item_count"}
    for case in PAST:
        refused = requests.post(f"{url}/v1/models/{case.model}:{case.verb}", case.body, timeout=60)
        assert (refused.status_code, refused.json()) == (case.status, {"error": case.message}), case.title


@pytest.mark.parametrize("place", range(2))
def test_people_whose_events_come_with_the_rows_get_the_same_scores(
    place: int, log: pd.DataFrame, model: Path, evaluated: NDArray[np.float32], tmp_path: Path
) -> None:
    """Rows of a person are scored by a model that has not got the newer events of that person."""
    rows = _test_rows(log)
    user = rows.user_id.value_counts().index[place]
    is_brought = (log.user_id == user) & (log.ts >= rows.ts.min())
    lacking = rayrec.load_model(_with_past_of(model, log[~is_brought], tmp_path))
    newer = log[is_brought].sample(frac=1, random_state=1)
    given = [
        {
            **row,
            **_events(newer),
            "item_events": _events(newer[newer.item_id == row["item_id"]], {"item": ["ts"]})["item_events"],
        }
        for row in rows[rows.user_id == user].to_dict("records")
    ]
    whole = rayrec.load_model(model).predict(rows[rows.user_id == user])
    assert np.array_equal(lacking.predict(given), whole)
    assert np.array_equal(lacking.predict(pa.Table.from_pylist(given)), whole)
    assert not np.array_equal(lacking.predict(rows[rows.user_id == user]), whole)
    # Of JSON lines and Parquet, too.
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in given))
    pq.write_table(pa.Table.from_pylist(given), tmp_path / "rows.parquet")
    for name in ("rows.jsonl", "rows.parquet"):
        output = tmp_path / f"scores of {name}"
        rayrec.predict(
            model=lacking.folder, input=str(tmp_path / name), raw=True, output=output, on="process", progress=False
        )
        assert np.array_equal(pq.read_table(output / "scores")["score"].to_numpy(), whole), name


def _events(events: pd.DataFrame, columns: dict[str, list[str]] = EVENTS) -> dict[str, list[dict[str, Any]]]:
    return {
        f"{name}_events": [
            {column: value for column, value in event.items() if value == value}
            for event in events[of].to_dict("records")
        ]
        for name, of in columns.items()
    }


def _with_past_of(model: Path, log: pd.DataFrame, folder: Path) -> Path:
    """Return a copy of a model folder that has the histories of another log."""
    log.to_csv(folder / "log.csv", index=False)
    recipe = model.parent / "recipe.yaml"
    rayrec.preprocess(
        recipe=recipe, input=[str(folder / "log.csv")], output=folder / "data", on="process", progress=False
    )
    shutil.copytree(model, folder / "past", ignore=shutil.ignore_patterns(STATISTICS_FOLDER))
    statistics = folder / "past" / STATISTICS_FOLDER
    write_statistics(Schema.load(model), folder / "data" / STATISTICS_FOLDER, statistics)
    finish(folder / "past")
    return folder / "past"
