"""Raw rows -> what a model reads: every transform of a schema, for a table in Spark and for a request in serving."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.config.transforms import HashIds, NumericTransform, Vocabulary
from rayrec.features.categorical import encode_categorical, encode_cross, encode_multi_hot, fold_ids, id_dtype
from rayrec.features.few_rows import EncodedRows, PlainColumns, PlainRows
from rayrec.features.lists import encode_vector, weighted_type
from rayrec.features.lookups import Lookups
from rayrec.features.numeric import as_float64, encode_numeric, finite_float32, transformed_numbers
from rayrec.features.raw_values import read_column
from rayrec.features.schema import (
    CategoricalFeature,
    Feature,
    MultiHotFeature,
    NumericFeature,
    RawColumn,
    Schema,
    VectorFeature,
)
from rayrec.features.vocabulary import VocabularyLookup

_FEW_ROWS = 1024
"""Most rows of a request; for larger batches the overhead of a call does not matter."""


def encoded_schema(schema: Schema) -> pa.Schema:
    """Return the columns of encoded features, without nulls: see `FeatureEncoder.encode_completed`."""
    return pa.schema([pa.field(feature.name, _encoded_type(feature), nullable=False) for feature in schema.features])


def id_column(feature: str) -> str:
    """Return the name of the raw column of a feature's ids, if they were looked up elsewhere."""
    return f"{feature} (id)"


class FeatureEncoder:
    """Applies the transforms of a schema to raw rows. The result for a row does not depend on the rows around it."""

    def __init__(
        self,
        schema: Schema,
        folder: Path,
        looked_up: Collection[str] = (),
        open_vocabulary: Callable[[CategoricalFeature], VocabularyLookup] | None = None,
    ) -> None:
        """Map the vocabularies and tables of `schema` from `folder`, the one that holds schema.json, into memory.

        Features named in `looked_up` read the column `id_column` of ids (int64, or lists of them; null or 0 = missing
        or unlisted, those of unlisted values hashed if the feature hashes them) instead of their own: their vocabulary
        was joined elsewhere and is not read. `open_vocabulary`: gives the vocabulary of a feature if it is not a file
        in `folder`. Raises UserError on an unreadable vocabulary or one that does not have the size that the schema
        states.
        """
        self.schema = schema
        self._tables = Lookups(schema, folder) if schema.lookups else None
        self.vocabularies: dict[str, VocabularyLookup] = {}
        """The vocabularies that are looked up here, by feature; features may share one."""
        opened: dict[Vocabulary, VocabularyLookup] = {}
        for categorical in schema.categorical:
            match categorical.transforms[:1]:
                case (Vocabulary() as vocabulary,) if categorical.name not in looked_up:
                    if vocabulary not in opened:
                        path = folder / vocabulary.file
                        lookup = open_vocabulary(categorical) if open_vocabulary else VocabularyLookup.load(path)
                        _require_size(lookup, vocabulary, path)
                        opened[vocabulary] = lookup
                    self.vocabularies[categorical.name] = opened[vocabulary]
        ids = [
            (id_column(f.name), pa.list_(pa.int64()) if isinstance(f, MultiHotFeature) else pa.int64())
            for f in schema.categorical
            if f.name in looked_up
        ]
        self.raw_schema = pa.schema([*((column.name, column.arrow) for column in schema.raw_columns), *ids])
        """The raw columns that `encode` takes, with the widest types."""
        self._inputs = [
            () if f.reads is None else (id_column(f.name), *f.columns[1:]) if f.name in looked_up else f.columns
            for f in schema.features
        ]
        given = set(self.raw_schema.names) - {id_column(name) for name in looked_up}
        self.reads = [name for names in self._inputs for name in names if name in given]
        """The columns of `raw_schema` that features are computed from, without those of ids."""
        self._from_digits = {
            feature.name: RawColumn(name=feature.name, type=feature.reads)
            for feature in schema.categorical
            if (feature.reads == "text" or feature.reads == "texts") and feature.name not in looked_up
            for column in schema.columns
            if column.name == feature.columns[0] and column.type != feature.reads
        }
        """What features of texts read from columns of integers."""
        self._plain_columns = PlainColumns.of(self.raw_schema)
        self._by_transforms: dict[tuple[NumericTransform, ...], list[int]] = {}
        for index, feature in enumerate(schema.features):
            inputs = self._inputs[index]
            if isinstance(feature, NumericFeature) and self.raw_schema.field(inputs[0]).type == pa.float64():
                self._by_transforms.setdefault(feature.transforms, []).append(index)
        self._one_hot_listed = [
            (index, feature)
            for index, feature in enumerate(schema.features)
            if isinstance(feature, CategoricalFeature)
            and not isinstance(feature, MultiHotFeature)
            and feature.name in self.vocabularies
            and feature.name not in self._from_digits
            and id_dtype(feature) == np.int32
            and [type(transform) for transform in feature.transforms] in ([Vocabulary], [Vocabulary, HashIds])
        ]
        """Features of one id of a vocabulary, which at most one `HashIds` changes, and their positions."""
        self._cardinalities = np.array([[feature.cardinality] for _, feature in self._one_hot_listed])
        self._folds = np.array([[_buckets(feature)] for _, feature in self._one_hot_listed])
        self.number_places = tuple(place for places in self._by_transforms.values() for place in places)
        """The places of the features in `EncodedRows.numbers`."""
        self.id_places = tuple(place for place, _ in self._one_hot_listed)
        """The places of the features in `EncodedRows.ids`."""
        vectorised = {*self.number_places, *self.id_places}
        self._one_by_one = [(place, f) for place, f in enumerate(schema.features) if place not in vectorised]
        """Features that are encoded one by one, and their positions."""
        numbers, texts = self._plain_columns.numbers, self._plain_columns.texts
        self._read_numbers = {
            transforms: np.array([numbers.index(self._inputs[place][0]) for place in places])
            for transforms, places in self._by_transforms.items()
        }
        """The rows of `PlainRows.numbers` that features with the same transforms read."""
        self._read_texts = [texts.index(self._inputs[place][0]) for place in self.id_places]
        self._id_rows = {feature.name: row for row, (_, feature) in enumerate(self._one_hot_listed)}
        self.encoded_schema = encoded_schema(schema)
        """The columns that `encode` returns."""
        self.string_columns = [
            name for name in self.raw_schema.names if self.raw_schema.field(name).type == pa.string()
        ]
        """Columns that may come dictionary encoded, which is faster if values repeat."""

    @classmethod
    @lru_cache(maxsize=4)
    def cached(cls, schema: Schema, folder: Path, looked_up: frozenset[str] = frozenset()) -> "FeatureEncoder":
        """Return the encoder that this process built for the same arguments before; the folder must not change
        meanwhile.
        """
        return cls(schema, folder, looked_up)

    def encode(self, raw: pa.RecordBatch) -> pa.RecordBatch:
        """Look up what n raw rows lack, and encode them as `encode_completed` does."""
        return self.encode_completed(raw if self._tables is None else self._tables.complete(raw))

    def encode_few(self, raw: PlainRows) -> pa.RecordBatch | EncodedRows:
        """Encode a few rows as `encode` does; of columns that are looked up Arrow's batch is made first."""
        if self._tables is not None:
            return self.encode(raw.batch())
        return self._encode_request(raw.num_rows, raw.numbers, raw.texts.__getitem__, raw.column)

    def encode_completed(self, raw: pa.RecordBatch) -> pa.RecordBatch:
        """Encode n raw rows. Columns are found by name; an absent one is missing in every row; others are ignored.

        Raw columns: those of `raw_schema`; numbers of any integer or float type, texts as strings of any type,
        dictionary encoded or not. Result: the features alone, in the schema's order, no nulls: numeric float32 and
        vector fixed_size_list<float32> (finite), categorical int32 and multi-hot list<int32> (int64 for tables beyond
        2^31 rows), with weights list<struct<id: int32, weight: float32>>. Raises UserError naming the feature whose
        column has another type.
        """
        # Requests come with exactly `raw_schema`; finding each of their columns by name would double the time.
        as_expected = raw.schema.equals(self.raw_schema)
        names = self.raw_schema.names
        given = raw.columns if as_expected else [_column(raw, name) for name in names]
        columns = dict(zip(names, given, strict=True))
        if as_expected and raw.num_rows <= _FEW_ROWS:
            numbers = _numbers(columns, self._plain_columns.numbers, raw.num_rows)
            texts = self._plain_columns.texts
            encode = partial(self._encode_request, raw.num_rows, numbers)
            return encode(lambda column: columns[texts[column]].to_pylist(), columns.__getitem__).batch()
        encoded: dict[str, pa.Array] = {}
        for index, feature in enumerate(self.schema.features):
            given = [columns[name] for name in self._inputs[index]]
            encoded[feature.name] = self._encode(feature, given, lambda name: encoded[name].to_numpy())
        return pa.RecordBatch.from_arrays(list(encoded.values()), schema=self.encoded_schema)

    def _encode_request(
        self,
        rows: int,
        raw_numbers: NDArray[np.float64],
        texts: Callable[[int], list[str | None]],
        column: Callable[[str], pa.Array],
    ) -> EncodedRows:
        """Encode a few rows: numbers with the same transforms in one call, and so all ids of vocabularies.

        `raw_numbers` and, by place, `texts` are what `PlainRows` has, and `column` gives raw columns by name.
        """
        numbers = np.empty((len(self.number_places), rows), np.float32)
        done = 0
        for transforms, read in self._read_numbers.items():
            values = transformed_numbers(raw_numbers[read].ravel(), transforms)
            numbers[done : done + len(read)] = finite_float32(values).reshape(len(read), rows)
            done += len(read)
        ids = self._listed_ids(rows, texts)
        others: dict[int, pa.Array] = {}

        def ids_of(name: str) -> NDArray[np.signedinteger]:
            if name in self._id_rows:
                return ids[self._id_rows[name]]
            return others[self.encoded_schema.get_field_index(name)].to_numpy()

        for place, feature in self._one_by_one:
            others[place] = self._encode(feature, [column(name) for name in self._inputs[place]], ids_of)
        return EncodedRows(self.encoded_schema, rows, self.number_places, numbers, self.id_places, ids, others)

    def _listed_ids(self, rows: int, texts: Callable[[int], list[str | None]]) -> NDArray[np.int32]:
        """Return (features, n) ids of the features of one id of a vocabulary, as `encode_categorical` gives them."""
        if not self._one_hot_listed:
            return np.empty((0, rows), np.int32)
        lookups = (self.vocabularies[feature.name] for _, feature in self._one_hot_listed)
        given = zip(lookups, self._read_texts, strict=True)
        # The row of a value is its id less one.
        ids = np.array([lookup.find_few(texts(column)) for lookup, column in given], np.int64) + 1
        ids = np.where(ids > 0, fold_ids(ids, self._folds), 0)
        return np.where(ids < self._cardinalities, ids, 0).astype(np.int32)

    def _encode(
        self,
        feature: Feature,
        given: Sequence[pa.Array],
        ids_of: Callable[[str], NDArray[np.signedinteger]],
    ) -> pa.Array:
        """Encode a feature from its raw columns, or from the ids of the features that it crosses."""
        match feature:
            case NumericFeature():
                return pa.array(encode_numeric(feature.name, given[0], feature.transforms, *given[1:]))
            case VectorFeature():
                return encode_vector(feature, given[0])
            case CategoricalFeature() if not given:
                return pa.array(encode_cross(feature, [ids_of(name) for name in feature.inputs]))
            case MultiHotFeature():
                values, lookup = self._as_read(feature, given[0]), self.vocabularies.get(feature.name)
                return encode_multi_hot(feature, values, lookup, *given[1:])
            case CategoricalFeature():
                ids = encode_categorical(feature, self._as_read(feature, given[0]), self.vocabularies.get(feature.name))
                return pa.array(ids)

    def _as_read(self, feature: CategoricalFeature, column: pa.Array) -> pa.Array:
        wanted = self._from_digits.get(feature.name)
        return column if wanted is None else read_column(column, wanted)[0]


def _numbers(columns: Mapping[str, pa.Array], names: Sequence[str], rows: int) -> NDArray[np.float64]:
    """Return (columns, n) the numbers of some columns of n rows, as `PlainRows` has them."""
    if not names:
        return np.empty((0, rows))
    return as_float64(names[0], pa.concat_arrays([columns[name] for name in names])).reshape(len(names), rows)


def _buckets(feature: CategoricalFeature) -> int:
    """Return the buckets that `HashIds` folds ids into, or more than there are ids."""
    last = feature.transforms[-1]
    return last.buckets if isinstance(last, HashIds) else 2**62


def _column(raw: pa.RecordBatch, name: str) -> pa.Array:
    found = raw.schema.get_all_field_indices(name)
    if len(found) > 1:
        raise UserError(f"column '{name}': {len(found)} columns of that name; give one")
    return raw.column(found[0]) if found else pa.nulls(raw.num_rows)


def _encoded_type(feature: Feature) -> pa.DataType:
    if isinstance(feature, NumericFeature):
        return pa.float32()
    if isinstance(feature, VectorFeature):
        return pa.list_(pa.float32(), feature.size)
    value = pa.from_numpy_dtype(id_dtype(feature))
    if not isinstance(feature, MultiHotFeature):
        return value
    return pa.list_(value if feature.weights is None else weighted_type(value))


def _require_size(lookup: VocabularyLookup, vocabulary: Vocabulary, path: Path) -> None:
    if len(lookup) != vocabulary.size:
        raise UserError(f"{path}: lists {len(lookup)} values, schema.json says {vocabulary.size}; preprocess again")
