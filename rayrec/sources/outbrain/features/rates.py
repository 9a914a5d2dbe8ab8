"""Rates of clicks by key, with the confidence that the number of rows gives; NaN where missing: docs/outbrain.md."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rayrec.features.keyed_table import UNKNOWN
from rayrec.features.mapped_columns import Numbers
from rayrec.sources.outbrain.features.rows import Rows
from rayrec.sources.outbrain.statistics import RATE_KEYS, Constants, RateKey

_FULL_CONFIDENCE = 100_000
"""Rows an ad from which on a rate is trusted wholly."""


@dataclass(frozen=True)
class Rate:
    """Of n rows."""

    rate: NDArray[np.float64]
    confidence: NDArray[np.float64]


@dataclass(frozen=True)
class Keys:
    """k keys of rows; arrays are (k,)."""

    owner: NDArray[np.int64]
    """The row that each belongs to."""
    parts: tuple[Numbers, ...]
    confidence: NDArray[np.float64]
    """Of an aspect, that of the ad document in the value."""

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Whether no part is missing."""
        return np.logical_and.reduce([part.valid for part in self.parts])


@dataclass(frozen=True)
class _Counts:
    """Of n keys; zeros where unknown."""

    views: NDArray[np.int64]
    clicks: NDArray[np.int64]
    ads: NDArray[np.int64]
    mean_confidence: NDArray[np.float64]


def rate(rows: Rows, name: str) -> Rate:
    """The rate of a key, or over the values of an aspect."""
    key = RATE_KEYS[name]
    return rows.once(f"rate {name}", lambda: _over_values(rows, key) if key.aspect else _of_key(rows, key))


def views(rows: Rows, name: str) -> NDArray[np.float64]:
    """Rows of train of a key (of no aspect), all folds; NaN where unknown, and in the original up to the least."""
    key = RATE_KEYS[name]
    counts = _count(rows, key, keys_of(rows, key), None)
    least = _least(key, rows.constants) if rows.constants.original else 0
    return np.where(counts.views > least, counts.views, np.nan)


def keys_of(rows: Rows, key: RateKey) -> Keys:
    """The keys of n rows: one each, or one for each value of the ad document."""
    parts = _parts(rows, key)
    if key.aspect is None:
        return Keys(np.arange(len(rows)), parts, np.ones(len(rows)))
    values = rows.ad_values(key.aspect)
    owner = values.owner
    value = Numbers(values.field("value"), np.ones(len(owner), bool))
    parts = (*(part.of(owner) for part in parts), value)
    return Keys(owner, parts, values.field("confidence", np.float64))


def _parts(rows: Rows, key: RateKey) -> tuple[Numbers, ...]:
    """The parts of a row's key; of an aspect the country alone."""
    match key.name:
        case "ad":
            return (rows.ad_id,)
        case "document":
            return (rows.ad_document_id,)
        case "document_pair":
            return (rows.landing_id, rows.ad_document_id)
        case "source" | "publisher":
            return (rows.of_ad_document(f"{key.name}_id"),)
        case "country_source":
            return (rows.country, rows.of_ad_document("source_id"))
        case "advertiser" | "campaign":
            return (rows.of_ad(f"{key.name}_id"),)
    return (rows.country,) if key.with_country else ()


def _of_key(rows: Rows, key: RateKey) -> Rate:
    constants = rows.constants
    counts = _count(rows, key, keys_of(rows, key), rows.fold)
    known, rate, confidence = _rates(counts, _least(key, constants), constants)
    return _filled(known, rate, confidence, constants)


def _over_values(rows: Rows, key: RateKey) -> Rate:
    """The mean rate of the ad document's values, weighted by their confidences, and the largest of these."""
    constants = rows.constants
    keys = keys_of(rows, key)
    counts = _count(rows, key, keys, None if rows.fold is None else rows.fold.of(keys.owner))
    known, rate, confidence = _rates(counts, _least(key, constants), constants)
    weight = np.where(known, confidence * counts.mean_confidence * keys.confidence, 0.0)
    total = np.bincount(keys.owner, weight, len(rows))
    weighted = np.bincount(keys.owner, np.where(known, rate, 0.0) * weight, len(rows))
    largest = np.zeros(len(rows))
    np.maximum.at(largest, keys.owner, weight)
    is_known = total > 0.0
    mean = np.divide(weighted, total, out=np.zeros(len(rows)), where=is_known)
    return _filled(is_known, mean, largest, constants)


def _count(rows: Rows, key: RateKey, keys: Keys, fold: Numbers | None) -> _Counts:
    """Counts of k keys; `fold` (k,): what is left out."""
    table = rows.statistics.rates(key)
    found = table.find(dict(zip(key.columns, (part.values for part in keys.parts), strict=True)), keys.valid)
    gathered = {name: table.numbers(name, found).values for name in ("views", "clicks", "ads", "confidence")}
    views, clicks = gathered["views"], gathered["clicks"]
    if fold is not None and not rows.constants.original:
        for number in np.unique(fold.values[fold.valid]):
            own = np.where(fold.valid & (fold.values == number), found, UNKNOWN)
            views = views - table.numbers(f"views_{number}", own).values
            clicks = clicks - table.numbers(f"clicks_{number}", own).values
    return _Counts(views, clicks, gathered["ads"], gathered["confidence"])


def _rates(
    counts: _Counts, least: int, constants: Constants
) -> tuple[NDArray[np.bool_], NDArray[np.float64], NDArray[np.float64]]:
    """Which keys have rows enough, and of these the rates and confidences."""
    known = counts.views > least
    smoothing = 0.0 if constants.original else constants.smoothing
    views = np.where(known, counts.views, 1)
    rate = (counts.clicks + smoothing * constants.mean_rate) / (views + smoothing)
    per_ad = views / np.maximum(counts.ads, 1)
    if constants.original:
        confidence = np.log1p(per_ad) / np.log2(_FULL_CONFIDENCE + 1)
        confidence = np.where(per_ad >= _FULL_CONFIDENCE, 1.0, confidence)
    else:
        confidence = np.minimum(np.log1p(per_ad) / np.log(_FULL_CONFIDENCE + 1), 1.0)
    return known, rate, confidence


def _filled(
    known: NDArray[np.bool_], rate: NDArray[np.float64], confidence: NDArray[np.float64], constants: Constants
) -> Rate:
    """What an unknown key has."""
    if not constants.original:
        return Rate(np.where(known, rate, constants.mean_rate), np.where(known, confidence, 0.0))
    unknown = 0.0 if constants.feature_set == "lean" else np.nan
    return Rate(np.where(known, rate, unknown), np.where(known, confidence, np.nan))


def _least(key: RateKey, constants: Constants) -> int:
    is_lean_original = constants.original and constants.feature_set == "lean"
    return key.lean_least if is_lean_original and key.lean_least is not None else key.least
