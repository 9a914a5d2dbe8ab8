"""The feature sets, in the order of docs/outbrain.md, and the raw features of rows, to which a schema's transforms
are applied."""

from functools import lru_cache
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.features.lookup_table import UNKNOWN
from rayrec.features.table_parts import Numbers
from rayrec.sources.outbrain.features.ad_rows import AdRows
from rayrec.sources.outbrain.features.click_rates import confidence, rate, views
from rayrec.sources.outbrain.features.definitions import (
    AS_IS,
    COUNT,
    DAYS,
    LIST_ROWS,
    LOG_COUNT,
    SHARE,
    Definition,
    code_feature,
    id_feature,
    list_feature,
    number,
    place_feature,
)
from rayrec.sources.outbrain.features.similarity import landing_similarity, user_similarity, user_similarity_confidence
from rayrec.sources.outbrain.features.time import days_since_published, hour_bin, is_weekend
from rayrec.sources.outbrain.places import countries, states
from rayrec.sources.outbrain.statistics import ASPECTS, PLURALS, RATE_KEYS, RateKey, Statistics

_LEAN_RATES = ("ad", "document", "source", "publisher", "advertiser", "campaign")


@lru_cache
def features_of(feature_set: Literal["full", "lean"]) -> tuple[Definition, ...]:
    """Return the features of a set, in the order of the schema."""
    return _full_features() if feature_set == "full" else _lean_features()


def rate_keys(feature_set: Literal["full", "lean"]) -> tuple[RateKey, ...]:
    """Return the keys whose rates the features of a set are made of."""
    names = RATE_KEYS if feature_set == "full" else _LEAN_RATES
    return tuple(RATE_KEYS[name] for name in names)


def raw_features(statistics: Statistics, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the features of n rows, a column each, named as in the schema.

    `batch`: columns of `ROW_SCHEMA` (features/ad_rows.py), perhaps `FOLD`; others are ignored. Result:
    numeric features float64, NaN if missing; categories int64 or string, null if missing; multi-hot features
    list<int64>. A row's features depend on no other row.
    """
    rows = AdRows(statistics, batch)
    definitions = features_of(statistics.constants.feature_set)
    schema = pa.schema([(definition.name, definition.raw_type) for definition in definitions])
    return pa.RecordBatch.from_arrays([pa.array(definition.compute(rows)) for definition in definitions], schema=schema)


def _full_features() -> tuple[Definition, ...]:
    """Return the 54 features of NVIDIA's first version: those of the request, then those of the ad."""
    keys = ("document", "publisher", "source", "entity", "topic", "category")
    return (
        id_feature("doc_event_id", 300_000, "document_id"),
        id_feature("doc_id", 100_000, "document_id", "ad"),
        id_feature("doc_event_source_id", 4_000, "source_id", "landing"),
        place_feature("event_geo_location", 2_500),
        place_feature("event_country_state", 2_000, states),
        id_feature("doc_event_publisher_id", 1_000, "publisher_id", "landing"),
        place_feature("event_country", 300, countries),
        code_feature("event_hour", 0, 6, hour_bin),
        code_feature("event_platform", 1, 3, AdRows.numbers, "platform"),
        code_feature("traffic_source", 1, 3, AdRows.numbers, "traffic_source"),
        code_feature("event_weekend", 0, 2, is_weekend),
        code_feature("user_has_already_viewed_doc", 0, 2, _has_viewed_ad_document),
        list_feature("doc_event_entity_id", "entity", "landing", 6, "mean"),
        list_feature("doc_event_topic_id", "topic", "landing", 3, "mean"),
        list_feature("doc_event_category_id", "category", "landing", 3, "mean"),
        *(number(f"pop_{key}_id", SHARE, rate, key) for key in keys),
        *(number(f"pop_{key}_id_conf", AS_IS, confidence, key) for key in keys),
        number("user_views", COUNT, AdRows.numbers, "views", "user"),
        number("doc_views", COUNT, views, "document"),
        number("doc_event_days_since_published", COUNT, days_since_published, "landing"),
        number("doc_event_hour", COUNT, hour_bin),
        id_feature("ad_id", 250_000, "ad_id"),
        id_feature("doc_ad_source_id", 4_000, "source_id", "ad_document"),
        id_feature("ad_advertiser", 2_500, "advertiser_id", "ad"),
        id_feature("doc_ad_publisher_id", 1_000, "publisher_id", "ad_document"),
        list_feature("doc_ad_topic_id", "topic", "ad_document", 3, "mean"),
        list_feature("doc_ad_entity_id", "entity", "ad_document", 6, "mean"),
        list_feature("doc_ad_category_id", "category", "ad_document", 3, "mean"),
        number("pop_ad_id", SHARE, rate, "ad"),
        number("pop_ad_id_conf", AS_IS, confidence, "ad"),
        number("pop_advertiser_id", SHARE, rate, "advertiser"),
        number("pop_advertiser_id_conf", AS_IS, confidence, "advertiser"),
        number("pop_campain_id_conf_multipl", SHARE, _rate_times_confidence, "campaign"),
        number("pop_campain_id", SHARE, rate, "campaign"),
        *(number(f"user_doc_ad_sim_{PLURALS[aspect]}", SHARE, user_similarity, aspect) for aspect in ASPECTS),
        number("user_doc_ad_sim_categories_conf", AS_IS, user_similarity_confidence, "category"),
        number("user_doc_ad_sim_topics_conf", AS_IS, user_similarity_confidence, "topic"),
        *(number(f"doc_event_doc_ad_sim_{PLURALS[aspect]}", SHARE, landing_similarity, aspect) for aspect in ASPECTS),
        number("ad_views", COUNT, views, "ad"),
        number("doc_ad_days_since_published", COUNT, days_since_published, "ad_document"),
    )


def _lean_features() -> tuple[Definition, ...]:
    """Return the 29 features of NVIDIA's newest version: numeric, one-hot and multi-hot ones."""
    similarities = {f"document_id_document_id_promo_sim_{PLURALS[aspect]}": aspect for aspect in ASPECTS}
    return (
        *(number(name, AS_IS, landing_similarity, aspect) for name, aspect in similarities.items()),
        number("document_id_promo_ctr", AS_IS, rate, "document"),
        number("publisher_id_promo_ctr", AS_IS, rate, "publisher"),
        number("source_id_promo_ctr", AS_IS, rate, "source"),
        number("ad_id_ctr", AS_IS, rate, "ad"),
        number("advertiser_id_ctr", AS_IS, rate, "advertiser"),
        number("campaign_id_ctr", AS_IS, rate, "campaign"),
        number("ad_id_count", LOG_COUNT, views, "ad"),
        number("document_id_promo_count", LOG_COUNT, views, "document"),
        number("publish_time_days_since_published", DAYS, days_since_published, "landing"),
        number("publish_time_promo_days_since_published", DAYS, days_since_published, "ad_document"),
        id_feature("document_id", 300_000, "document_id"),
        id_feature("ad_id", 250_000, "ad_id"),
        id_feature("document_id_promo", 100_000, "document_id", "ad"),
        id_feature("campaign_id", 5_000, "campaign_id", "ad"),
        id_feature("source_id", 4_000, "source_id", "landing"),
        id_feature("source_id_promo", 4_000, "source_id", "ad_document"),
        place_feature("geo_location", 2_500),
        id_feature("advertiser_id", 2_500, "advertiser_id", "ad"),
        place_feature("geo_location_state", 2_000, states),
        id_feature("publisher_id", 1_000, "publisher_id", "landing"),
        id_feature("publisher_id_promo", 1_000, "publisher_id", "ad_document"),
        place_feature("geo_location_country", 300, countries),
        code_feature("platform", 1, 3, AdRows.numbers, "platform"),
        *(list_feature(f"{aspect}_id_list", aspect, "landing", 3, "sum") for aspect in LIST_ROWS),
    )


def _has_viewed_ad_document(rows: AdRows) -> Numbers:
    """Return 1 if the user has viewed the ad document, else 0; not valid without a profile or an ad document."""
    document, (profiles, user) = rows.numbers("document_id", "ad"), rows.found("user")
    has_viewed = profiles.contains("viewed", user, document.values)
    return Numbers(has_viewed.astype(np.int64), (user != UNKNOWN) & document.valid)


def _rate_times_confidence(rows: AdRows, name: str) -> NDArray[np.float64]:
    return rate(rows, name) * confidence(rows, name)
