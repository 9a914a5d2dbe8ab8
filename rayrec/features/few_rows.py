"""The few rows of a request: before the encoder, how they are encoded, and after it.

To make Arrow's arrays of some forty columns of one row takes longer than everything else that an answer needs, and so
do as many calls of NumPy. So columns of numbers are one matrix, and features of one kind are encoded together. Arrow's
batches are made of such rows where they are counted or compared, many rows at once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.config.transforms import HashIds, NumericTransform, Vocabulary
from rayrec.features.categorical import fold_ids, id_dtype
from rayrec.features.feature_kinds import CategoricalFeature, Feature, NumericFeature
from rayrec.features.numeric import as_float64, finite_float32, transformed_numbers
from rayrec.features.schema import Schema
from rayrec.features.vocabulary import VocabularyLookup

IdsOf = Callable[[str], NDArray[np.signedinteger]]
"""Gives the encoded ids (n,) of a feature."""


@dataclass(frozen=True)
class PlainColumns:
    """Raw columns in the order of the rows of `PlainRows`."""

    schema: pa.Schema
    """All raw columns, as Arrow has them."""
    numbers: tuple[str, ...]
    texts: tuple[str, ...]
    others: tuple[str, ...]

    @classmethod
    def of(cls, schema: pa.Schema) -> "PlainColumns":
        """Sort raw columns by type."""
        numbers, texts = (tuple(f.name for f in schema if f.type == kind) for kind in (pa.float64(), pa.string()))
        return cls(schema, numbers, texts, tuple(name for name in schema.names if name not in {*numbers, *texts}))


@dataclass(frozen=True)
class PlainRows:
    """A few raw rows that were read and checked, with the content of a batch of the raw columns."""

    columns: PlainColumns
    num_rows: int
    numbers: NDArray[np.float64]
    """(columns of numbers, n), finite; NaN where missing."""
    texts: list[list[str | None]]
    """For each column of texts its n values."""
    others: Mapping[str, pa.Array]
    """The columns of other types, by name; those of rows that came as Arrow's batch, all."""

    @classmethod
    def of(cls, columns: PlainColumns, batch: pa.RecordBatch) -> "PlainRows":
        """Read a batch that has exactly the raw columns."""
        arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
        numbers = np.empty((0, batch.num_rows))
        if columns.numbers:
            joined = as_float64(columns.numbers[0], pa.concat_arrays([arrays[name] for name in columns.numbers]))
            numbers = joined.reshape(len(columns.numbers), batch.num_rows)
        return cls(columns, batch.num_rows, numbers, [arrays[name].to_pylist() for name in columns.texts], arrays)

    @property
    def schema(self) -> pa.Schema:
        """Return the raw columns, as Arrow has them."""
        return self.columns.schema

    def batch(self) -> pa.RecordBatch:
        """Return the rows as Arrow's batch."""
        return pa.RecordBatch.from_arrays([self.column(name) for name in self.schema.names], schema=self.schema)

    def column(self, name: str) -> pa.Array:
        """Return one raw column as Arrow has it."""
        if name in self.others:
            return self.others[name]
        if name in self.columns.texts:
            return pa.array(self.texts[self.columns.texts.index(name)], pa.string())
        return pa.array(self.numbers[self.columns.numbers.index(name)], from_pandas=True)

    @staticmethod
    def joined(parts: Sequence["PlainRows"]) -> "PlainRows":
        """Put rows of the same columns one after the other."""
        first = parts[0]
        if len(parts) == 1:
            return first
        return PlainRows(
            first.columns,
            sum(part.num_rows for part in parts),
            np.concatenate([part.numbers for part in parts], axis=1),
            [list(chain(*values)) for values in zip(*(part.texts for part in parts), strict=True)],
            {name: pa.concat_arrays([part.others[name] for part in parts]) for name in first.others},
        )


@dataclass(frozen=True)
class EncodedRows:
    """A few encoded rows, with the content of a batch that `FeatureEncoder.encode` gives."""

    schema: pa.Schema
    num_rows: int
    number_places: tuple[int, ...]
    """The places in `schema` of the columns in `numbers`."""
    numbers: NDArray[np.float32]
    """(len(number_places), n)."""
    id_places: tuple[int, ...]
    """The places in `schema` of the columns in `ids`."""
    ids: NDArray[np.int32]
    """(len(id_places), n)."""
    others: Mapping[int, pa.Array]
    """The other columns, by place."""

    def batch(self) -> pa.RecordBatch:
        """Return the rows as Arrow's batch."""
        columns = dict(self.others)
        for places, values in ((self.number_places, self.numbers), (self.id_places, self.ids)):
            flat = pa.array(values.ravel())
            columns |= {p: flat.slice(index * self.num_rows, self.num_rows) for index, p in enumerate(places)}
        return pa.RecordBatch.from_arrays([columns[place] for place in range(len(columns))], schema=self.schema)

    @staticmethod
    def joined(parts: Sequence["EncodedRows"]) -> "EncodedRows":
        """Put rows of one encoder one after the other."""
        first = parts[0]
        return EncodedRows(
            first.schema,
            sum(part.num_rows for part in parts),
            first.number_places,
            np.concatenate([part.numbers for part in parts], axis=1),
            first.id_places,
            np.concatenate([part.ids for part in parts], axis=1),
            {place: pa.concat_arrays([part.others[place] for part in parts]) for place in first.others},
        )


class FewRowsEncoder:
    """Encodes the few rows of a request, with the bits that features have which are encoded one by one.

    All numbers with the same transforms take one call, and all ids of vocabularies take one after their look-ups. What
    is left (lists, times, hashes, crosses, ...) is encoded feature by feature.
    """

    def __init__(
        self,
        schema: Schema,
        raw_schema: pa.Schema,
        encoded_schema: pa.Schema,
        vocabularies: Mapping[str, VocabularyLookup],
        encode_one: Callable[[Feature, Sequence[pa.Array], IdsOf], pa.Array],
    ) -> None:
        """Divide the features of a schema; `encode_one` encodes a feature from its raw columns."""
        self.columns = PlainColumns.of(raw_schema)
        """The raw columns that rows must have."""
        self._encoded_schema, self._encode_one = encoded_schema, encode_one

        # Divide the features; `place` is that of a feature in the schema.
        numbers: dict[tuple[NumericTransform, ...], list[int]] = {}
        listed: list[tuple[int, CategoricalFeature]] = []
        self._one_by_one: list[tuple[int, Feature]] = []
        for place, feature in enumerate(schema.features):
            kind = None if feature.reads is None else raw_schema.field(feature.columns[0]).type
            if isinstance(feature, NumericFeature) and kind == pa.float64():
                numbers.setdefault(feature.transforms, []).append(place)
            elif type(feature) is CategoricalFeature and kind == pa.string() and _is_listed_id(feature):
                listed.append((place, feature))
            else:
                self._one_by_one.append((place, feature))

        def column_of(place: int) -> str:
            return schema.features[place].columns[0]

        # Numbers: the rows of `PlainRows.numbers` that features with the same transforms read.
        self._read_numbers = {
            transforms: np.array([self.columns.numbers.index(column_of(place)) for place in places])
            for transforms, places in numbers.items()
        }
        self.number_places = tuple(place for places in numbers.values() for place in places)
        """The places of the features in `EncodedRows.numbers`."""

        # Ids: the column of `PlainRows.texts` that each feature reads, and the vocabulary that it is looked up in.
        self._read_texts = [
            (vocabularies[feature.name], self.columns.texts.index(column_of(place))) for place, feature in listed
        ]
        self.id_places = tuple(place for place, _ in listed)
        """The places of the features in `EncodedRows.ids`."""
        self._id_rows = {feature.name: row for row, (_, feature) in enumerate(listed)}
        self._folds = np.array([[_folded_into(feature)] for _, feature in listed])
        self._cardinalities = np.array([[feature.cardinality] for _, feature in listed])

    def encode(self, raw: PlainRows) -> EncodedRows:
        """Encode a few rows that lack nothing that is looked up."""
        numbers = np.empty((len(self.number_places), raw.num_rows), np.float32)
        done = 0
        for transforms, read in self._read_numbers.items():
            values = transformed_numbers(raw.numbers[read].ravel(), transforms)
            numbers[done : done + len(read)] = finite_float32(values).reshape(len(read), raw.num_rows)
            done += len(read)

        ids = self._listed_ids(raw)

        others: dict[int, pa.Array] = {}

        def ids_of(name: str) -> NDArray[np.signedinteger]:
            if name in self._id_rows:
                return ids[self._id_rows[name]]
            return others[self._encoded_schema.get_field_index(name)].to_numpy()

        # In the schema's order, so that a cross comes after the features that it crosses.
        for place, feature in self._one_by_one:
            given = [] if feature.reads is None else [raw.column(name) for name in feature.columns]
            others[place] = self._encode_one(feature, given, ids_of)
        return EncodedRows(self._encoded_schema, raw.num_rows, self.number_places, numbers, self.id_places, ids, others)

    def _listed_ids(self, raw: PlainRows) -> NDArray[np.int32]:
        """Return (features, n) ids of the features of one id of a vocabulary, as `encode_categorical` gives them."""
        if not self._read_texts:
            return np.empty((0, raw.num_rows), np.int32)
        # The row of a value in its vocabulary is its id less one.
        found = [lookup.find_few(raw.texts[column]) for lookup, column in self._read_texts]
        ids = np.array(found, np.int64) + 1
        ids = np.where(ids > 0, fold_ids(ids, self._folds), 0)
        return np.where(ids < self._cardinalities, ids, 0).astype(np.int32)


def _is_listed_id(feature: CategoricalFeature) -> bool:
    """Tell whether a feature's ids (int32) are those of a vocabulary, which at most `HashIds` changes."""
    transforms = [type(transform) for transform in feature.transforms]
    return transforms in ([Vocabulary], [Vocabulary, HashIds]) and id_dtype(feature) == np.int32


def _folded_into(feature: CategoricalFeature) -> int:
    """Return the buckets that `HashIds` folds ids into, or more than there are ids."""
    last = feature.transforms[-1]
    return last.buckets if isinstance(last, HashIds) else 2**62
