"""The transforms of a schema, applied to raw rows: the one implementation, for tables in Spark and for requests."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.config.transforms import Vocabulary
from rayrec.features.lookup_table import LookupTable
from rayrec.features.lookups import Lookups, is_constant
from rayrec.features.raw_columns import Lookup, RawColumn
from rayrec.features.raw_values import read_column
from rayrec.features.schema import CategoricalFeature, Feature, MultiHotFeature, NumericFeature, Schema, VectorFeature
from rayrec.features.stacked_columns import Stack, StackedColumns
from rayrec.features.transforms import (
    encode_categorical,
    encode_cross,
    encode_multi_hot,
    encode_numeric,
    encode_vector,
    id_dtype,
    weighted_type,
)
from rayrec.features.vocabulary import VocabularyLookup

_FEW_ROWS = 1024
"""Most rows whose features are encoded together; in larger batches the overhead of a call does not matter."""


@dataclass(frozen=True)
class _JoinedVocabularies:
    """The vocabularies of features whose columns, of n values each, follow one another in one column."""

    lookups: tuple[VocabularyLookup, ...]

    def ids(self, values: pa.Array) -> NDArray[np.int64]:
        """Return what `VocabularyLookup.ids` gives for each feature, one after the other."""
        texts, n = values.to_pylist(), len(values) // len(self.lookups)
        found = (lookup.find_few(texts[at * n : (at + 1) * n]) for at, lookup in enumerate(self.lookups))
        return np.array(list(chain.from_iterable(found)), np.int64) + 1


@dataclass(frozen=True)
class _Group:
    """Features that are encoded by one call, as they differ in their columns and vocabularies alone."""

    features: tuple[Feature, ...]
    lookup: VocabularyLookup | _JoinedVocabularies | None
    """None without vocabularies."""
    names: tuple[str, ...]
    """The names of the features."""
    given: tuple[tuple[str, ...], ...]
    """Names of the inputs, each input with that of all of the features: raw columns, or features of a cross."""
    is_cross: bool

    @property
    def is_list(self) -> bool:
        """Tell whether it is of a feature of several ids a row."""
        return isinstance(self.features[0], MultiHotFeature)


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
        open_table: Callable[[Lookup], LookupTable] | None = None,
    ) -> None:
        """Map the vocabularies and tables of `schema` from `folder`, the one that holds schema.json, into memory.

        `open_vocabulary`, `open_table`: give the vocabulary of a feature and the table of a look-up if they are not in
        `folder`. Raises UserError on an unreadable vocabulary or one that does not have the size that the schema
        states.
        """
        self.schema = schema
        self.raw_schema = pa.schema([(column.name, column.arrow) for column in schema.request_columns])
        """The raw columns that `encode` takes, with the widest types."""
        self.reads = [name for f in schema.features if f.reads is not None for name in f.columns]
        """The columns of `raw_schema` that features are computed from."""
        self.string_columns = [field.name for field in self.raw_schema if field.type == pa.string()]
        """Columns that may come dictionary encoded, which is faster if values repeat."""
        self.encoded_schema = encoded_schema(schema)
        """The columns that `encode` returns."""

        self.lookups = Lookups(schema, folder, open_table=open_table) if schema.lookups else None
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

        self._event_lists = schema.event_lists
        # A vocabulary is of texts, so a column of integers is read as their digits first.
        self._from_digits: dict[str, RawColumn] = {}
        for feature in schema.categorical:
            if feature.reads == "text" or feature.reads == "texts":
                as_text = RawColumn(name=feature.name, type=feature.reads)
                if self.raw_schema.field(feature.columns[0]).type != as_text.arrow:
                    self._from_digits[feature.name] = as_text

        # A call takes longer than the few rows of a request, so what is alike in them is encoded as one long column.
        alike: dict[Hashable, list[Feature]] = {}
        for place, any_feature in enumerate(schema.features):
            alike.setdefault(_likeness(any_feature, self.raw_schema) or place, []).append(any_feature)
        self._one_by_one = [self._group(any_feature) for any_feature in schema.features]
        self._together = [self._group(*features) for features in alike.values()]
        # Crosses come last, in the schema's order, as they are made of other features.
        self._together.sort(key=lambda group: group.is_cross)

    @classmethod
    @lru_cache(maxsize=4)
    def cached(cls, schema: Schema, folder: Path) -> "FeatureEncoder":
        """Return the encoder that this process built for the same arguments; the folder must not change meanwhile."""
        return cls(schema, folder)

    def encode(self, raw: pa.RecordBatch) -> pa.RecordBatch:
        """Look up what n raw rows lack, and encode them as `encode_completed` does."""
        return self.encode_completed(raw if self.lookups is None else self.lookups.complete(raw))

    def encode_stacked(self, raw: StackedColumns) -> StackedColumns:
        """Encode as `encode` does the rows of a request, which have the columns of `raw_schema`."""
        return self._encoded(raw if self.lookups is None else self.lookups.complete_stacked(raw))

    def encode_completed(self, raw: pa.RecordBatch) -> pa.RecordBatch:
        """Encode n raw rows. Columns are found by name; an absent one is missing in every row; others are ignored.

        Raw columns: those of `raw_schema`; numbers of any integer or float type, texts as strings of any type,
        dictionary encoded or not. Result: the features alone, in the schema's order, no nulls: numeric float32 and
        vector fixed_size_list<float32> (finite), categorical int32 and multi-hot list<int32> (int64 for tables beyond
        2^31 rows), with weights list<struct<id: int32, weight: float32>>. Raises UserError naming the feature whose
        column has another type.
        """
        if raw.schema.equals(self.raw_schema):
            return self._encoded(StackedColumns.of(raw)).batch()
        columns: dict[tuple[str, ...], pa.Array] = {}
        for name in self.raw_schema.names:
            places = raw.schema.get_all_field_indices(name)
            if len(places) > 1:
                raise UserError(f"column '{name}': {len(places)} columns of that name; give one")
            columns[name,] = raw.column(places[0]) if places else pa.nulls(raw.num_rows)
        return self._encoded(StackedColumns(self.raw_schema, raw.num_rows, columns), are_exact=False).batch()

    def _encoded(self, raw: StackedColumns, are_exact: bool = True) -> StackedColumns:
        """Encode completed rows; `are_exact`: their columns have the types of `raw_schema`."""
        is_request = are_exact and raw.num_rows <= _FEW_ROWS
        encoded: dict[tuple[str, ...], Stack] = {}
        for group in self._together if is_request else self._one_by_one:
            source = StackedColumns(self.encoded_schema, raw.num_rows, encoded) if group.is_cross else raw
            given = [source.stack(names) for names in group.given]
            # Candidates of one context have its lists.
            is_one = is_request and raw.num_rows > 1 and group.is_list and all(map(is_constant, given))
            found = self._encode(group, [column[:1] for column in given] if is_one else given)
            encoded[group.names] = found.take(pa.array(np.zeros(raw.num_rows, np.int64))) if is_one else found
        return StackedColumns(self.encoded_schema, raw.num_rows, encoded)

    def _encode(self, group: _Group, given: Sequence[Stack]) -> Stack:
        """Encode features from what they are made of."""
        feature, lookup = group.features[0], group.lookup
        match feature:
            case NumericFeature():
                return encode_numeric(feature.name, given[0], feature.transforms, *given[1:])
            case VectorFeature():
                return encode_vector(feature, given[0])
        if group.is_cross:
            return encode_cross(feature, given)
        values = given[0]
        if feature.name in self._from_digits:
            values, _ = read_column(values, self._from_digits[feature.name])
        if isinstance(feature, MultiHotFeature):
            of_events = feature.name in self._event_lists
            return encode_multi_hot(feature, values, lookup, *given[1:], keeps_missing=of_events)
        return encode_categorical(feature, values, lookup)

    def _group(self, *features: Feature) -> _Group:
        lookups = tuple(self.vocabularies[f.name] for f in features if f.name in self.vocabularies)
        of_all = lookups[0] if len(set(lookups)) == 1 else _JoinedVocabularies(lookups) if lookups else None
        given = tuple(zip(*(feature.columns for feature in features), strict=True))
        is_cross = features[0].reads is None
        return _Group(features, of_all, tuple(feature.name for feature in features), given, is_cross)


def _likeness(feature: Feature, raw_schema: pa.Schema) -> Hashable:
    """Return what is equal for features of one value a row that one call can encode; None for other features."""
    if feature.reads is None or len(feature.columns) > 1 or isinstance(feature, MultiHotFeature | VectorFeature):
        return None
    ids: Hashable = None
    if isinstance(feature, CategoricalFeature):
        # The ids of a vocabulary are in its table, whatever its size.
        ids = (id_dtype(feature), None if feature.vocabulary else feature.cardinality)
    steps = tuple(Vocabulary if isinstance(step, Vocabulary) else step for step in feature.transforms)
    return type(feature), raw_schema.field(feature.columns[0]).type, steps, ids


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
