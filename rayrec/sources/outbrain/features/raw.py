"""The raw features of rows, to which a schema's transforms are applied."""

from functools import lru_cache
from typing import Literal

import pyarrow as pa

from rayrec.sources.outbrain.features.definitions import Definition
from rayrec.sources.outbrain.features.full import full_features
from rayrec.sources.outbrain.features.lean import lean_features
from rayrec.sources.outbrain.features.rows import Rows
from rayrec.sources.outbrain.statistics import RATE_KEYS, RateKey, Statistics

_LEAN_RATES = ("ad", "document", "source", "publisher", "advertiser", "campaign")


@lru_cache
def features_of(feature_set: Literal["full", "lean"]) -> tuple[Definition, ...]:
    """The features of a set, in the order of the schema."""
    return full_features() if feature_set == "full" else lean_features()


def rate_keys(feature_set: Literal["full", "lean"]) -> tuple[RateKey, ...]:
    """The keys whose rates the statistics of a feature set hold.

    `full` holds all that NVIDIA's scripts compute, pairs with the landing document and the country included, though
    none of its 54 features reads these.
    """
    names = RATE_KEYS if feature_set == "full" else _LEAN_RATES
    return tuple(RATE_KEYS[name] for name in names)


def raw_features(statistics: Statistics, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The features of n rows, a column each, named as in the schema.

    `batch`: columns of `rayrec.sources.outbrain.features.rows.ROW_SCHEMA`, perhaps `FOLD`; others are ignored. Result:
    numeric features float64, NaN if missing; categories int64 or string, null if missing; multi-hot features
    list<int64>. A row's features depend on no other row.
    """
    rows = Rows(statistics, batch)
    definitions = features_of(statistics.constants.feature_set)
    schema = pa.schema([(definition.name, definition.raw_type) for definition in definitions])
    return pa.RecordBatch.from_arrays([pa.array(definition.compute(rows)) for definition in definitions], schema=schema)
