"""The 54 features of NVIDIA's first version, in the order of docs/outbrain.md."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rayrec.features.keyed_table import UNKNOWN
from rayrec.features.mapped_columns import Numbers
from rayrec.sources.outbrain.features.categorical import code_feature, id_feature, list_feature, place_feature
from rayrec.sources.outbrain.features.definitions import Definition, plain, scaled_count, scaled_share
from rayrec.sources.outbrain.features.rates import compute_rate, confidence_of, rate_of, views_of
from rayrec.sources.outbrain.features.rows import Rows
from rayrec.sources.outbrain.features.similarity import (
    landing_similarity,
    user_similarity,
    user_similarity_confidence,
)
from rayrec.sources.outbrain.features.time import days_since_published, hour_bin, is_weekend
from rayrec.sources.outbrain.statistics import ASPECTS, PLURALS, Aspect

_LIST_LENGTHS: dict[Aspect, int] = {"entity": 6, "topic": 3, "category": 3}


def full_features() -> tuple[Definition, ...]:
    """The definitions, in order."""
    return (*_request(), *_item())


def _request() -> Iterator[Definition]:
    yield id_feature("doc_event_id", lambda rows: rows.landing_id, 300_000)
    yield id_feature("doc_id", lambda rows: rows.ad_document_id, 100_000)
    yield id_feature("doc_event_source_id", lambda rows: rows.of_landing("source_id"), 4_000)
    yield place_feature("event_geo_location", "place", 2_500)
    yield place_feature("event_country_state", "state", 2_000)
    yield id_feature("doc_event_publisher_id", lambda rows: rows.of_landing("publisher_id"), 1_000)
    yield place_feature("event_country", "country", 300)
    yield code_feature("event_hour", hour_bin, 0, 6)
    yield code_feature("event_platform", lambda rows: rows.numbers("platform"), 1, 3)
    yield code_feature("traffic_source", lambda rows: rows.numbers("traffic_source"), 1, 3)
    yield code_feature("event_weekend", is_weekend, 0, 2)
    yield code_feature("user_has_already_viewed_doc", _has_viewed_ad_document, 0, 2)
    for aspect in ("entity", "topic", "category"):
        yield list_feature(f"doc_event_{aspect}_id", aspect, "landing", _LIST_LENGTHS[aspect], "mean")
    keys = ("document", "publisher", "source", "entity", "topic", "category")
    for key in keys:
        yield scaled_share(f"pop_{key}_id", rate_of(key))
    for key in keys:
        yield plain(f"pop_{key}_id_conf", confidence_of(key))
    yield scaled_count("user_views", _user_views)
    yield scaled_count("doc_views", views_of("document"))
    yield scaled_count("doc_event_days_since_published", days_since_published("landing"))
    yield scaled_count("doc_event_hour", _hour)


def _item() -> Iterator[Definition]:
    yield id_feature("ad_id", lambda rows: rows.ad_id, 250_000)
    yield id_feature("doc_ad_source_id", lambda rows: rows.of_ad_document("source_id"), 4_000)
    yield id_feature("ad_advertiser", lambda rows: rows.of_ad("advertiser_id"), 2_500)
    yield id_feature("doc_ad_publisher_id", lambda rows: rows.of_ad_document("publisher_id"), 1_000)
    for aspect in ("topic", "entity", "category"):
        yield list_feature(f"doc_ad_{aspect}_id", aspect, "ad", _LIST_LENGTHS[aspect], "mean")
    yield scaled_share("pop_ad_id", rate_of("ad"))
    yield plain("pop_ad_id_conf", confidence_of("ad"))
    yield scaled_share("pop_advertiser_id", rate_of("advertiser"))
    yield plain("pop_advertiser_id_conf", confidence_of("advertiser"))
    yield scaled_share("pop_campain_id_conf_multipl", _campaign_rate_times_confidence)
    yield scaled_share("pop_campain_id", rate_of("campaign"))
    for aspect in ASPECTS:
        yield scaled_share(f"user_doc_ad_sim_{PLURALS[aspect]}", user_similarity(aspect))
    for aspect in ASPECTS[:2]:
        yield plain(f"user_doc_ad_sim_{PLURALS[aspect]}_conf", user_similarity_confidence(aspect))
    for aspect in ASPECTS:
        yield scaled_share(f"doc_event_doc_ad_sim_{PLURALS[aspect]}", landing_similarity(aspect))
    yield scaled_count("ad_views", views_of("ad"))
    yield scaled_count("doc_ad_days_since_published", days_since_published("ad"))


def _user_views(rows: Rows) -> NDArray[np.float64]:
    """(n,) page views of the user's profile; NaN without one."""
    views = rows.statistics.profiles.numbers("views", rows.user)
    return np.where(views.valid, views.values, np.nan)


def _has_viewed_ad_document(rows: Rows) -> Numbers:
    """1 if the user has viewed the ad document, else 0; not valid without a profile or an ad document."""
    document = rows.ad_document_id
    has_viewed = rows.statistics.profiles.contains("viewed", rows.user, document.values)
    return Numbers(has_viewed.astype(np.int64), (rows.user != UNKNOWN) & document.valid)


def _campaign_rate_times_confidence(rows: Rows) -> NDArray[np.float64]:
    found = compute_rate(rows, "campaign")
    return found.rate * found.confidence


def _hour(rows: Rows) -> NDArray[np.float64]:
    hour = hour_bin(rows)
    return np.where(hour.valid, hour.values, np.nan)
