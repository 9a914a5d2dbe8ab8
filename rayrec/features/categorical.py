"""Categorical transforms over Arrow and NumPy: the one implementation that Spark, prediction and serving run."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.config.transforms import Buckets, Cross, Hash, HashIds, HashUnlisted, TimePart
from rayrec.features.feature_kinds import CategoricalFeature, MultiHotFeature
from rayrec.features.hashes import by_distinct_text, hash_key, hash_strings
from rayrec.features.lists import lengths_of, weights_of, with_weights, wrong_weights
from rayrec.features.numeric import as_float64, as_times
from rayrec.random.arrays import hash_integers


class IdsOfValues(Protocol):
    """A vocabulary, or several for columns that follow one another."""

    def ids(self, values: pa.Array) -> NDArray[np.int64]:
        """Return the ids (n,) of n texts: from 1 to the size of their vocabulary, 0 if not listed or missing."""


def id_dtype(feature: CategoricalFeature) -> np.dtype[np.signedinteger]:
    """Return int32, or int64 if the table has more rows than int32 can number."""
    return np.dtype(np.int32 if feature.cardinality <= 2**31 else np.int64)


def encode_categorical(
    feature: CategoricalFeature, column: pa.Array, lookup: IdsOfValues | None
) -> NDArray[np.signedinteger]:
    """Return one id per row, in 0 ... cardinality - 1; 0 for what is missing (null, the empty string) or unlisted.

    With a vocabulary, which `lookup` is, the column holds strings; with `Hash`, `Buckets` or `TimePart`, what these
    take; otherwise integer ids. An id that is null or outside of the table becomes 0. Raises UserError naming the
    feature if the column has another type.
    """
    if lookup is not None:
        ids = lookup.ids(_strings(feature.name, column))
    else:
        ids = _computed_ids(feature, column)
    for transform in feature.transforms:
        if isinstance(transform, HashUnlisted):
            ids = hash_unlisted(ids, _strings(feature.name, column), transform)
        if isinstance(transform, HashIds):
            ids = np.where(ids > 0, fold_ids(ids, transform.buckets), 0)
    if lookup is None:  # ids of the data itself, perhaps
        ids = np.where((ids >= 0) & (ids < feature.cardinality), ids, 0)
    return ids.astype(id_dtype(feature))


def _computed_ids(feature: CategoricalFeature, column: pa.Array) -> NDArray[np.int64]:
    """Return the (n,) ids of a feature that looks none up."""
    match feature.transforms[:1]:
        case (Hash() as hashing,):
            return _hashed(feature.name, column, hashing)
        case (Buckets(boundaries=boundaries),):
            values = as_float64(feature.name, column)
            return np.where(np.isnan(values), 0, 1 + np.searchsorted(np.array(boundaries), values, side="right"))
        case (TimePart() as part,):
            return _time_parts(feature.name, column, part)
    return _integers(feature.name, column)


def hash_unlisted(ids: NDArray[np.int64], texts: pa.Array, transform: HashUnlisted) -> NDArray[np.int64]:
    """Return the (n,) ids of n texts, given those in their vocabulary (0 if unlisted), when unlisted ones are
    hashed.
    """
    rows = np.flatnonzero(ids == 0)
    moved = ids + transform.buckets
    moved[rows] = _text_ids(texts.take(pa.array(rows)), 1, transform.buckets)
    return moved


def encode_cross(feature: CategoricalFeature, inputs: Sequence[NDArray[np.signedinteger]]) -> NDArray[np.signedinteger]:
    """Return one id per row, from the encoded ids (n,) of the features that are crossed."""
    (cross,) = feature.transforms
    assert isinstance(cross, Cross)
    wide = [ids.astype(np.int64) for ids in inputs]
    hashes = hash_key(*wide).view(np.uint64)
    ids = 1 + (hashes % np.uint64(cross.buckets - 1)).astype(np.int64)
    return np.where(np.logical_or.reduce(wide), ids, 0).astype(id_dtype(feature))


def encode_multi_hot(
    feature: MultiHotFeature, column: pa.Array, lookup: IdsOfValues | None, weights: pa.Array | None = None
) -> pa.Array:
    """Return a list of ids per row, from a column of lists of what `encode_categorical` takes; a null list is empty.

    Missing elements (null, the empty string) are dropped with their weights, the first `hotness` of the others stay,
    and of these the unlisted ones become id 0. With `weights`, lists of numbers, the elements are ids with their
    weights (`weighted_type`), which are 1 in rows whose list of weights is null. Raises UserError naming the feature if
    a column has another type, or weights do not belong to the values.
    """
    if pa.types.is_null(column.type):
        column = column.cast(pa.list_(pa.null()))
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        raise UserError(f"feature '{feature.name}': needs a list of values in each row, got {column.type}")
    # All values one after the other, and the row of each.
    lengths = lengths_of(column)
    row = np.repeat(np.arange(len(column)), lengths)
    values = column.flatten()
    holds_strings = feature.reads == "texts"
    values = _strings(feature.name, values) if holds_strings else values
    if weights is not None and not pa.types.is_null(weights.type) and wrong_weights(weights, column).any():
        raise UserError(f"feature '{feature.name}': needs a weight of at least 0 for each value of every row")

    # Leave missing values out, then those beyond the first `hotness` of a row.
    present = pc.fill_null(pc.not_equal(values, ""), False) if holds_strings else values.is_valid()
    is_present = present.to_numpy(zero_copy_only=False)
    row, values = row[is_present], values.filter(present)
    position = np.arange(len(row)) - np.searchsorted(row, row)
    kept = position < feature.hotness
    row, values = row[kept], values.filter(pa.array(kept))

    # Encode what is left as one column, and cut it into lists again.
    offsets = np.searchsorted(row, np.arange(len(column) + 1)).astype(np.int32)
    ids = encode_categorical(feature, values, lookup)
    if weights is None:
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids))
    own = weights_of(weights, lengths)[is_present][kept]
    return pa.ListArray.from_arrays(pa.array(offsets), with_weights(ids, own))


def _hashed(name: str, column: pa.Array, transform: Hash) -> NDArray[np.int64]:
    if transform.of == "strings":
        return _text_ids(_strings(name, column), 1, transform.buckets - 1)
    ids = 1 + (hash_integers(_integers(name, column)) % np.uint64(transform.buckets - 1)).astype(np.int64)
    return np.where(column.is_valid().to_numpy(zero_copy_only=False), ids, 0)


def _text_ids(texts: pa.Array, first: int, buckets: int) -> NDArray[np.int64]:
    """Return `first` + h mod `buckets`; 0 for missing texts."""

    def ids_of(values: pa.Array) -> NDArray[np.int64]:
        is_filled = pc.fill_null(pc.not_equal(values, ""), False).to_numpy(zero_copy_only=False)
        return np.where(is_filled, first + (hash_strings(values) % np.uint64(buckets)).astype(np.int64), 0)

    return by_distinct_text(texts, ids_of, 0)


def _time_parts(name: str, column: pa.Array, transform: TimePart) -> NDArray[np.int64]:
    local = as_times(name, column).cast(pa.timestamp("us", transform.zone))
    match transform.part:
        case "hour":
            parts = pc.hour(local)
        case "weekday":
            parts = pc.day_of_week(local)  # Monday is 0
        case "day":
            parts = pc.subtract(pc.day(local), 1)
        case "month":
            parts = pc.subtract(pc.month(local), 1)
    return pc.fill_null(pc.add(parts, 1), 0).to_numpy(zero_copy_only=False)


def fold_ids(ids: NDArray[np.int64], buckets: int) -> NDArray[np.int64]:
    """Apply `HashIds` to ids from 1: ids below `buckets` stay, higher ids share the rows 1 ... buckets - 1."""
    return 1 + (ids - 1) % (buckets - 1)


def _integers(name: str, column: pa.Array) -> NDArray[np.int64]:
    if pa.types.is_null(column.type):
        return np.zeros(len(column), np.int64)
    if not pa.types.is_integer(column.type):
        raise UserError(f"feature '{name}': needs integer ids, got {column.type}")
    return column.cast(pa.int64()).fill_null(0).to_numpy()


def _strings(name: str, column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_string(kind):
        return column
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_null(kind):
        return pa.nulls(len(column), pa.string())
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        raise UserError(f"feature '{name}': needs strings, got {column.type}")
    return column.cast(pa.large_string()) if pa.types.is_string_view(kind) else column
