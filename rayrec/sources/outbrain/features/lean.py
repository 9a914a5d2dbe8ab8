"""The 29 features of NVIDIA's newest version, in the order of docs/outbrain.md."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.features.mapped_columns import Numbers
from rayrec.sources.outbrain.features import identifiers, rates
from rayrec.sources.outbrain.features.definitions import (
    Definition,
    MultiHot,
    OneHot,
    filled_days,
    plain,
    standardized_count,
)
from rayrec.sources.outbrain.features.rows import Rows
from rayrec.sources.outbrain.features.similarity import landing_similarity
from rayrec.sources.outbrain.features.time import days_since_published
from rayrec.sources.outbrain.statistics import ASPECTS, PLURALS, Aspect

_LIST_LENGTH = 3
_LIST_ROWS: dict[Aspect, int] = {"topic": 350, "entity": 10_000, "category": 100}


def lean_features(*, original: bool) -> tuple[Definition, ...]:
    """The definitions, in order."""
    return (*_numeric(original), *_one_hot(original), *_multi_hot())


def _numeric(original: bool) -> Iterator[Definition]:
    for aspect in ASPECTS:
        yield plain(f"document_id_document_id_promo_sim_{PLURALS[aspect]}", partial(landing_similarity, aspect=aspect))
    for name, key in (
        ("document_id_promo", "document"),
        ("publisher_id_promo", "publisher"),
        ("source_id_promo", "source"),
        ("ad_id", "ad"),
        ("advertiser_id", "advertiser"),
        ("campaign_id", "campaign"),
    ):
        yield plain(f"{name}_ctr", _rate(key))
    yield standardized_count("ad_id_count", partial(rates.views, name="ad"))
    yield standardized_count("document_id_promo_count", partial(rates.views, name="document"))
    outside = 0.0 if original else np.nan
    yield filled_days(
        "publish_time_days_since_published",
        lambda rows: days_since_published(rows, rows.of_landing("publish_time"), outside=outside),
    )
    yield filled_days(
        "publish_time_promo_days_since_published",
        lambda rows: days_since_published(rows, rows.of_ad_document("publish_time"), outside=outside),
    )


def _one_hot(original: bool) -> Iterator[Definition]:
    yield _id("document_id", lambda rows: rows.landing_id, 300_000)
    yield _id("ad_id", lambda rows: rows.ad_id, 250_000)
    yield _id("document_id_promo", lambda rows: rows.ad_document_id, 100_000)
    yield _id("campaign_id", lambda rows: rows.of_ad("campaign_id"), 5_000)
    yield _id("source_id", lambda rows: rows.of_landing("source_id"), 4_000)
    yield _id("source_id_promo", lambda rows: rows.of_ad_document("source_id"), 4_000)
    yield _text("geo_location", "place", 2_500)
    yield _id("advertiser_id", lambda rows: rows.of_ad("advertiser_id"), 2_500)
    yield _text("geo_location_state", "state", 2_000)
    yield _id("publisher_id", lambda rows: rows.of_landing("publisher_id"), 1_000)
    yield _id("publisher_id_promo", lambda rows: rows.of_ad_document("publisher_id"), 1_000)
    yield _text("geo_location_country", "country", 300)
    # The original fills in 1 and counts from 0, which is what a missing code is.
    yield OneHot("platform", lambda rows: identifiers.codes(rows.platform, 1, original=original), 4, "codes")


def _multi_hot() -> Iterator[Definition]:
    for aspect in _LIST_ROWS:
        yield MultiHot(f"{aspect}_id_list", _list(aspect), _LIST_ROWS[aspect], _LIST_LENGTH, "sum")


def _id(name: str, numbers: Callable[[Rows], Numbers], cardinality: int) -> OneHot:
    return OneHot(name, lambda rows: identifiers.ids(numbers(rows)), cardinality)


def _text(name: str, of: identifiers.TextOf, cardinality: int) -> OneHot:
    return OneHot(name, lambda rows: identifiers.texts(rows, of), cardinality, "strings")


def _list(aspect: Aspect) -> Callable[[Rows], pa.Array]:
    return lambda rows: identifiers.value_list(rows, aspect, "landing", _LIST_LENGTH)


def _rate(key: str) -> Callable[[Rows], NDArray[np.float64]]:
    return lambda rows: rates.rate(rows, key).rate
