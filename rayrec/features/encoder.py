"""The transforms of a schema, applied to raw rows: the one implementation, for tables in Spark and for requests."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import pyarrow as pa

from rayrec.common.errors import UserError
from rayrec.config.transforms import Vocabulary
from rayrec.features.categorical import encode_categorical, encode_cross, encode_multi_hot, id_dtype
from rayrec.features.feature_kinds import CategoricalFeature, Feature, MultiHotFeature, NumericFeature, VectorFeature
from rayrec.features.few_rows import EncodedRows, FewRowsEncoder, IdsOf, PlainRows
from rayrec.features.lists import encode_vector, weighted_type
from rayrec.features.lookups import Lookups
from rayrec.features.numeric import encode_numeric
from rayrec.features.raw_columns import RawColumn
from rayrec.features.raw_values import read_column
from rayrec.features.schema import Schema
from rayrec.features.vocabulary import VocabularyLookup

_FEW_ROWS = 1024
"""Most rows of a request; for larger batches the overhead of a call does not matter."""


class FeatureEncoder:
    """Applies the transforms of a schema to raw rows. The result for a row does not depend on the rows around it.

    Rows go three steps: what they lack is looked up (`Lookups`), every feature is computed from its raw columns, and
    crosses are computed from the ids of the features before them.
    """

    def __init__(
        self,
        schema: Schema,
        folder: Path,
        open_vocabulary: Callable[[CategoricalFeature], VocabularyLookup] | None = None,
    ) -> None:
        """Map the vocabularies and tables of `schema` from `folder`, the one that holds schema.json, into memory.

        `open_vocabulary`: gives the vocabulary of a feature if it is not a file in `folder`. Raises UserError on an
        unreadable vocabulary or one that does not have the size that the schema states.
        """
        self.schema = schema
        self.raw_schema = pa.schema([(column.name, column.arrow) for column in schema.raw_columns])
        """The raw columns that `encode` takes, with the widest types."""
        self.reads = [name for f in schema.features if f.reads is not None for name in f.columns]
        """The columns of `raw_schema` that features are computed from."""
        self.string_columns = [field.name for field in self.raw_schema if field.type == pa.string()]
        """Columns that may come dictionary encoded, which is faster if values repeat."""
        self.encoded_schema = encoded_schema(schema)
        """The columns that `encode` returns."""

        self.lookups = Lookups(schema, folder) if schema.lookups else None
        """What completes rows; None if nothing is looked up."""
        self.vocabularies: dict[str, VocabularyLookup] = {}
        """The vocabulary of each feature that has one; features may share one, which is mapped once."""
        opened: dict[Vocabulary, VocabularyLookup] = {}
        for feature in schema.categorical:
            vocabulary = feature.vocabulary
            if vocabulary is None:
                continue
            if vocabulary not in opened:
                path = folder / vocabulary.file
                lookup = open_vocabulary(feature) if open_vocabulary else VocabularyLookup.load(path)
                if len(lookup) != vocabulary.size:
                    counts = f"lists {len(lookup)} values, schema.json says {vocabulary.size}"
                    raise UserError(f"{path}: {counts}; preprocess again")
                opened[vocabulary] = lookup
            self.vocabularies[feature.name] = opened[vocabulary]

        # A vocabulary is of texts, so a column of integers is read as their digits first.
        self._from_digits: dict[str, RawColumn] = {}
        for feature in schema.categorical:
            if feature.reads == "text" or feature.reads == "texts":
                as_text = RawColumn(name=feature.name, type=feature.reads)
                if self.raw_schema.field(feature.columns[0]).type != as_text.arrow:
                    self._from_digits[feature.name] = as_text

        self.few_rows = FewRowsEncoder(schema, self.raw_schema, self.encoded_schema, self.vocabularies, self._encode)

    @classmethod
    @lru_cache(maxsize=4)
    def cached(cls, schema: Schema, folder: Path) -> "FeatureEncoder":
        """Return the encoder that this process built for the same arguments; the folder must not change meanwhile."""
        return cls(schema, folder)

    def encode(self, raw: pa.RecordBatch) -> pa.RecordBatch:
        """Look up what n raw rows lack, and encode them as `encode_completed` does."""
        return self.encode_completed(raw if self.lookups is None else self.lookups.complete(raw))

    def encode_few(self, raw: PlainRows) -> pa.RecordBatch | EncodedRows:
        """Encode a few rows as `encode` does; of columns that are looked up Arrow's batch is made first."""
        return self.few_rows.encode(raw) if self.lookups is None else self.encode(raw.batch())

    def encode_completed(self, raw: pa.RecordBatch) -> pa.RecordBatch:
        """Encode n raw rows. Columns are found by name; an absent one is missing in every row; others are ignored.

        Raw columns: those of `raw_schema`; numbers of any integer or float type, texts as strings of any type,
        dictionary encoded or not. Result: the features alone, in the schema's order, no nulls: numeric float32 and
        vector fixed_size_list<float32> (finite), categorical int32 and multi-hot list<int32> (int64 for tables beyond
        2^31 rows), with weights list<struct<id: int32, weight: float32>>. Raises UserError naming the feature whose
        column has another type.
        """
        # The rows of a request come with exactly these columns; few calls encode them all, with the same bits.
        if raw.num_rows <= _FEW_ROWS and raw.schema.equals(self.raw_schema):
            return self.few_rows.encode(PlainRows.of(self.few_rows.columns, raw)).batch()

        columns = {name: _column(raw, name) for name in self.raw_schema.names}
        encoded: dict[str, pa.Array] = {}
        for feature in self.schema.features:
            given = [] if feature.reads is None else [columns[name] for name in feature.columns]
            encoded[feature.name] = self._encode(feature, given, lambda name: encoded[name].to_numpy())
        return pa.RecordBatch.from_arrays(list(encoded.values()), schema=self.encoded_schema)

    def _encode(self, feature: Feature, given: Sequence[pa.Array], ids_of: IdsOf) -> pa.Array:
        """Encode a feature from its raw columns, or from the ids of the features that it crosses."""
        match feature:
            case NumericFeature():
                return pa.array(encode_numeric(feature.name, given[0], feature.transforms, *given[1:]))
            case VectorFeature():
                return encode_vector(feature, given[0])
            case CategoricalFeature() if feature.reads is None:
                return pa.array(encode_cross(feature, [ids_of(name) for name in feature.inputs]))

        lookup, values = self.vocabularies.get(feature.name), given[0]
        if feature.name in self._from_digits:
            values, _ = read_column(values, self._from_digits[feature.name])
        if isinstance(feature, MultiHotFeature):
            return encode_multi_hot(feature, values, lookup, *given[1:])
        return pa.array(encode_categorical(feature, values, lookup))


def encoded_schema(schema: Schema) -> pa.Schema:
    """Return the columns of encoded features, without nulls: see `FeatureEncoder.encode_completed`."""
    return pa.schema([pa.field(feature.name, _encoded_type(feature), nullable=False) for feature in schema.features])


def _encoded_type(feature: Feature) -> pa.DataType:
    if isinstance(feature, NumericFeature):
        return pa.float32()
    if isinstance(feature, VectorFeature):
        return pa.list_(pa.float32(), feature.size)
    value = pa.from_numpy_dtype(id_dtype(feature))
    if not isinstance(feature, MultiHotFeature):
        return value
    return pa.list_(value if feature.weights is None else weighted_type(value))


def _column(raw: pa.RecordBatch, name: str) -> pa.Array:
    found = raw.schema.get_all_field_indices(name)
    if len(found) > 1:
        raise UserError(f"column '{name}': {len(found)} columns of that name; give one")
    return raw.column(found[0]) if found else pa.nulls(raw.num_rows)
