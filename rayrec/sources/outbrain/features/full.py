"""The 54 features of NVIDIA's first version, in the order of docs/outbrain.md."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.features.mapped_columns import Numbers
from rayrec.sources.outbrain.features import identifiers, rates, similarity
from rayrec.sources.outbrain.features.definitions import (
    Definition,
    MultiHot,
    OneHot,
    plain,
    scaled_count,
    scaled_share,
)
from rayrec.sources.outbrain.features.profile import has_viewed_ad_document, user_views
from rayrec.sources.outbrain.features.rows import Rows
from rayrec.sources.outbrain.features.time import days_since_published, hour_bin, is_weekend
from rayrec.sources.outbrain.statistics import ASPECTS, PLURALS, Aspect

_LIST_LENGTHS: dict[Aspect, int] = {"entity": 6, "topic": 3, "category": 3}
_LIST_ROWS: dict[Aspect, int] = {"entity": 10_000, "topic": 350, "category": 100}


def full_features(*, original: bool) -> tuple[Definition, ...]:
    """The definitions, in order."""
    return (*_request(original), *_item(original))


def _request(original: bool) -> Iterator[Definition]:
    yield _id("doc_event_id", lambda rows: rows.landing_id, 300_000, original)
    yield _id("doc_id", lambda rows: rows.ad_document_id, 100_000, original)
    yield _id("doc_event_source_id", lambda rows: rows.of_landing("source_id"), 4_000, original)
    yield _text("event_geo_location", "place", 2_500, original)
    yield _text("event_country_state", "state", 2_000, original)
    yield _id("doc_event_publisher_id", lambda rows: rows.of_landing("publisher_id"), 1_000, original)
    yield _text("event_country", "country", 300, original)
    yield _code("event_hour", hour_bin, 0, 6, original)
    yield _code("event_platform", lambda rows: rows.platform, 1, 3, original)
    yield _code("traffic_source", lambda rows: rows.traffic_source, 1, 3, original)
    yield _code("event_weekend", is_weekend, 0, 2, original)
    yield _code("user_has_already_viewed_doc", has_viewed_ad_document, 0, 2, original)
    yield _list("doc_event_entity_id", "entity", "landing", original)
    yield _list("doc_event_topic_id", "topic", "landing", original)
    yield _list("doc_event_category_id", "category", "landing", original)
    keys = ("document", "publisher", "source", "entity", "topic", "category")
    for key in keys:
        yield scaled_share(f"pop_{key}_id", _rate(key))
    for key in keys:
        yield plain(f"pop_{key}_id_conf", _confidence(key))
    yield scaled_count("user_views", user_views)
    yield scaled_count("doc_views", partial(rates.views, name="document"))
    yield scaled_count(
        "doc_event_days_since_published", lambda rows: days_since_published(rows, rows.of_landing("publish_time"))
    )
    yield scaled_count("doc_event_hour", _hour)


def _item(original: bool) -> Iterator[Definition]:
    yield _id("ad_id", lambda rows: rows.ad_id, 250_000, original)
    yield _id("doc_ad_source_id", lambda rows: rows.of_ad_document("source_id"), 4_000, original)
    yield _id("ad_advertiser", lambda rows: rows.of_ad("advertiser_id"), 2_500, original)
    yield _id("doc_ad_publisher_id", lambda rows: rows.of_ad_document("publisher_id"), 1_000, original)
    yield _list("doc_ad_topic_id", "topic", "ad", original)
    yield _list("doc_ad_entity_id", "entity", "ad", original)
    yield _list("doc_ad_category_id", "category", "ad", original)
    yield scaled_share("pop_ad_id", _rate("ad"))
    yield plain("pop_ad_id_conf", _confidence("ad"))
    yield scaled_share("pop_advertiser_id", _rate("advertiser"))
    yield plain("pop_advertiser_id_conf", _confidence("advertiser"))
    yield scaled_share("pop_campain_id_conf_multipl", _product("campaign"))
    yield scaled_share("pop_campain_id", _rate("campaign"))
    for aspect in ASPECTS:
        yield scaled_share(f"user_doc_ad_sim_{PLURALS[aspect]}", _user_similarity(aspect))
    for aspect in ASPECTS[:2]:
        yield plain(f"user_doc_ad_sim_{PLURALS[aspect]}_conf", _user_confidence(aspect))
    for aspect in ASPECTS:
        yield scaled_share(
            f"doc_event_doc_ad_sim_{PLURALS[aspect]}", partial(similarity.landing_similarity, aspect=aspect)
        )
    yield scaled_count("ad_views", partial(rates.views, name="ad"))
    yield scaled_count(
        "doc_ad_days_since_published", lambda rows: days_since_published(rows, rows.of_ad_document("publish_time"))
    )


def _id(name: str, numbers: Callable[[Rows], Numbers], cardinality: int, original: bool) -> OneHot:
    code = identifiers.ids_or_zero if original else identifiers.ids
    return OneHot(name, lambda rows: code(numbers(rows)), cardinality)


def _text(name: str, of: identifiers.TextOf, cardinality: int, original: bool) -> OneHot:
    if original:
        return OneHot(name, lambda rows: identifiers.text_counts(rows, of), cardinality)
    return OneHot(name, lambda rows: identifiers.texts(rows, of), cardinality, "strings")


def _code(name: str, values: Callable[[Rows], Numbers], first: int, size: int, original: bool) -> OneHot:
    """Of `size` values from `first`; but in the original a table has a row more, for missing."""
    return OneHot(
        name,
        lambda rows: identifiers.codes(values(rows), first, original=original),
        size if original else size + 1,
        "codes",
    )


def _list(name: str, aspect: Aspect, document: identifiers.Document, original: bool) -> MultiHot:
    length = _LIST_LENGTHS[aspect]

    def compute(rows: Rows) -> pa.Array:
        if original and aspect == "entity":
            return identifiers.entity_count_list(rows, document, length)
        return identifiers.value_list(rows, aspect, document, length)

    return MultiHot(name, compute, _LIST_ROWS[aspect], length, "mean")


def _rate(key: str) -> Callable[[Rows], NDArray[np.float64]]:
    return lambda rows: rates.rate(rows, key).rate


def _confidence(key: str) -> Callable[[Rows], NDArray[np.float64]]:
    return lambda rows: rates.rate(rows, key).confidence


def _product(key: str) -> Callable[[Rows], NDArray[np.float64]]:
    return lambda rows: rates.rate(rows, key).rate * rates.rate(rows, key).confidence


def _user_similarity(aspect: Aspect) -> Callable[[Rows], NDArray[np.float64]]:
    return lambda rows: similarity.user_similarity(rows, aspect).similarity


def _user_confidence(aspect: Aspect) -> Callable[[Rows], NDArray[np.float64]]:
    return lambda rows: similarity.user_similarity(rows, aspect).confidence


def _hour(rows: Rows) -> NDArray[np.float64]:
    hour = hour_bin(rows)
    return np.where(hour.valid, hour.values, np.nan)
