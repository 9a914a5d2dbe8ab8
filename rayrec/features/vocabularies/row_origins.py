"""Origins of the rows of a feature's embedding table when a model moves from one dataset to another.

What a row stands for decides, not its number: the missing value, a value of the vocabulary, a bucket, an id. So a value
keeps its row whatever else the two vocabularies list, and in whatever order.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.config.transforms import HashIds, Vocabulary
from rayrec.features.categorical import fold_ids
from rayrec.features.schema import CategoricalFeature, Feature, NumericFeature, VectorFeature
from rayrec.features.string_hash import hash_strings
from rayrec.features.vocabularies.vocabulary import VocabularyLookup, fingerprint

NEW = -1
"""The origin of a row that stands for what had no row before."""


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
        if before.fingerprint is None or now.fingerprint is None or now.size < before.size:
            return None
        added, word = pa.array([], pa.large_string()), int(now.fingerprint, 16)
        if now.size > before.size:
            added = self.lookup(folder).values(np.arange(before.size, now.size) + 1)
            word = (word - fingerprint(added, before.size + 1)) % 2**64
        return added if word == int(before.fingerprint, 16) else None

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
        """(n,) the new rows, ascending."""
        return np.flatnonzero(self.rows == NEW)

    def keys(self, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
        """(n,) words for n new rows, by what each stands for: the hash of its value, else its id."""
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
    ids = np.arange(new.cardinality, dtype=np.int64)
    values, first_value_row = pa.array([], pa.large_string()), 0
    before, now = ListedIds.of(old), ListedIds.of(new)
    if before is not None and now is not None:
        ids[1:] = NEW
        of_values, of_buckets = ids[now.values.start : now.values.stop], ids[now.buckets.start : now.buckets.stop]
        of_buckets[:] = before.buckets[: len(of_buckets)]
        added = now.added_after(before, new_folder)
        if added is not None:
            values, first_value_row = added, now.values.start + len(before.values)
            kept = before.values[: len(of_values)]
            of_values[: len(kept)] = kept
        else:
            values, first_value_row = now.lookup(new_folder).values(np.arange(len(of_values)) + 1), now.values.start
            found = before.lookup(old_folder()).ids(values)
            of_values[:] = np.where(found > 0, found - 1 + before.values.start, NEW)
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
    """Why a model cannot read `new` as it read `old`, in words that follow the feature's name; None if it can.

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
