"""Features of Outbrain's rows, by hand: rates, similarities, times, codes; and that a row depends on no other."""

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rayrec.sources.outbrain import features
from rayrec.sources.outbrain.feature_sets import features_of, raw_features
from rayrec.sources.outbrain.features import (
    FOLD,
    ROW_SCHEMA,
    AdRows,
    days_since_published,
    hour_bin,
    is_weekend,
)
from rayrec.sources.outbrain.statistics import RATE_KEYS, Constants, Statistics
from rayrec.sources.outbrain.tables import DAY_MILLISECONDS, FIRST_MILLISECOND
from tests.outbrain_statistics import Ad, Count, Document, Profile, make_constants, make_statistics

P, M = 0.2, 20.0


def make_rows(statistics: Statistics, rows: list[dict[str, Any]]) -> AdRows:
    return AdRows(statistics, make_batch(rows))


def make_batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    schema = ROW_SCHEMA.append(pa.field(FOLD, pa.int8())) if any(FOLD in row for row in rows) else ROW_SCHEMA
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def confidence(views: float, ads: int) -> float:
    return min(1.0, math.log(1 + views / ads) / math.log(100_001))


# --- rates


def test_a_row_of_train_does_not_see_its_own_fold(tmp_path: Path) -> None:
    folds = ((10, 4), (3, 3), (7, 0))
    counts = {1: Count(20, 7, ads=2, folds=folds), 2: Count(8, 3, folds=((3, 1), (5, 2), (0, 0)))}
    statistics = make_statistics(tmp_path, make_constants(), rates={"ad": counts})
    rows = make_rows(
        statistics, [{"ad_id": ad, FOLD: fold} for ad, fold in [(1, 0), (1, 1), (1, None), (2, 1), (3, 0)]]
    )
    found = features.compute_rate(rows, "ad")
    assert found.value.tolist() == pytest.approx(
        [(3 + M * P) / (10 + M), (4 + M * P) / (17 + M), (7 + M * P) / (20 + M), P, P]
    )
    # The number of ads is that of all folds; 8 - 5 rows are too few.
    assert found.confidence.tolist() == pytest.approx([confidence(10, 2), confidence(17, 2), confidence(20, 2), 0, 0])
    assert features.views(rows, "ad").tolist() == pytest.approx([20, 20, 20, 8, math.nan], nan_ok=True)


def test_rate_over_the_values_of_a_document(tmp_path: Path) -> None:
    documents = {
        7: Document(category={1: 0.9, 2: 0.5, 3: 0.2}),
        8: Document(category={3: 0.2}),
        9: Document(),
        10: Document(category={4: 0.0}),
    }
    counts = {1: Count(30, 6, 2, 0.8), 2: Count(50, 5, 5, 0.4), 3: Count(10, 9, 1, 0.2), 4: Count(99, 9, 1, 0.5)}
    statistics = make_statistics(
        tmp_path,
        make_constants(),
        documents=documents,
        ads={ad: Ad(document) for ad, document in ((1, 7), (2, 8), (3, 9), (4, 10), (5, None))},
        rates={"category": counts},
    )
    found = features.compute_rate(make_rows(statistics, [{"ad_id": ad} for ad in (1, 2, 3, 4, 5, 6)]), "category")
    weight = {1: confidence(30, 2) * 0.8 * 0.9, 2: confidence(50, 5) * 0.4 * 0.5}
    of = {1: (6 + M * P) / (30 + M), 2: (5 + M * P) / (50 + M)}
    known = sum(of[v] * weight[v] for v in of) / sum(weight.values())
    assert found.value.tolist() == pytest.approx([known, *[P] * 5])
    assert found.confidence.tolist() == pytest.approx([max(weight.values()), *[0.0] * 5])


# --- similarities


def cosine(a: dict[int, float], b: dict[int, float]) -> float:
    dot = sum(a[v] * b[v] for v in a.keys() & b.keys())
    return dot / math.sqrt(sum(x * x for x in a.values())) / math.sqrt(sum(x * x for x in b.values()))


@pytest.mark.parametrize("feature_set", ["full", "lean"])
def test_values_that_every_document_has(feature_set: str, tmp_path: Path) -> None:
    """ln(N / df) is 0, and so is the norm."""
    documents = {1: Document(topic={1: 0.5}), 2: Document(topic={1: 1.0, 2: 0.5})}
    constants = make_constants(feature_set=feature_set, documents=2)
    statistics = make_statistics(tmp_path, constants, documents=documents, ads={1: Ad(1), 2: Ad(2)})
    rows = make_rows(statistics, [{"document_id": 1, "ad_id": 2}, {"document_id": 2, "ad_id": 2}])
    assert features.landing_similarity(rows, "topic").tolist() == pytest.approx([0.0, 1.0])


def test_similarity_of_users(tmp_path: Path) -> None:
    documents = {1: Document(category={1: 0.5, 2: 0.5, 3: 1.0}), 2: Document(category={9: 1.0}), 3: Document()}
    profiles = {"ann": Profile(9, (1, 5), category={1: 2.0, 2: 1.0, 4: 3.0}), "bob": Profile(1, (5,), topic={1: 1.0})}
    statistics = make_statistics(
        tmp_path, make_constants(), documents=documents, ads={n: Ad(n) for n in (1, 2, 3)}, profiles=profiles
    )
    rows = make_rows(
        statistics, [{"uuid": user, "ad_id": ad} for user, ad in
                     [("ann", 1), ("ann", 2), ("ann", 3), ("bob", 1), ("eve", 1), (None, 1)]]
    )  # fmt: skip
    found = features.compute_user_similarity(rows, "category")
    idf = math.log(100)
    vector = {1: 0.5 * idf, 2: 0.5 * idf, 3: idf}
    nothing = [math.nan] * 4
    assert found.value.tolist() == pytest.approx([cosine({1: 2.0, 2: 1.0, 4: 3.0}, vector), 0.0, *nothing], nan_ok=True)
    # Two values in common of 3 and 3 of 10; none in common of 3 and 1.
    expected = [1 - (3 / 10) ** 2 * (3 / 10) ** 2, 3 / 10 * 1 / 10, *nothing]
    assert found.confidence.tolist() == pytest.approx(expected, nan_ok=True)


# --- times


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


# --- whole rows


@pytest.fixture(scope="module", params=["full", "lean"])
def statistics(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Statistics:
    rng = np.random.default_rng(4)

    def some(count: int, most: int) -> dict[int, float]:
        return {int(v): float(c) for v, c in zip(rng.integers(0, most, count), rng.random(count), strict=True)}

    documents = {
        n: Document(
            source=int(rng.integers(5)) if n % 4 else None,
            publisher=int(rng.integers(3)) if n % 3 else None,
            published=FIRST_MILLISECOND - int(rng.integers(10**10)) if n % 5 else None,
            category=some(n % 4, 6),
            topic=some(n % 5, 20),
            entity=some(n % 9, 40),
        )
        for n in range(30)
    }
    counts = {
        name: {n: Count(int(v), int(v) // 3, 2, 0.5) for n, v in enumerate(rng.integers(1, 60, 30))}
        for name in RATE_KEYS
    }
    return make_statistics(
        tmp_path_factory.mktemp("statistics"),
        make_constants(feature_set=request.param),
        documents=documents,
        ads={n: Ad(n % 30 if n % 7 else None, n % 4, n % 3) for n in range(40)},
        rates=counts,
        profiles={f"u{n}": Profile(n, tuple(range(n)), some(n, 6), some(n, 20), some(n, 40)) for n in range(12)},
    )


def random_rows(count: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(9)
    places = ["US>CA>807", "GB", "DE>07", "U", None]
    rows = [
        {
            "ad_id": int(rng.integers(45)),
            "uuid": f"u{rng.integers(15)}",
            "document_id": int(rng.integers(33)),
            "timestamp": int(rng.integers(10**9)),
            "platform": int(rng.integers(1, 4)),
            "geo_location": places[rng.integers(5)],
            "traffic_source": int(rng.integers(1, 4)),
        }
        for _ in range(count)
    ]
    optional = [name for name in ROW_SCHEMA.names if name != "ad_id"]
    return [{name: None if name in optional and rng.random() < 0.1 else v for name, v in row.items()} for row in rows]


def test_a_row_depends_on_no_other(statistics: Statistics) -> None:
    rows = random_rows(60)
    whole = raw_features(statistics, make_batch(rows))
    assert whole.schema.names == [definition.name for definition in features_of(statistics.constants.feature_set)]
    for index, row in enumerate(rows):
        alone = raw_features(statistics, make_batch([row]))
        for name in whole.schema.names:
            np.testing.assert_equal(alone.column(name).to_pylist()[0], whole.column(name)[index].as_py(), name)
    assert raw_features(statistics, make_batch([])).num_rows == 0


def test_rows_of_which_nothing_is_known(statistics: Statistics) -> None:
    (row,) = raw_features(statistics, make_batch([{"ad_id": 10**6}])).to_pylist()
    constants: Constants = statistics.constants
    known = {"ad_id": 10**6}
    rate_names = [n for n in row if n.endswith("_ctr") or (n.startswith("pop_") and "_conf" not in n)]
    known |= dict.fromkeys(rate_names, constants.mean_rate)
    known |= {n: 0.0 for n in row if n.startswith("pop_") and "_conf" in n}
    for definition in features_of(constants.feature_set):
        value = row[definition.name]
        if definition.name in known:
            assert value == pytest.approx(known[definition.name]), definition.name
        elif definition.raw_type == pa.float64():
            assert math.isnan(value), definition.name
        elif pa.types.is_list(definition.raw_type):
            assert value == []
        else:
            assert value is None, definition.name
