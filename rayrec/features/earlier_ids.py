"""Rows of a dataset as the schema of one that it extends encodes them, so that an earlier model can score them."""

from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.config.transforms import HashIds, HashUnlisted, Vocabulary
from rayrec.features.categorical import encode_cross, hash_unlisted, id_dtype
from rayrec.features.lists import ids_of, with_weights
from rayrec.features.schema import CategoricalFeature, MultiHotFeature, Schema
from rayrec.features.vocabulary import VocabularyLookup, fingerprint


class EarlierIds:
    """Turns encoded rows back to the ids that they had in the dataset that theirs extends.

    Values that are new since then were unlisted: missing, or hashed. In a capped table ids stand for several values, so
    that a new value keeps the row that it shares.
    """

    def __init__(self, now: Schema, folder: Path, before: Schema, folder_before: Path) -> None:
        """The folders have the vocabularies of the schemas, whose features are the same."""
        self._now, self._before = now, before
        self._ids_before: dict[str, NDArray[np.int64]] = {}
        """By feature, for ids from a first one on, the ids that they had."""
        self._first: dict[str, int] = {}
        for feature, earlier in zip(now.categorical, before.categorical, strict=True):
            if feature.vocabulary is None or earlier.vocabulary is None or feature.vocabulary == earlier.vocabulary:
                continue
            values = VocabularyLookup.load(folder / feature.vocabulary.file).values
            lookup = VocabularyLookup.load(folder_before / earlier.vocabulary.file)
            is_longer = _begins_with(values, earlier.vocabulary)
            first = earlier.vocabulary.size if is_longer else 0
            ids = lookup.ids(values.slice(first))
            hashing = next((t for t in feature.transforms if isinstance(t, HashUnlisted)), None)
            if hashing is not None:
                ids = hash_unlisted(ids, values.slice(first), hashing)
            self._first[feature.name], self._ids_before[feature.name] = first + feature.unlisted_buckets + 1, ids

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Encoded rows with the ids of the earlier schema; other columns stay."""
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        ids: dict[str, NDArray[np.signedinteger]] = {}
        for now, before in zip(self._now.features, self._before.features, strict=True):
            if not isinstance(now, CategoricalFeature) or not isinstance(before, CategoricalFeature):
                continue
            column = columns[now.name]
            if now.reads is None:
                columns[now.name] = pa.array(encode_cross(before, [ids[name] for name in now.inputs]))
            elif isinstance(now, MultiHotFeature):
                columns[now.name] = self._lists(now, before, column)
            else:
                columns[now.name] = pa.array(self._ids(now, before, column.to_numpy()))
            if not isinstance(now, MultiHotFeature):
                ids[now.name] = columns[now.name].to_numpy()
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def _lists(self, now: CategoricalFeature, before: CategoricalFeature, column: pa.ListArray) -> pa.ListArray:
        elements = column.flatten()
        ids = self._ids(now, before, ids_of(elements).to_numpy())
        if pa.types.is_struct(elements.type):
            ids = with_weights(ids, elements.field("weight").to_numpy())
        offsets = column.offsets.to_numpy()
        return pa.ListArray.from_arrays(pa.array(offsets - offsets[0]), ids)

    def _ids(
        self, now: CategoricalFeature, before: CategoricalFeature, ids: NDArray[np.signedinteger]
    ) -> NDArray[np.signedinteger]:
        found = ids.astype(np.int64)
        if now.name in self._first and not any(isinstance(t, HashIds) for t in now.transforms):
            new = np.flatnonzero(ids >= self._first[now.name])
            found[new] = self._ids_before[now.name][ids[new] - self._first[now.name]]
        return np.where(found < before.cardinality, found, 0).astype(id_dtype(before))


def _begins_with(values: pa.Array, vocabulary: Vocabulary) -> bool:
    """Whether values (large_string) in the order of ids begin with those of a vocabulary."""
    size = vocabulary.size
    return size <= len(values) and f"{fingerprint(values.slice(0, size), 1):016x}" == vocabulary.fingerprint
