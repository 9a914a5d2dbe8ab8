"""The transforms over Arrow and NumPy: the one implementation that Spark, prediction and serving run."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.config.transforms import (
    Buckets,
    Clip,
    Cross,
    Elapsed,
    Fill,
    Hash,
    HashIds,
    HashUnlisted,
    Log,
    Log2,
    MinMax,
    NumericTransform,
    Quantile,
    Standardize,
    TimePart,
)
from rayrec.features.hashes import by_distinct_text, hash_key, hash_strings
from rayrec.features.raw_columns import ListLength
from rayrec.features.schema import CategoricalFeature, MultiHotFeature, VectorFeature
from rayrec.random.arrays import hash_integers

# ---- numbers


_ROUNDED = 1e-5
"""More than float32 rounds off, by the number's size."""
_MICROSECONDS = {"second": 10**6, "hour": 3600 * 10**6, "day": 86_400 * 10**6}


def encode_numeric(
    name: str, column: pa.Array, transforms: Sequence[NumericTransform], since: pa.Array | None = None
) -> NDArray[np.float32]:
    """Apply `transforms` in order to a raw column of integers, floats or nulls; `Elapsed` to times, `since` others.

    Return float32, finite everywhere: what is missing or undefined after the last transform is 0. The arithmetic is
    float64 and is rounded once at the end, so the bits depend neither on the raw column's type nor on the batch.
    Raises UserError naming the feature if the column does not hold numbers (or times).
    """
    return finite_float32(transformed(name, column, transforms, since))


def finite_float32(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Round to float32; what is not finite then becomes 0."""
    with np.errstate(over="ignore"):
        result = values.astype(np.float32)
    return np.where(np.isfinite(result), result, np.float32(0.0))


def transformed(
    name: str, column: pa.Array, transforms: Sequence[NumericTransform], since: pa.Array | None = None
) -> NDArray[np.float64]:
    """Return (n,) float64 after `transforms`, NaN if missing or undefined; later transforms are fitted to these values.

    `since`: the second column of `Elapsed`. Raises UserError naming the feature if a column holds something else than
    its transforms need.
    """
    if transforms and isinstance(transforms[0], Elapsed):
        assert since is not None, f"'{name}' has two columns"
        micros, earlier = (as_times(name, times).cast(pa.int64()) for times in (column, since))
        values = as_float64(name, pc.subtract(micros, earlier)) / _MICROSECONDS[transforms[0].per]
        transforms = transforms[1:]
    else:
        values = as_float64(name, column)
    with np.errstate(over="ignore"):
        for transform in transforms:
            values = _apply(transform, values)
    return values


def _apply(transform: NumericTransform, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Apply one transform; missing values are NaN before and after."""
    match transform:
        case Log(offset=offset):
            shifted = values + offset
            return np.log(shifted, out=np.full(shifted.shape, np.nan), where=shifted > 0.0)
        case Log2(scale=scale):
            scaled = 1.0 + scale * values
            return np.log2(scaled, out=np.full(scaled.shape, np.nan), where=scaled > 0.0)
        case MinMax(min=low, max=high, clip=clip):
            # NaN stays NaN through all of these.
            shares = (values - low) / (high - low) if high > low else values * 0.0
            return _clipped(shares, 0.0, 1.0) if clip else shares
        case Standardize(mean=mean, deviation=deviation):
            return (values - mean) / deviation if deviation > 0.0 else values * 0.0
        case Fill(value=value):
            return np.where(np.isnan(values), value, values)
        case Clip(min=lowest, max=highest, outside=outside):
            inside = _clipped(values, lowest, highest)
            return inside if outside == "bound" else np.where(inside == values, values, np.nan)
        case Quantile(boundaries=boundaries):
            return _shares_below(values, np.array(boundaries))
        case Elapsed():
            raise AssertionError("the schema has 'elapsed' first")


def untransformed(values: NDArray[np.float64], transforms: Sequence[NumericTransform]) -> NDArray[np.float64]:
    """Return (n,) the raw numbers that encoded ones come from, as far as `transforms` and float32 have kept them.

    What was cut or filled stays as it is; `Elapsed` gives the time between. Numbers next to a whole one are that one.
    """
    with np.errstate(over="ignore"):
        for transform in reversed(transforms):
            values = _undone(transform, values)
    whole = np.rint(values) + 0.0  # which makes -0 a 0
    return np.where(np.abs(values - whole) <= _ROUNDED * np.maximum(np.abs(values), 1.0), whole, values)


def _undone(transform: NumericTransform, values: NDArray[np.float64]) -> NDArray[np.float64]:
    match transform:
        case Log(offset=offset):
            return np.exp(values) - offset
        case Log2(scale=scale):
            return (np.exp2(values) - 1.0) / scale
        case MinMax(min=low, max=high):
            return low + values * (high - low)
        case Standardize(mean=mean, deviation=deviation):
            return mean + values * deviation
        case Quantile(boundaries=boundaries):
            return np.interp(values, np.linspace(0.0, 1.0, len(boundaries)), boundaries)
        case Fill() | Clip() | Elapsed():
            return values


def _clipped(values: NDArray[np.float64], low: float | None, high: float | None) -> NDArray[np.float64]:
    # NumPy's minimum and maximum give the one zero or the other by the place of a value in its array.
    values = values if low is None else np.where(values < low, low, values)
    return values if high is None else np.where(values > high, high, values)


def _shares_below(values: NDArray[np.float64], boundaries: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the shares that `np.interp` gives between equal ones at the boundaries.

    A boundary that occurs several times has the lowest of its shares.
    """
    last = len(boundaries) - 1
    above = np.searchsorted(boundaries, values)  # the first boundary that is not below the value
    inside = (above > 0) & (above <= last)
    shares = np.where(above > last, 1.0, 0.0)
    upper, x = above[inside], values[inside]
    lower = boundaries[upper - 1]
    with np.errstate(over="ignore", invalid="ignore"):
        shares[inside] = (upper - 1 + (x - lower) / (boundaries[upper] - lower)) / last
    return np.where(np.isnan(values), np.nan, shares)


def as_times(name: str, column: pa.Array) -> pa.Array:
    """Return the column as timestamp[us, UTC].

    Raises UserError naming the feature if it holds something else than times.
    """
    utc = pa.timestamp("us", "UTC")
    if not (pa.types.is_null(column.type) or column.type == utc):
        raise UserError(f"feature '{name}': needs times, got {column.type}")
    return column.cast(utc)


def as_float64(name: str, column: pa.Array) -> NDArray[np.float64]:
    """Return (n,) float64 of integers, floats or nulls; null, NaN and infinity become NaN.

    Raises UserError naming the feature if the column holds something else.
    """
    if pa.types.is_null(column.type):
        return np.full(len(column), np.nan)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise UserError(f"feature '{name}': needs numbers, got {column.type}")
    values = column.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
    return np.where(np.isfinite(values), values, np.nan)


# ---- vectors, and lists of ids with a weight each


_FLOAT32_MAX = float(np.finfo(np.float32).max)


def wrong_lists(needed: ListLength, columns: Mapping[str, pa.Array]) -> NDArray[np.bool_]:
    """Tell (n,) whether a list is there that is not as long as it must be, or has a weight that is no number >= 0."""
    lists = columns[needed.column]
    if isinstance(needed.length, int):
        return wrong_lengths(lists, needed.length)
    return wrong_weights(lists, columns[needed.length])


def wrong_lengths(lists: pa.Array, size: int) -> NDArray[np.bool_]:
    """Tell (n,) whether a list is there and has another length than `size`."""
    return pc.fill_null(pc.not_equal(pc.list_value_length(lists), size), False).to_numpy(zero_copy_only=False)


def wrong_weights(weights: pa.Array, values: pa.Array) -> NDArray[np.bool_]:
    """Tell (n,) whether weights are there that are not a finite float32 from 0 on for each of the row's `values`."""
    own = lengths_of(weights)
    wrong = weights.is_valid().to_numpy(zero_copy_only=False) & (own != lengths_of(values))
    numbers = _numbers_of(weights.flatten())
    is_weight = (numbers >= 0) & (numbers <= _FLOAT32_MAX)
    wrong[np.repeat(np.arange(len(weights)), own)[~is_weight]] = True
    return wrong


def encode_vector(feature: VectorFeature, column: pa.Array) -> pa.Array:
    """Return fixed_size_list<float32>[size] from a column of lists of numbers; all 0 of a null.

    Numbers that are missing or not finite are 0. The arithmetic is float64, rounded once at the end. Raises UserError
    naming the feature if a list has another length, or the column is of another type.
    """
    if pa.types.is_null(column.type):
        column = column.cast(pa.list_(pa.float64()))
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        raise UserError(f"feature '{feature.name}': needs a list of numbers in each row, got {column.type}")
    wrong = wrong_lengths(column, feature.size)
    if wrong.any():
        length = pc.list_value_length(column)[int(wrong.argmax())].as_py()
        raise UserError(f"feature '{feature.name}': a list of {length} numbers; needs {feature.size}")
    present = column.is_valid().to_numpy(zero_copy_only=False)
    numbers = finite_float32(as_float64(feature.name, column.flatten()))
    rows = np.zeros((len(column), feature.size), np.float32)
    rows[present] = numbers.reshape(-1, feature.size)
    if feature.normalize:
        exact = rows.astype(np.float64)  # squares of float32 neither overflow nor vanish in float64
        length = np.sqrt((exact * exact).sum(axis=1, keepdims=True))
        rows = (exact / np.where(length > 0, length, 1.0)).astype(np.float32)
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), feature.size)


def lengths_of(lists: pa.Array) -> NDArray[np.int32]:
    """Return (n,) the lengths of n lists; 0 of a null."""
    return _filled(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)


def _filled(values: pa.Array, other: Any) -> pa.Array:
    """Return the values with another one for nulls; to look for them takes a twentieth of the time."""
    return values.fill_null(other) if values.null_count else values


def weights_of(lists: pa.Array, lengths: NDArray[np.int32]) -> NDArray[np.float32]:
    """Return (sum of `lengths`,) the weights of n rows, one after the other; 1 in rows whose weights are null."""
    weights = np.ones(lengths.sum(), np.float32)
    if not pa.types.is_null(lists.type):
        is_given = np.repeat(lists.is_valid().to_numpy(zero_copy_only=False), lengths)
        weights[is_given] = _numbers_of(lists.flatten())
    return weights


def weighted_type(ids: pa.DataType) -> pa.StructType:
    """Return the type of an id with its weight."""
    return pa.struct([pa.field("id", ids, False), pa.field("weight", pa.float32(), False)])


def with_weights(ids: NDArray[np.signedinteger], weights: NDArray[np.float32]) -> pa.StructArray:
    """Return (n,) ids with their weights."""
    arrays = [pa.array(ids), pa.array(weights)]
    return pa.StructArray.from_arrays(arrays, fields=list(weighted_type(arrays[0].type)))


def ids_of(elements: pa.Array) -> pa.Array:
    """Return (n,) the ids of elements of encoded lists, which may have weights."""
    return elements.field("id") if pa.types.is_struct(elements.type) else elements


def element_dtype(kind: pa.DataType) -> np.dtype[Any]:
    """Return NumPy's type for elements of encoded lists of this type; that of weighted ids is structured."""
    if pa.types.is_struct(kind):
        return np.dtype([(field.name, field.type.to_pandas_dtype()) for field in kind])
    return np.dtype(kind.to_pandas_dtype())


def elements_to_numpy(elements: pa.Array) -> NDArray[Any]:
    """Return (n,) elements of encoded lists, of their `element_dtype`."""
    if not pa.types.is_struct(elements.type):
        return elements.to_numpy()
    result = np.empty(len(elements), element_dtype(elements.type))
    for field in elements.type:
        result[field.name] = elements.field(field.name).to_numpy()
    return result


def _numbers_of(numbers: pa.Array) -> NDArray[np.float64]:
    return numbers.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)


# ---- ids


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
    feature: MultiHotFeature,
    column: pa.Array,
    lookup: IdsOfValues | None,
    weights: pa.Array | None = None,
    *,
    keeps_missing: bool = False,
) -> pa.Array:
    """Return a list of ids per row, from a column of lists of what `encode_categorical` takes; a null list is empty.

    Missing elements (null, the empty string) are dropped with their weights, or become id 0 (`keeps_missing`), the
    first or last `hotness` of the others stay (`MultiHotFeature.keep`), and of these the unlisted ones become id 0.
    With `weights`, lists of numbers, the elements are ids with their weights (`weighted_type`), which are 1 in rows
    whose list of weights is null. Raises UserError naming the feature if a column has another type, or weights do not
    belong to the values.
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

    # Leave missing values out, then those beyond the first, or before the last, `hotness` of a row.
    if keeps_missing:
        kept = np.arange(len(values))
    else:
        present = _filled(pc.not_equal(values, ""), False) if holds_strings else values.is_valid()
        kept = np.flatnonzero(present.to_numpy(zero_copy_only=False))
    row = row[kept]
    if feature.keep == "last":
        position = np.searchsorted(row, row, side="right") - 1 - np.arange(len(row))
    else:
        position = np.arange(len(row)) - np.searchsorted(row, row)
    if len(kept) < len(values) or (position >= feature.hotness).any():
        kept, row = kept[position < feature.hotness], row[position < feature.hotness]
        values = values.take(pa.array(kept))

    # Encode what is left as one column, and cut it into lists again.
    offsets = np.searchsorted(row, np.arange(len(column) + 1)).astype(np.int32)
    ids = encode_categorical(feature, values, lookup)
    if weights is None:
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids))
    own = weights_of(weights, lengths)[kept]
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
