"""What the ids of a feature stand for: their names, and where their rows were when a model moves to another dataset.

What a row of an embedding table stands for decides, not its number: the missing value, a value of the vocabulary, a
bucket, an id. So a value keeps its row whatever else two vocabularies list, and in whatever order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.common.text import MOST_ORDERED, natural_order
from rayrec.config.transforms import Buckets, Cross, Hash, HashIds, HashUnlisted, TimePart, Vocabulary
from rayrec.features.hashes import hash_strings
from rayrec.features.schema import CategoricalFeature, Feature, MultiHotFeature, NumericFeature, Schema, VectorFeature
from rayrec.features.transforms import encode_cross, fold_ids, hash_unlisted, id_dtype, ids_of, with_weights
from rayrec.features.vocabulary import VocabularyLookup, content_hash

NEW = -1
"""The origin of a row that stands for what had no row before."""
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip


@dataclass(frozen=True)
class ListedIds:
    """The ids of a feature with a vocabulary, before `HashIds` folds them; id 0 is the missing value."""

    vocabulary: Vocabulary
    values: range
    """The ids of the listed values."""
    buckets: range
    """The ids that `HashUnlisted` gives."""

    @classmethod
    def of(cls, feature: CategoricalFeature) -> "ListedIds | None":
        """Return None for a feature without a vocabulary. Nothing else in this module knows the order of the ids."""
        vocabulary, first_value = feature.vocabulary, 1 + feature.unlisted_buckets
        if vocabulary is None:
            return None
        return cls(vocabulary, range(first_value, first_value + vocabulary.size), range(1, first_value))

    def added_after(self, old: "ListedIds", folder: Path) -> pa.Array | None:
        """Return the values (large_string) after those of `old`, with which this vocabulary begins; None if it does
        not.

        `folder` holds this vocabulary, of which only these values are read.
        """
        before, now = old.vocabulary, self.vocabulary
        if before.content_hash is None or now.content_hash is None or now.size < before.size:
            return None
        added, word = pa.array([], pa.large_string()), int(now.content_hash, 16)
        if now.size > before.size:
            added = self.lookup(folder).values(np.arange(before.size, now.size) + 1)
            word = (word - content_hash(added, before.size + 1)) % 2**64
        return added if word == int(before.content_hash, 16) else None

    def lookup(self, folder: Path) -> VocabularyLookup:
        """Return the vocabulary, which `folder` holds."""
        return VocabularyLookup.load(folder / self.vocabulary.file)


@dataclass(frozen=True)
class RowOrigins:
    """The origins of all rows of a table."""

    rows: NDArray[np.int64]
    """(rows of the new table,) the row of the old table that each comes from, or `NEW`."""
    values: pa.Array
    """Values (large_string) of the new vocabulary, those of all new rows among them."""
    first_value_row: int
    """The row of the first of `values`; the others follow."""

    @cached_property
    def new(self) -> NDArray[np.int64]:
        """Return (n,) the new rows, ascending."""
        return np.flatnonzero(self.rows == NEW)

    def keys(self, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return (n,) words for n new rows, by what each stands for: the hash of its value, else its id."""
        keys, places = rows.astype(np.uint64), rows - self.first_value_row
        is_value = (places >= 0) & (places < len(self.values))
        keys[is_value] = hash_strings(self.values.take(pa.array(places[is_value])))
        return keys


def row_origins(
    old: CategoricalFeature, new: CategoricalFeature, new_folder: Path, old_folder: Callable[[], Path]
) -> RowOrigins:
    """Return the origins of the rows of a feature's table, where `difference` finds none between the two features.

    `new_folder` holds the vocabulary of `new`. `old_folder` is asked for that of `old` only if the new one does not
    begin with it; then values are looked up, which takes about a second for a million. A row that several values share
    (`HashIds`) is that of the first of them.
    """
    # For each id of the new feature the old one that means the same. Without vocabularies that is the same number.
    ids = np.arange(new.cardinality, dtype=np.int64)
    values, first_value_row = pa.array([], pa.large_string()), 0
    before, now = ListedIds.of(old), ListedIds.of(new)
    if before is not None and now is not None:
        ids[1:] = NEW
        of_values, of_buckets = ids[now.values.start : now.values.stop], ids[now.buckets.start : now.buckets.stop]
        of_buckets[:] = before.buckets[: len(of_buckets)]
        added = now.added_after(before, new_folder)
        # Content hashes tell a vocabulary that has only grown; the values of any other are looked up in the old one.
        if added is not None:
            values, first_value_row = added, now.values.start + len(before.values)
            kept = before.values[: len(of_values)]
            of_values[: len(kept)] = kept
        elif before.added_after(now, old_folder()) is not None:  # backwards in time
            of_values[:] = before.values[: len(of_values)]
        else:
            values, first_value_row = now.lookup(new_folder).values(np.arange(len(of_values)) + 1), now.values.start
            found = before.lookup(old_folder()).ids(values)
            of_values[:] = np.where(found > 0, found - 1 + before.values.start, NEW)
    # Ids become rows of the old table, which may be capped.
    rows = np.where(ids == NEW, NEW, _folded(old, ids))
    return RowOrigins(np.where(rows < old.cardinality, rows, NEW), values, first_value_row)


def keeps_ids(old: CategoricalFeature, new: CategoricalFeature, new_folder: Path) -> bool:
    """Return whether all that had an id of its own in `old` has the same id in `new`; `new_folder` as in
    `row_origins`.
    """
    before, now = ListedIds.of(old), ListedIds.of(new)
    count = old.cardinality
    if before is not None and now is not None:
        moved = before.values.start != now.values.start or before.buckets != now.buckets
        if moved or now.added_after(before, new_folder) is None:
            return False
        count = 1 + len(before.values) + len(before.buckets)
    ids = np.arange(count, dtype=np.int64)
    found = _folded(new, ids)
    return bool(((found == _folded(old, ids)) & (found < new.cardinality)).all())


def difference(old: Feature, new: Feature) -> str | None:
    """Say why a model cannot read `new` as it read `old`, in words that follow the feature's name; None if it can.

    What is fitted to rows (vocabularies, means, the cap of a table) may differ.
    """
    if old.kind != new.kind:
        return f"is {new.kind} and was {old.kind}"
    if isinstance(old, VectorFeature) and isinstance(new, VectorFeature) and old.size != new.size:
        return f"has {new.size} numbers and had {old.size}"
    before, now = _rules(old), _rules(new)
    names = [", ".join(op for op, _ in rules) or "no transform" for rules in (now, before)]
    if names[0] != names[1]:
        return f"has {names[0]} and had {names[1]}"
    for rule, was in zip(now, before, strict=True):
        if rule != was:
            return f"has different settings of '{rule[0]}'"
    if isinstance(old, CategoricalFeature) and isinstance(new, CategoricalFeature):
        if old.table != new.table:
            tables = [f"the table of '{feature.table}'" if feature.table else "its own table" for feature in (new, old)]
            return f"reads {tables[0]} and read {tables[1]}"
        if new.reads is None and old.inputs != new.inputs:
            return f"crosses {', '.join(new.inputs)} and crossed {', '.join(old.inputs)}"
    return None


def _rules(feature: Feature) -> list[tuple[str, dict[str, Any]]]:
    """Return the transforms that give a feature its meaning, each with its settings that are not fitted to rows."""
    if isinstance(feature, VectorFeature):
        return []
    if isinstance(feature, NumericFeature):
        return [(transform.op, {}) for transform in feature.transforms]
    return [
        (transform.op, {} if isinstance(transform, Vocabulary) else transform.model_dump())
        for transform in feature.transforms
        if not isinstance(transform, HashIds)
    ]


def _folded(feature: CategoricalFeature, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    for transform in feature.transforms:
        if isinstance(transform, HashIds):
            return np.where(ids > 0, fold_ids(ids, transform.buckets), ids)
    return ids


class EarlierIds:
    """Turns encoded rows back to the ids that they had in the dataset that theirs extends.

    Values that are new since then were unlisted: missing, or hashed. In a capped table ids stand for several values, so
    that a new value keeps the row that it shares.
    """

    def __init__(self, now: Schema, folder: Path, before: Schema, folder_before: Path) -> None:
        """The folders have the vocabularies of the schemas, whose features are the same."""
        self._features = tuple(zip(now.categorical, before.categorical, strict=True))
        self._ids_before: dict[str, NDArray[np.signedinteger]] = {}
        """For each feature with a table of its own, the id that each of its ids had before."""
        for feature, earlier in self._features:
            if feature.table is None and feature.reads is not None:
                ids = _ids_before(feature, folder, earlier, folder_before)
                self._ids_before[feature.name] = ids.astype(id_dtype(earlier))

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the encoded rows with the ids of the earlier schema; other columns stay."""
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        for feature, earlier in self._features:
            column = columns[feature.name]
            if feature.reads is None:
                crossed = [columns[name].to_numpy() for name in feature.inputs]
                columns[feature.name] = pa.array(encode_cross(earlier, crossed))
                continue
            ids_before = self._ids_before[feature.table or feature.name]
            if isinstance(feature, MultiHotFeature):
                columns[feature.name] = _lists(column, ids_before)
            else:
                columns[feature.name] = pa.array(ids_before[column.to_numpy()])
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _ids_before(
    feature: CategoricalFeature, folder: Path, earlier: CategoricalFeature, folder_before: Path
) -> NDArray[np.int64]:
    """Return (cardinality of `feature`,) the id before of each id."""
    origins = row_origins(earlier, feature, folder, lambda: folder_before)
    ids = origins.rows.copy()
    ids[origins.new] = 0
    hashing = next((t for t in earlier.transforms if isinstance(t, HashUnlisted)), None)
    if hashing is not None and len(origins.new):
        texts = origins.values.take(pa.array(origins.new - origins.first_value_row))
        ids[origins.new] = hash_unlisted(ids[origins.new], texts, hashing)
    return ids


def _lists(column: pa.ListArray, ids_before: NDArray[np.signedinteger]) -> pa.ListArray:
    elements = column.flatten()
    ids = pa.array(ids_before[ids_of(elements).to_numpy()])
    if pa.types.is_struct(elements.type):
        ids = with_weights(ids.to_numpy(), elements.field("weight").to_numpy())
    offsets = column.offsets.to_numpy()
    return pa.ListArray.from_arrays(pa.array(offsets - offsets[0]), ids)


class ValueNames:
    """Names the ids of a feature."""

    def __init__(self, feature: CategoricalFeature, vocabulary: VocabularyLookup | None) -> None:
        """`vocabulary`: that of the feature, if it has one."""
        self._feature = feature
        self._vocabulary = vocabulary
        self._first = 1 + feature.unlisted_buckets
        """The id of the first listed value."""
        self._folded = next((t.buckets for t in feature.transforms if isinstance(t, HashIds)), None)

    @classmethod
    def load(cls, feature: CategoricalFeature, folder: Path) -> "ValueNames":
        """Map the vocabulary of a feature from the folder of its schema."""
        vocabulary = feature.vocabulary
        return cls(feature, None if vocabulary is None else VocabularyLookup.load(folder / vocabulary.file))

    @property
    def missing(self) -> str:
        """Return what id 0 stands for."""
        is_listed = self._vocabulary is not None and not self._feature.unlisted_buckets
        return "missing or not listed" if is_listed else "missing"

    def __call__(self, ids: Sequence[int]) -> list[str]:
        """Return the names of some ids."""
        return [self._name(int(number)) for number in ids]

    def to_show(self, ids: NDArray[np.int64], most: int) -> NDArray[np.int64]:
        """Return the first `most` of (n,) ids, which are the most frequent first; up to 32 in the order of what they
        stand for, if it has one, and then the missing and the unlisted ones.
        """
        listed, others = ids[ids >= self._first], ids[ids < self._first]
        if isinstance(self._feature.transforms[0] if self._feature.transforms else None, TimePart | Buckets):
            return np.concatenate([np.sort(listed[:MOST_ORDERED]), others])
        order = natural_order(self(listed.tolist())) if len(listed) <= MOST_ORDERED else None
        return ids[:most] if order is None else np.concatenate([listed[order], others])

    def _name(self, number: int) -> str:
        if number == 0:
            return self.missing
        if self._vocabulary is not None:
            return self._listed(number, self._vocabulary)
        match self._feature.transforms[:1]:
            case (TimePart(part="weekday"),):
                return _WEEKDAYS[number - 1]
            case (TimePart(part="month"),):
                return _MONTHS[number - 1]
            case (TimePart(part="day"),):
                return str(number)
            case (TimePart(part="hour"),):
                return f"{number - 1}:00"
            case (Buckets(boundaries=boundaries),):
                return _range(boundaries, number - 1)
            case (Hash() | Cross(),):
                return f"bucket {number}"
        return str(number)

    def _listed(self, number: int, vocabulary: VocabularyLookup) -> str:
        place = number - self._first
        if place < 0:
            return f"not listed, bucket {number}"
        name = vocabulary.values(np.array([place + 1]))[0].as_py() or "a value that is listed no longer"
        shares = self._folded is not None and number + self._folded - 1 < self._first + len(vocabulary)
        return f"{name} and others" if shares else name


def _range(boundaries: Sequence[float], number: int) -> str:
    """Return the name of a range of numbers, the first of which is below all boundaries."""
    if not boundaries:
        return "any number"
    if number == 0:
        return f"below {boundaries[0]:g}"
    if number == len(boundaries):
        return f"from {boundaries[-1]:g}"
    return f"{boundaries[number - 1]:g} to {boundaries[number]:g}"
