"""Borders in what Outbrain's features are made of; test_preprocess_displays.py has a reference for all of them."""

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rayrec.sources.outbrain import features
from rayrec.sources.outbrain.features import ROW_SCHEMA, AdRows, days_since_published, hour_bin, is_weekend
from rayrec.sources.outbrain.statistics import Statistics
from rayrec.sources.outbrain.tables import DAY_MILLISECONDS, FIRST_MILLISECOND
from tests.outbrain_statistics import Ad, Document, make_constants, make_statistics


def make_rows(statistics: Statistics, rows: list[dict[str, Any]]) -> AdRows:
    return AdRows(statistics, pa.RecordBatch.from_pylist(rows, schema=ROW_SCHEMA))


@pytest.mark.parametrize("feature_set", ["full", "lean"])
def test_values_that_every_document_has(feature_set: str, tmp_path: Path) -> None:
    """ln(N / df) is 0, and so is the norm."""
    documents = {1: Document(topic={1: 0.5}), 2: Document(topic={1: 1.0, 2: 0.5})}
    constants = make_constants(feature_set=feature_set, documents=2)
    statistics = make_statistics(tmp_path, constants, documents=documents, ads={1: Ad(1), 2: Ad(2)})
    rows = make_rows(statistics, [{"document_id": 1, "ad_id": 2}, {"document_id": 2, "ad_id": 2}])
    assert features.landing_similarity(rows, "topic").tolist() == pytest.approx([0.0, 1.0])


def timestamp(text: str) -> int:
    """As in the tables, of a time in UTC."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000) - FIRST_MILLISECOND


@pytest.mark.parametrize(
    ("time", "place", "hour", "weekend"),
    [
        ("2016-06-17T06:59:59.999", "GB", 0, 0),  # 7:59 in London
        ("2016-06-17T03:59:59.999", "GB", 5, 0),
        ("2016-06-17T04:00:00", "GB", 0, 0),
        ("2016-06-17T07:00:00", "GB>X", 1, 0),
        ("2016-06-17T10:00:00", "GB", 2, 0),
        ("2016-06-17T13:00:00", "GB", 3, 0),
        ("2016-06-17T18:00:00", "GB", 4, 0),
        ("2016-06-17T20:59:59", "GB", 4, 0),
        ("2016-06-17T21:00:00", "GB", 5, 0),
        ("2016-06-17T22:59:59", "GB", 5, 0),
        ("2016-06-17T23:00:00", "GB", 5, 1),  # Saturday
        ("2016-06-19T22:59:59", "GB", 5, 1),
        ("2016-06-19T23:00:00", "GB", 5, 0),
        ("2016-06-18T06:59:59", "US>CA>807", 5, 0),  # 23:59 on Friday
        ("2016-06-18T07:00:00", "US>CA>807", 5, 1),
        ("2016-06-18T03:59:59", "US", 5, 0),
        ("2016-06-18T04:00:00", None, 5, 1),  # as New York
        ("2016-06-18T04:00:00", "??", 5, 1),
        ("2016-06-17T23:29:59", "IN>19", 5, 1),  # half an hour off: 4:59:59
        ("2016-06-17T23:30:00", "IN>19", 0, 1),
    ],
)
def test_hours_and_weekends_where_the_user_is(
    time: str, place: str | None, hour: int, weekend: int, tmp_path: Path
) -> None:
    statistics = make_statistics(tmp_path, make_constants())
    rows = make_rows(statistics, [{"ad_id": 1, "timestamp": timestamp(time), "geo_location": place}])
    assert (hour_bin(rows).values[0], is_weekend(rows).values[0]) == (hour, weekend)


def test_without_a_time_there_is_no_hour(tmp_path: Path) -> None:
    rows = make_rows(make_statistics(tmp_path, make_constants()), [{"ad_id": 1, "geo_location": "GB"}])
    assert not hour_bin(rows).valid[0] and not is_weekend(rows).valid[0]


def test_days_since_published(tmp_path: Path) -> None:
    event = FIRST_MILLISECOND + 5 * DAY_MILLISECONDS
    gaps = {0: 0, 1: 0, DAY_MILLISECONDS - 1: 0, DAY_MILLISECONDS: 1, 3651 * DAY_MILLISECONDS - 1: 3650,
            3651 * DAY_MILLISECONDS: math.nan, -1: math.nan, None: math.nan}  # fmt: skip
    documents = {n: Document(published=None if gap is None else event - gap) for n, gap in enumerate(gaps)}
    statistics = make_statistics(tmp_path, make_constants(), documents=documents)
    rows = make_rows(statistics, [{"ad_id": 1, "document_id": n, "timestamp": 5 * DAY_MILLISECONDS} for n in documents])
    found = days_since_published(rows, "landing")
    assert found.tolist() == pytest.approx(list(gaps.values()), nan_ok=True)
    untimed = make_rows(statistics, [{"ad_id": 1, "document_id": 0}])
    assert np.isnan(days_since_published(untimed, "landing")).all()
