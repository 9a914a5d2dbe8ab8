"""The 29 features of NVIDIA's newest version, in the order of docs/outbrain.md."""

from collections.abc import Iterator

from rayrec.sources.outbrain.features.categorical import (
    LIST_ROWS,
    code_feature,
    id_feature,
    list_feature,
    place_feature,
)
from rayrec.sources.outbrain.features.definitions import Definition, filled_days, plain, standardized_count
from rayrec.sources.outbrain.features.rates import rate_of, views_of
from rayrec.sources.outbrain.features.similarity import landing_similarity
from rayrec.sources.outbrain.features.time import days_since_published
from rayrec.sources.outbrain.statistics import ASPECTS, PLURALS

_LIST_LENGTH = 3


def lean_features() -> tuple[Definition, ...]:
    """The definitions, in order."""
    return (*_numeric(), *_one_hot(), *_multi_hot())


def _numeric() -> Iterator[Definition]:
    for aspect in ASPECTS:
        yield plain(f"document_id_document_id_promo_sim_{PLURALS[aspect]}", landing_similarity(aspect))
    yield plain("document_id_promo_ctr", rate_of("document"))
    yield plain("publisher_id_promo_ctr", rate_of("publisher"))
    yield plain("source_id_promo_ctr", rate_of("source"))
    yield plain("ad_id_ctr", rate_of("ad"))
    yield plain("advertiser_id_ctr", rate_of("advertiser"))
    yield plain("campaign_id_ctr", rate_of("campaign"))
    yield standardized_count("ad_id_count", views_of("ad"))
    yield standardized_count("document_id_promo_count", views_of("document"))
    yield filled_days("publish_time_days_since_published", days_since_published("landing"))
    yield filled_days("publish_time_promo_days_since_published", days_since_published("ad"))


def _one_hot() -> Iterator[Definition]:
    yield id_feature("document_id", lambda rows: rows.landing_id, 300_000)
    yield id_feature("ad_id", lambda rows: rows.ad_id, 250_000)
    yield id_feature("document_id_promo", lambda rows: rows.ad_document_id, 100_000)
    yield id_feature("campaign_id", lambda rows: rows.of_ad("campaign_id"), 5_000)
    yield id_feature("source_id", lambda rows: rows.of_landing("source_id"), 4_000)
    yield id_feature("source_id_promo", lambda rows: rows.of_ad_document("source_id"), 4_000)
    yield place_feature("geo_location", "place", 2_500)
    yield id_feature("advertiser_id", lambda rows: rows.of_ad("advertiser_id"), 2_500)
    yield place_feature("geo_location_state", "state", 2_000)
    yield id_feature("publisher_id", lambda rows: rows.of_landing("publisher_id"), 1_000)
    yield id_feature("publisher_id_promo", lambda rows: rows.of_ad_document("publisher_id"), 1_000)
    yield place_feature("geo_location_country", "country", 300)
    yield code_feature("platform", lambda rows: rows.numbers("platform"), 1, 3)


def _multi_hot() -> Iterator[Definition]:
    for aspect in LIST_ROWS:
        yield list_feature(f"{aspect}_id_list", aspect, "landing", _LIST_LENGTH, "sum")
