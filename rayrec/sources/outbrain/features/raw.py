"""The raw features of rows: what a schema's transforms are applied to."""

from functools import lru_cache

import pyarrow as pa

from rayrec.sources.outbrain.features.definitions import Definition
from rayrec.sources.outbrain.features.full import full_features
from rayrec.sources.outbrain.features.lean import lean_features
from rayrec.sources.outbrain.features.rows import Rows
from rayrec.sources.outbrain.statistics import RATE_KEYS, Constants, RateKey, Statistics

_LEAN_RATES = ("ad", "document", "source", "publisher", "advertiser", "campaign")


def features_of(constants: Constants) -> tuple[Definition, ...]:
    """The features of a set in one of its forms, in the order of the schema."""
    return _features(constants.feature_set, constants.original)


@lru_cache
def _features(feature_set: str, original: bool) -> tuple[Definition, ...]:
    return full_features(original=original) if feature_set == "full" else lean_features(original=original)


def rate_keys(constants: Constants) -> tuple[RateKey, ...]:
    """The keys whose rates the statistics of a feature set hold.

    Those of `full` are all that the original takes, pairs with the landing document and the country included, though
    none of its 54 features shows these.
    """
    names = RATE_KEYS if constants.feature_set == "full" else _LEAN_RATES
    return tuple(RATE_KEYS[name] for name in names)


def raw_features(statistics: Statistics, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The features of n rows, a column each, named as in the schema.

    `batch`: columns of `rayrec.sources.outbrain.features.rows.ROW_SCHEMA`, perhaps `FOLD`; others are ignored. Result:
    numeric features float64, NaN where missing; categories int64 or string, null where missing; multi-hot features
    list<int64>. A row's features depend on no other row.
    """
    rows = Rows(statistics, batch)
    definitions = features_of(statistics.constants)
    schema = pa.schema([(definition.name, definition.raw_type) for definition in definitions])
    return pa.RecordBatch.from_arrays([definition.raw(rows) for definition in definitions], schema=schema)
