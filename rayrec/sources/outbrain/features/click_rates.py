"""Click-through rates by key, with a confidence that grows with the number of rows; see docs/outbrain.md."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rayrec.features.lookups import counts_of
from rayrec.features.table_parts import Numbers
from rayrec.sources.outbrain.features.ad_rows import AdRows, RateEstimate
from rayrec.sources.outbrain.statistics import KEY, RATE_KEYS, RateKey

_FULL_CONFIDENCE = 100_000
"""Rows an ad from which on the confidence of a rate is 1."""


@dataclass(frozen=True)
class Keys:
    """k keys of rows; arrays are (k,)."""

    owner: NDArray[np.int64]
    """The row that each key belongs to."""
    value: Numbers
    confidence: NDArray[np.float64]
    """The ad document's confidence in the value of an aspect; 1 for other keys."""


def rate_of(name: str) -> Callable[[AdRows], NDArray[np.float64]]:
    """Return a function that computes the rates (n,) of a key, or the mean rates over the values of an aspect."""
    return lambda rows: compute_rate(rows, name).value


def confidence_of(name: str) -> Callable[[AdRows], NDArray[np.float64]]:
    """Return a function that computes the confidences (n,) of these rates."""
    return lambda rows: compute_rate(rows, name).confidence


def views_of(name: str) -> Callable[[AdRows], NDArray[np.float64]]:
    """Return a function that counts the rows (n,) of `train` with a key (not of an aspect); NaN if unknown."""

    def compute(rows: AdRows) -> NDArray[np.float64]:
        key = RATE_KEYS[name]
        counted = _count(rows, key, keys_of(rows, key), None)["views"]
        return np.where(counted > 0, counted, np.nan)

    return compute


def keys_of(rows: AdRows, key: RateKey) -> Keys:
    """Return the keys of n rows: one for each row, or one for each value of its ad document."""
    if key.aspect is not None:
        values = rows.ad_values(key.aspect)
        value = values.field("value")
        return Keys(values.owner, Numbers(value, np.ones(len(value), bool)), values.field("confidence", np.float64))
    match key.name:
        case "ad":
            numbers = rows.ad_id
        case "document":
            numbers = rows.ad_document_id
        case "source" | "publisher":
            numbers = rows.of_ad_document(f"{key.name}_id")
        case _:
            numbers = rows.of_ad(f"{key.name}_id")
    return Keys(np.arange(len(rows)), numbers, np.ones(len(rows)))


def compute_rate(rows: AdRows, name: str) -> RateEstimate:
    """Return the rate of a key, or the mean rate over the values of an aspect, computed once for these rows."""
    return rows.once(f"rate {name}", lambda: _rate(rows, RATE_KEYS[name]))


def _rate(rows: AdRows, key: RateKey) -> RateEstimate:
    constants, keys = rows.statistics.constants, keys_of(rows, key)
    counts = _count(rows, key, keys, None if rows.fold is None else rows.fold.of(keys.owner))
    known = counts["views"] > key.least
    views = np.where(known, counts["views"], 1)
    rate = (counts["clicks"] + constants.smoothing * constants.mean_rate) / (views + constants.smoothing)
    per_ad = views / np.maximum(counts["ads"], 1)
    confidence = np.minimum(np.log1p(per_ad) / np.log(_FULL_CONFIDENCE + 1), 1.0)
    if key.aspect is not None:
        # The mean over the values of the ad document, weighted by confidence; the largest weight is its confidence.
        weight = np.where(known, confidence * counts["confidence"] * keys.confidence, 0.0)
        total = np.bincount(keys.owner, weight, len(rows))
        weighted = np.bincount(keys.owner, np.where(known, rate, 0.0) * weight, len(rows))
        confidence = np.zeros(len(rows))
        np.maximum.at(confidence, keys.owner, weight)
        known = total > 0.0
        rate = np.divide(weighted, total, out=np.zeros(len(rows)), where=known)
    return RateEstimate(np.where(known, rate, constants.mean_rate), np.where(known, confidence, 0.0))


def _count(rows: AdRows, key: RateKey, keys: Keys, left_out: Numbers | None) -> dict[str, NDArray]:
    """Return the rows, clicks, distinct ads and mean confidence of k keys, zeros if unknown; `left_out`: see
    `AdRows.fold`.
    """
    table = rows.statistics.rates(key)
    found = table.find({KEY: keys.value.values}, keys.value.valid)
    folds = None if left_out is None else np.where(left_out.valid, left_out.values, -1)
    counts = counts_of(table, ("views", "clicks"), found, folds)
    return counts | {name: table.numbers(name, found).values for name in ("ads", "confidence")}
