"""Events that a row brings count as if the table had them, and wrong ones are refused by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from rayrec.common.errors import UserError
from rayrec.features.lookups import Lookups
from rayrec.features.schema import Schema
from rayrec.inference.raw_rows import RawRows
from tests.unit.test_past import SOURCE, completed, make_log

OF_USER = ["user_count", "user_age", "user_rate", "user_mean_price", "user_sum_price", "user_last_item", "liked_count"]
USER = "3"
FIRST, LAST = 1_700_000_000, 1_700_000_000 + 6_000


@pytest.fixture(scope="module")
def log() -> pd.DataFrame:
    return make_log(700)


@pytest.fixture(scope="module", params=[LAST, FIRST], ids=["newest", "all"])
def since(request: pytest.FixtureRequest) -> int:
    """Return when the events of the user begin that the second table lacks: all of them, if it does not know him."""
    moment: int = request.param
    return moment


@pytest.fixture(scope="module", params=[True, False], ids=["window", "no window"])
def folders(
    log: pd.DataFrame, since: int, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[Path]:
    """Return a dataset of all events, and one without those of the user since then."""
    folder, source = tmp_path_factory.mktemp("brought"), SOURCE
    if not request.param:
        user = {**SOURCE["histories"]["user"], "window": None, "delay": None}
        source = {**SOURCE, "histories": {**SOURCE["histories"], "user": user}}
    logs = {"all": log, "some": log[~_is_brought(log, since)]}
    for name, given in logs.items():
        completed(given, folder / name, source)
    return [folder / name / "dataset" for name in logs]


def _is_brought(log: pd.DataFrame, since: int) -> pd.Series:
    return (log.user == USER) & (log.ts >= since)


def _rows(log: pd.DataFrame) -> list[dict[str, Any]]:
    """Return rows of the user, at moments of events and between them."""
    moments = [FIRST, LAST, LAST + 1, *log.ts[_is_brought(log, FIRST)].unique().tolist(), LAST + 10**6]
    return [{"user": USER, "item": item, "ts": moment} for item in ("4", "5") for moment in moments]


def _bringing(rows: list[dict[str, Any]], log: pd.DataFrame, since: int) -> list[dict[str, Any]]:
    brought = log[_is_brought(log, since)]
    brought = brought.iloc[np.random.default_rng(1).permutation(len(brought))]

    def events(columns: list[str], of: pd.DataFrame) -> list[dict[str, Any]]:
        return [{name: one for name, one in row.items() if one == one} for row in of[columns].to_dict("records")]

    return [
        {
            **row,
            "user_events": events(["ts", "click", "price", "item"], brought),
            "liked_events": events(["ts", "click"], brought[brought.item == row["item"]]),
        }
        for row in rows
    ]


def test_a_past_that_comes_with_rows_is_the_tables_bit_for_bit(
    log: pd.DataFrame, since: int, folders: list[Path]
) -> None:
    rows = _rows(log)
    whole, brought = (
        Lookups(schema := Schema.load(folder), folder).complete(RawRows(schema).from_rows(given)).to_pandas()[OF_USER]
        for folder, given in zip(folders, (rows, _bringing(rows, log, since)), strict=True)
    )
    pd.testing.assert_frame_equal(whole, brought, check_exact=True)
    without = Lookups(Schema.load(folders[1]), folders[1]).complete(RawRows(schema).from_rows(rows)).to_pandas()
    assert (without.user_count < whole.user_count).mean() > 0.2


def test_each_way_in_reads_the_same_events(log: pd.DataFrame, since: int, folders: list[Path]) -> None:
    given = _bringing(_rows(log)[::3], log, since)
    schema = Schema.load(folders[1])
    rows, lookups = RawRows(schema), Lookups(schema, folders[1])
    ways: dict[str, Callable[[], pa.RecordBatch]] = {
        "JSON": lambda: rows.from_rows(given),
        "stacked": lambda: lookups.complete_stacked(rows.stacked(given)).batch(),
        "texts": lambda: rows.from_rows([_as_texts(row) for row in given]),
        "Arrow": lambda: rows.from_batch(pa.RecordBatch.from_pylist(given)),
        "pandas": lambda: rows.from_batch(pa.RecordBatch.from_pandas(pd.DataFrame(given))),
        "read again": lambda: rows.from_batch(rows.from_rows(given)),
    }
    found = {name: lookups.complete(way()).select(OF_USER) for name, way in ways.items()}
    for name, one in found.items():
        assert one.equals(found["JSON"]), name


def _as_texts(row: dict[str, Any]) -> dict[str, Any]:
    events = [{name: str(value) for name, value in event.items()} for event in row["user_events"]]
    return {**row, "user_events": tuple(events)}


WRONG: list[tuple[Any, str]] = [
    ("x", r"row 1, 'user_events': the string 'x'; needs a list of at most 1,000 objects with ts, click, price, item"),
    ({"ts": 1}, r"row 1, 'user_events': an object; needs a list of at most"),
    ([1], r"row 1, 'user_events', event 0: the number 1; needs an object with ts, click, price, item"),
    ([{}], r"row 1, 'user_events', event 0: has no 'ts'; needs a time in s since 1970"),
    ([{"ts": "x"}], r"row 1, 'user_events', event 0, 'ts': the string 'x'; needs a time in s since 1970"),
    ([{"ts": 1, "click": 1, "time": 2}], r"row 1, 'user_events', event 0: unknown field 'time'; fields: "),
    (
        [{"ts": 1, "click": 1}, {"ts": 1, "click": 1, "price": "?"}],
        r"event 1, 'price': the string '\?'; needs a number",
    ),
    ([{"ts": 1, "click": 1}, {"ts": 1}], r"row 1, 'user_events', event 1: has no 'click' that tells its label"),
    ([{"ts": 1, "click": 5}], r"row 1, 'user_events', event 0: has no 'click' that tells its label"),
    ([{"ts": 1, "click": 1}] * 1_001, r"row 1, 'user_events': 1,001 events; needs a list of at most 1,000 objects"),
]


@pytest.mark.parametrize(("events", "message"), WRONG, ids=[message[:60] for _, message in WRONG])
def test_wrong_events_are_named(events: Any, message: str, folders: list[Path]) -> None:
    rows = RawRows(Schema.load(folders[1]))
    with pytest.raises(UserError, match=message) as raised:
        rows.from_rows([{"user": "3"}, {"user": "3", "user_events": events}])
    assert "\n" not in str(raised.value)
    rows.from_rows([{"user": "3", "user_events": None}, {"user": "3", "user_events": []}])
