"""Encoded rows of which some columns are changed."""

from collections.abc import Mapping

import pyarrow as pa

from rayrec.features.categorical import encode_cross
from rayrec.features.feature_kinds import CategoricalFeature, Feature
from rayrec.features.schema import Schema


def is_cross(feature: Feature) -> bool:
    """Return whether a feature is made of other features, and follows when one of them changes."""
    return feature.reads is None


def with_columns(schema: Schema, rows: pa.RecordBatch, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """n encoded rows with some columns replaced, and the crosses of these computed anew.

    `rows` has the features in the schema's order; `columns` has new ones (n,) by feature. A cross that is itself
    replaced stays as it is given.
    """
    changed = dict(columns)
    for feature in schema.features:
        if is_cross(feature) and feature.name not in changed and not changed.keys().isdisjoint(feature.inputs):
            assert isinstance(feature, CategoricalFeature)
            inputs = [changed[name] if name in changed else rows.column(name) for name in feature.inputs]
            changed[feature.name] = pa.array(encode_cross(feature, [column.to_numpy() for column in inputs]))
    names = rows.schema.names
    given = zip(names, rows.columns, strict=True)
    return pa.RecordBatch.from_arrays([changed.get(name, column) for name, column in given], schema=rows.schema)
