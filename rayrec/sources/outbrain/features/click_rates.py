"""Click-through rates by key, with a confidence that grows with the number of rows; see docs/outbrain.md."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rayrec.features.lookups import counts_of, smoothed_rates
from rayrec.features.table_parts import Numbers
from rayrec.sources.outbrain.features.ad_rows import AdRows, RateEstimate
from rayrec.sources.outbrain.statistics import ASPECTS, KEY, RATE_KEYS, RateKey

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


def rate(rows: AdRows, name: str) -> NDArray[np.float64]:
    """Return the rates of a key, or the mean rates over the values of an aspect, (n,)."""
    return compute_rate(rows, name).value


def confidence(rows: AdRows, name: str) -> NDArray[np.float64]:
    """Return the confidences of these rates, (n,)."""
    return compute_rate(rows, name).confidence


def views(rows: AdRows, name: str) -> NDArray[np.float64]:
    """Return the number of rows of `train` with a key (not of an aspect), (n,); NaN if unknown."""
    key = RATE_KEYS[name]
    counted = _count(rows, key, keys_of(rows, key), None)["views"]
    return np.where(counted > 0, counted, np.nan)


def keys_of(rows: AdRows, key: RateKey) -> Keys:
    """Return the keys of n rows: one for each row, or one for each value of its ad document."""
    if key.column not in ASPECTS:
        return Keys(np.arange(len(rows)), rows.numbers(key.column, key.of), np.ones(len(rows)))
    values = rows.lists(key.column, "ad_document")
    value = values.field("value")
    return Keys(values.owner, Numbers(value, np.ones(len(value), bool)), values.field("confidence", np.float64))


def compute_rate(rows: AdRows, name: str) -> RateEstimate:
    """Return the rate of a key, or the mean rate over the values of an aspect, computed once for these rows."""
    return rows.once(lambda: _rate(rows, RATE_KEYS[name]), "rate", name)


def _rate(rows: AdRows, key: RateKey) -> RateEstimate:
    constants, keys = rows.statistics.constants, keys_of(rows, key)
    counts = _count(rows, key, keys, None if rows.folds is None else rows.folds[keys.owner])
    rates = smoothed_rates(counts["clicks"], counts["views"], constants.mean_rate, constants.smoothing, key.least)
    per_ad = counts["views"] / np.maximum(counts["ads"], 1)
    sure = np.minimum(np.log1p(per_ad) / np.log(_FULL_CONFIDENCE + 1), 1.0)
    sure = np.where(counts["views"] > key.least, sure, 0.0)
    if key.column not in ASPECTS:
        return RateEstimate(rates, sure)
    # The mean over the values of the ad document, weighted by confidence; the largest weight is its confidence.
    weight = sure * counts["confidence"] * keys.confidence
    total, largest = np.bincount(keys.owner, weight, len(rows)), np.zeros(len(rows))
    np.maximum.at(largest, keys.owner, weight)
    mean = np.full(len(rows), constants.mean_rate)
    np.divide(np.bincount(keys.owner, rates * weight, len(rows)), total, out=mean, where=total > 0.0)
    return RateEstimate(mean, largest)


def _count(rows: AdRows, key: RateKey, keys: Keys, folds: NDArray[np.int64] | None) -> dict[str, NDArray]:
    """Return the rows, clicks, distinct ads and mean confidence of k keys, zeros if unknown; `folds`: as
    `AdRows.folds`.
    """
    table = rows.statistics.rates[key.name]
    found = table.find({KEY: keys.value.values}, keys.value.valid)
    counts = counts_of(table, ("views", "clicks"), found, folds)
    return counts | {name: table.numbers(name, found).values for name in ("ads", "confidence")}
