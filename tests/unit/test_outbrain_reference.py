"""The pandas reference of Outbrain's features against values worked out by hand, and on the real sample."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rayrec.raw.input_files import list_inputs, plan_chunks
from rayrec.sources.outbrain.outbrain_reader import OutbrainReader, find_files
from rayrec.sources.outbrain.outbrain_tables import OutbrainTable
from rayrec.sources.outbrain.synthetic.generator import generate
from tests.outbrain_reference import (
    COLUMNS,
    FULL_NUMERIC,
    LEAN_NUMERIC,
    Tables,
    compute,
    hour_bin,
    read_tables,
    uniform,
)
from tests.outbrain_tables import SAMPLE, write_sample_tables

DAY = 86_400_000
NOON = 10 * 3_600_000
"""Of day 0, 14 June 2016, a Tuesday: 14:00 UTC."""


def tables(**rows: list[tuple[Any, ...]]) -> Tables:
    """Tables of tuples in the order of their columns; the others are empty."""
    return {
        name: [dict(zip(columns, row, strict=True)) for row in rows.get(name, [])] for name, columns in COLUMNS.items()
    }


def displays_of(split: str, count: int) -> list[int]:
    """Displays that the hash puts into a split on the days before the held-out ones."""
    found = (d for d in range(1, 1_000) if (uniform(d, 0) < 0.2) == (split == "validation"))
    return [next(found) for _ in range(count)]


@pytest.fixture
def small() -> Tables:
    """Eight train displays and one of validation; ad 1 (document 100) is shown in all, clicked in the first four."""
    train, (held_out,) = displays_of("train", 8), displays_of("validation", 1)
    clicks = [(d, ad, int((i < 4) == (ad == 1))) for i, d in enumerate(train) for ad in (1, 2)]
    clicks += [(held_out, 1, 1), (held_out, 2, 0)]
    return tables(
        clicks_train=clicks,
        events=[(d, "u", 7, NOON + 5 * DAY, 2, "US>CA>803") for d in train]
        + [(held_out, "v", 7, NOON + DAY, 1, "DE"), (held_out, "v", 7, NOON + DAY, 2, "DE")],
        promoted_content=[(1, 100, 5, 6), (2, 200, 5, 6)],
        documents_meta=[
            (7, 1, 40, 1_465_876_799_998 - 3 * DAY),
            (100, 3, None, None),
            (200, 2, None, 1_465_876_799_998 + 9 * DAY),
            (300, None, 99, None),
        ],
        documents_categories=[(7, 1000, 0.5), (7, 1001, 0.9), (100, 1000, 0.8), (100, 1000, 0.2), (8, 1001, 1.0)],
        page_views=[
            ("u", 7, 5, 2, "US>CA>803", 1),
            ("u", 7, NOON + 5 * DAY + 9, 2, "US>CA>803", 3),
            ("u", 7, NOON + 5 * DAY - 9, 2, "US>CA>803", 2),
            ("u", 9, 6, 2, "US>CA>803", 2),
            ("v", 100, 3, 2, "DE", 1),
            ("v", 8, NOON + DAY, 2, "DE", 1),
        ],
    )


def first(frame: pd.DataFrame, ad: int) -> pd.Series:
    """The first row of an ad."""
    return frame[frame.index.get_level_values("ad_id") == ad].iloc[0]


def test_identifiers_and_context(small: Tables) -> None:
    found = first(compute(small, "full").raw["validation"], 1)
    expected = {
        "doc_event_id": 7, "doc_id": 100, "doc_event_source_id": 1, "doc_event_publisher_id": 40,
        "doc_ad_source_id": 3, "doc_ad_publisher_id": 42,  # the publishers 41 and 42 are those of sources 2 and 3
        "event_geo_location": "DE", "event_country": "DE", "event_country_state": "DE",
        "event_platform": 1, "event_hour": 4, "event_weekend": 1, "traffic_source": 0,
        "doc_event_category_id": [1001, 1000], "doc_ad_category_id": [1000], "doc_ad_topic_id": [],
        "user_views": 1, "user_has_already_viewed_doc": 2, "doc_event_days_since_published": 4,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected
    assert math.isnan(found["doc_ad_days_since_published"])
    late = first(compute(small, "full").raw["validation"], 2)
    assert late["user_has_already_viewed_doc"] == 1 and math.isnan(late["doc_ad_days_since_published"])


def test_rates_out_of_fold(small: Tables) -> None:
    reference = compute(small, "full")
    prior = 0.5
    validation = first(reference.raw["validation"], 1)
    assert validation["pop_ad_id"] == pytest.approx((4 + 20 * prior) / 28)
    assert validation["pop_ad_id_conf"] == pytest.approx(math.log(9) / math.log(100_001))
    assert (validation["pop_advertiser_id"], validation["ad_views"]) == (0.5, 8)
    assert validation["pop_campain_id_conf_multipl"] == pytest.approx(0.5 * math.log(1 + 8) / math.log(100_001))
    # Category 1000 is on every row of ad 1, with confidence 0.8; V = 8 is too few.
    assert (validation["pop_category_id"], validation["pop_category_id_conf"]) == (prior, 0)
    # A row of train is not told of its own fold.
    displays = displays_of("train", 8)
    fold = {d: int(5 * uniform(d, 1)) for d in displays}
    own = [d for d in displays if fold[d] == fold[displays[0]]]
    views, clicks = 8 - len(own), 4 - sum(d in displays[:4] for d in own)
    train = first(reference.raw["train"], 1)
    assert train["pop_ad_id"] == pytest.approx((clicks + 10) / (views + 20) if views > 5 else prior)


def test_similarities(small: Tables) -> None:
    """N = 3 (document 300 has no source); 1000 is in two documents, 1001 in two, so their weights are the same."""
    found = first(compute(small, "full").raw["validation"], 1)
    assert found["doc_event_doc_ad_sim_categories"] == pytest.approx(0.5 / math.hypot(0.5, 0.9))
    # v has viewed document 100 alone before its event.
    assert found["user_doc_ad_sim_categories"] == pytest.approx(1)
    assert found["user_doc_ad_sim_categories_conf"] == pytest.approx(1 - 0.5 * 0.5)
    assert math.isnan(found["user_doc_ad_sim_topics"]) and math.isnan(found["user_doc_ad_sim_topics_conf"])


def test_traffic_comes_from_the_nearest_page_view(small: Tables) -> None:
    train = compute(small, "full").raw["train"]
    assert len(train) == 16 and set(train["traffic_source"]) == {2}  # as near as the later one, but earlier


@pytest.mark.parametrize(
    ("place", "hours", "expected"),
    [("US>NY>1", 4.99, 5), ("US>NY", 5, 0), ("US>XX", 8, 1), ("US>CA>803", 0, 4), ("IN", 1.49, 1), ("IN>1", 1.5, 2),
     ("NP", 1.26, 2), ("XX", 18.99, 3), (None, 22, 5)],
)  # fmt: skip
def test_local_hours(place: str | None, hours: float, expected: int) -> None:
    """Hours after 4:00 UTC, which is midnight in New York, and 2 ms."""
    assert hour_bin({"timestamp": int(hours * 3_600_000) + 2, "geo_location": place}) == expected


def test_numbers_are_scaled_over_train(small: Tables) -> None:
    small["clicks_train"] += [{"display_id": 999_999, "ad_id": 3, "clicked": 0}]
    reference = compute(small, "full")
    for name in FULL_NUMERIC:
        values = pd.concat([frame[name] for frame in reference.numeric.values()])
        assert values.between(0, 1).all()
        if not name.endswith("_conf"):
            assert reference.numeric["train"][name].max() in (0, 1)
    views = reference.numeric["train"]["ad_views"]
    assert sorted(set(views)) == [0, 1]
    lean = compute(small, "lean").numeric["train"]
    assert lean["ad_id_count"].mean() == pytest.approx(0) and lean["ad_id_count"].std(ddof=0) == pytest.approx(1)
    # The landing page is 8 days old; the display without an event takes the median.
    assert lean["publish_time_days_since_published"].tolist() == pytest.approx([math.log(9)] * 17)


def read_by_reader(folder: Path) -> Tables:
    found = find_files([str(folder)])
    result: Tables = {table.value: [] for table in OutbrainTable}
    for table, file in found.items():
        reader = OutbrainReader.open(table, file)
        for chunk in plan_chunks([file], 2**20):
            for block in reader.read(chunk):
                assert block.rejected.num_rows == 0
                result[table.value] += block.rows.to_pylist()
    return result


def test_generated_tables(tmp_path: Path) -> None:
    """The reader and pandas read the same; both sets of features come out whole."""
    generate(tmp_path / "raw", 1_500, seed=3)
    data = read_tables(tmp_path / "raw")
    assert data == read_by_reader(tmp_path / "raw")
    assert len(list_inputs([str(tmp_path / "raw")])) == 9
    for features, numeric in (("full", FULL_NUMERIC), ("lean", LEAN_NUMERIC)):
        reference = compute(data, features)
        for split, frame in reference.raw.items():
            assert frame.index.is_unique
            assert len(frame.columns) == {"full": 54, "lean": 29}[features] + (split != "test")
            assert tuple(reference.numeric[split].columns) == numeric
            assert np.isfinite(reference.numeric[split].to_numpy()).all()
        assert sum(map(len, reference.raw.values())) == len(data["clicks_train"]) + len(data["clicks_test"])


def test_real_sample(shared_data: Path, tmp_path: Path) -> None:
    write_sample_tables(shared_data / SAMPLE, tmp_path)
    data = read_tables(tmp_path)
    assert data == read_by_reader(tmp_path)
    assert data["events"][0] == {
        "display_id": 1, "uuid": "cb8c55702adb93", "document_id": 379743, "timestamp": 61, "platform": 3,
        "geo_location": "US>SC>519",
    }  # fmt: skip
    assert (len(data["clicks_train"]), len(data["events"]), len(data["promoted_content"])) == (9_999, 1_959, 4_319)
    reference = compute(data, "lean")
    found = pd.concat(reference.raw.values())
    assert len(found) == 9_999
    assert found["document_id"].notna().all() and found["document_id_promo"].isna().all()
    assert (found["platform"] > 0).all() and found["topic_id_list"].map(len).eq(0).all()
    assert reference.numeric["train"]["ad_id_ctr"].std() > 0
    assert (reference.numeric["train"]["document_id_promo_count"] == 0).all()
