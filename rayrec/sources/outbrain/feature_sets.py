"""The two feature sets, in the order of docs/outbrain.md: how each feature is computed and encoded."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.config.table import FitFill, FitMinMax, FitStandardize, NumericStep
from rayrec.config.transforms import Fill, Hash, Log, Log2, NumericTransform
from rayrec.features.lookup_table import UNKNOWN, Numbers
from rayrec.features.schema import CategoricalFeature, MultiHotFeature
from rayrec.sources.outbrain.features import (
    AdRows,
    confidence,
    days_since_published,
    hour_bin,
    is_weekend,
    landing_similarity,
    rate,
    user_similarity,
    user_similarity_confidence,
    views,
)
from rayrec.sources.outbrain.places import countries, states
from rayrec.sources.outbrain.statistics import ASPECTS, PLURALS, RATE_KEYS, Aspect, RateKey, Referred, Statistics

# How a feature is defined.

LIST_ROWS: dict[Aspect, int] = {"topic": 350, "entity": 10_000, "category": 100}
"""Rows of the embedding table of a list, by aspect."""


Steps = tuple[NumericStep | NumericTransform, ...]
"""The transforms of a number, some of them to be fitted to the rows of `train`."""

AS_IS: Steps = ()
SHARE: Steps = (Log2(scale=1000.0), FitMinMax())
"""A share x becomes log2(1 + 1000 x), scaled to 0 ... 1."""
COUNT: Steps = (Log2(scale=1.0), FitMinMax())
"""A count x becomes log2(1 + x), scaled to 0 ... 1."""
LOG_COUNT: Steps = (Fill(value=0.0), Log(offset=1.0), FitStandardize())
"""A count x becomes ln(1 + x), 0 if missing, minus the mean and divided by the standard deviation."""
DAYS: Steps = (FitFill(value="median"), Log(offset=1.0))
"""A number of days x becomes ln(1 + x), the median if missing."""


@dataclass(frozen=True)
class Definition:
    """A feature: how the raw values of n rows are computed, and how they are encoded."""

    name: str
    raw_type: pa.DataType
    compute: Callable[[AdRows], NDArray[np.float64] | pa.Array]
    feature: CategoricalFeature | MultiHotFeature | None = None
    """None for a number."""
    steps: Steps = ()
    """The transforms of a number."""


def number(name: str, steps: Steps, compute: Callable[..., Numbers | NDArray[np.float64]], *what: str) -> Definition:
    """Return the number that `compute` makes of rows and `what`; NaN if missing, which a model reads as 0."""

    def values(rows: AdRows) -> NDArray[np.float64]:
        found = compute(rows, *what)
        return np.where(found.valid, found.values, np.nan) if isinstance(found, Numbers) else found

    return Definition(name, pa.float64(), values, steps=steps)


def id_feature(name: str, cardinality: int, column: str, of: Referred | None = None) -> Definition:
    """Return an id of the row or of what it refers to, hashed into a table of `cardinality` rows; null if missing."""
    feature = _hashed(name, cardinality, "integers")
    return Definition(name, pa.int64(), lambda rows: _ids(rows.numbers(column, of)), feature)


def place_feature(
    name: str, cardinality: int, part: Callable[[pa.Array], pa.Array] = lambda place: place
) -> Definition:
    """Return the place, or a part, of the event, hashed into a table of `cardinality` rows; null if missing."""
    return Definition(name, pa.string(), lambda rows: part(rows.place), _hashed(name, cardinality, "strings"))


def _hashed(name: str, cardinality: int, of: Literal["integers", "strings"]) -> CategoricalFeature:
    transforms = (Hash(buckets=cardinality, of=of),)
    return CategoricalFeature(name=name, transforms=transforms, cardinality=cardinality)


def code_feature(name: str, first: int, size: int, compute: Callable[..., Numbers], *what: str) -> Definition:
    """Return the code that `compute` makes of rows and `what`: `size` of them count from `first` as 1; missing is 0."""

    def values(rows: AdRows) -> pa.Array:
        found = compute(rows, *what)
        return _ids(Numbers(found.values - first + 1, found.valid))

    return Definition(name, pa.int64(), values, CategoricalFeature(name=name, cardinality=size + 1))


def list_feature(
    name: str, aspect: Aspect, document: Literal["landing", "ad_document"], length: int, pooling: Literal["sum", "mean"]
) -> Definition:
    """Return the first `length` values of the landing or the ad document's list of an aspect, hashed one by one."""

    def compute(rows: AdRows) -> pa.Array:
        lists = rows.lists(f"{aspect}_list", document)
        offsets = np.append(0, np.cumsum(lists.lengths)).astype(np.int32)
        return pc.list_slice(pa.ListArray.from_arrays(offsets, lists.field()), 0, length)

    rows = LIST_ROWS[aspect]
    transforms = (Hash(buckets=rows, of="integers"),)
    feature = MultiHotFeature(name=name, transforms=transforms, cardinality=rows, pooling=pooling, hotness=length)
    return Definition(name, pa.list_(pa.int64()), compute, feature)


def _ids(numbers: Numbers) -> pa.Array:
    return pa.array(numbers.values, pa.int64(), mask=~numbers.valid)


# The sets, and the raw features of rows, to which a schema's transforms are applied.

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

    `batch`: columns of `ROW_SCHEMA`, perhaps `FOLD`; others are ignored. Result:
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
