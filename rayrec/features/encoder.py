"""Raw rows -> what a model reads: every transform of a schema, for a table in Spark and for a request in serving."""

from collections.abc import Collection, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa

from rayrec.common.errors import UserError
from rayrec.config.transforms import NumericTransform, Vocabulary
from rayrec.features.categorical import encode_categorical, encode_multi_hot, id_dtype, takes_strings
from rayrec.features.numeric import encode_numeric
from rayrec.features.schema import CategoricalFeature, Feature, MultiHotFeature, NumericFeature, Schema
from rayrec.features.vocabulary import VocabularyLookup

_FEW_ROWS = 1024
"""Most rows of a request; for larger batches the overhead of a call does not matter."""


class FeatureEncoder:
    """Applies the transforms of a schema to raw rows. The result for a row does not depend on the rows around it."""

    def __init__(self, schema: Schema, folder: Path, looked_up: Collection[str] = ()) -> None:
        """Read the vocabularies of `schema` from `folder` (the one that holds schema.json) into memory.

        Features named in `looked_up` are raw columns of vocabulary ids (int64, null = missing or unlisted) instead of
        strings: their vocabulary was joined elsewhere and is not read. Raises UserError on an unreadable vocabulary or
        one that does not have the size that the schema states.
        """
        self.schema = schema
        self._lookups = {
            f.name: _load(folder, transform)
            for f in schema.categorical
            if f.name not in looked_up
            for transform in f.transforms
            if isinstance(transform, Vocabulary)
        }
        self._alike: dict[tuple[NumericTransform, ...], list[int]] = {}
        for index, feature in enumerate(schema.features):
            if isinstance(feature, NumericFeature):
                self._alike.setdefault(feature.transforms, []).append(index)
        self.raw_schema = pa.schema([(f.name, self._raw_type(f)) for f in schema.features])
        """The raw columns that `encode` takes, with the widest types."""
        self.encoded_schema = pa.schema([pa.field(f.name, _encoded_type(f), nullable=False) for f in schema.features])
        """The columns that `encode` returns."""
        self.string_columns = [
            name for name in self.raw_schema.names if self.raw_schema.field(name).type == pa.string()
        ]
        """Columns that may come dictionary encoded, which is faster if values repeat."""

    @classmethod
    @lru_cache(maxsize=4)
    def cached(cls, schema: Schema, folder: Path, looked_up: frozenset[str] = frozenset()) -> "FeatureEncoder":
        """The encoder that this process built for the same arguments before; the folder must not change meanwhile."""
        return cls(schema, folder, looked_up)

    def encode(self, raw: pa.RecordBatch) -> pa.RecordBatch:
        """Encode n raw rows. Columns are found by name; an absent one is missing in every row; others are ignored.

        Raw columns: numeric ones of any integer or float type, categorical ones of strings, multi-hot ones of lists of
        strings (features without vocabulary, or that hash integers: of integers). Result: the features alone, in the
        schema's order, no nulls: numeric float32 (finite), categorical int32 and multi-hot list<int32> (int64 for
        tables beyond 2^31 rows).
        Raises UserError naming the feature whose column has another type.
        """
        # Requests come with exactly `raw_schema`; finding each of their columns by name would double the time.
        as_expected = raw.schema.equals(self.raw_schema)
        given = raw.columns if as_expected else [_column(raw, name) for name in self.raw_schema.names]
        encoded = self._encode_numbers_together(given) if as_expected and raw.num_rows <= _FEW_ROWS else {}
        columns = [
            encoded[index] if index in encoded else self._encode(feature, column)
            for index, (feature, column) in enumerate(zip(self.schema.features, given, strict=True))
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.encoded_schema)

    def _encode_numbers_together(self, columns: Sequence[pa.Array]) -> dict[int, pa.Array]:
        """The encoded numeric columns by position; columns with the same transforms are encoded in one call."""
        encoded: dict[int, pa.Array] = {}
        for transforms, places in self._alike.items():
            together = pa.concat_arrays([columns[place] for place in places])
            values = encode_numeric(self.schema.features[places[0]].name, together, transforms)
            encoded |= zip(places, map(pa.array, np.split(values, len(places))), strict=True)
        return encoded

    def _encode(self, feature: Feature, column: pa.Array) -> pa.Array:
        match feature:
            case NumericFeature():
                return pa.array(encode_numeric(feature.name, column, feature.transforms))
            case MultiHotFeature():
                return encode_multi_hot(feature, column, self._lookups.get(feature.name))
            case CategoricalFeature():
                return pa.array(encode_categorical(feature, column, self._lookups.get(feature.name)))

    def _raw_type(self, feature: Feature) -> pa.DataType:
        if isinstance(feature, NumericFeature):
            return pa.float64()
        value = pa.string() if takes_strings(feature, feature.name in self._lookups) else pa.int64()
        return pa.list_(value) if isinstance(feature, MultiHotFeature) else value


def _column(raw: pa.RecordBatch, name: str) -> pa.Array:
    found = raw.schema.get_all_field_indices(name)
    if len(found) > 1:
        raise UserError(f"feature '{name}': {len(found)} columns of that name; give one")
    return raw.column(found[0]) if found else pa.nulls(raw.num_rows)


def _encoded_type(feature: Feature) -> pa.DataType:
    if isinstance(feature, NumericFeature):
        return pa.float32()
    value = pa.from_numpy_dtype(id_dtype(feature))
    return pa.list_(value) if isinstance(feature, MultiHotFeature) else value


def _load(folder: Path, transform: Vocabulary) -> VocabularyLookup:
    path = folder / transform.file
    lookup = VocabularyLookup.load(path)
    if len(lookup) != transform.size:
        raise UserError(f"{path}: lists {len(lookup)} values, schema.json says {transform.size}; preprocess again")
    return lookup
