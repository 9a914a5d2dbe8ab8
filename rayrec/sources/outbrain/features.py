"""The raw features of rows, each an ad shown in a context, by what the statistics hold of it; see docs/outbrain.md."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.features.lookup_table import Lists, LookupTable, Numbers, Ranges, search_ranges
from rayrec.features.lookups import counts_of, smoothed_rates
from rayrec.sources.outbrain.places import utc_offsets
from rayrec.sources.outbrain.statistics import ASPECTS, KEY, RATE_KEYS, Aspect, RateKey, Referred, Statistics
from rayrec.sources.outbrain.tables import DAY_MILLISECONDS, EVENT_FIELDS, FIRST_MILLISECOND

# Rows, and what the statistics hold of them, looked up once.

T = TypeVar("T")

ROW_SCHEMA = pa.schema([pa.field("ad_id", pa.int64(), False), *EVENT_FIELDS, pa.field("traffic_source", pa.int8())])
"""The ad, and its context as the tables have it; `document_id` is the landing document."""
FOLD = "fold"
"""Optional column (int8): the fold of a row of `train`, whose rates then leave that fold out; null for other rows."""


@dataclass(frozen=True)
class RateEstimate:
    """Values of a feature for n rows, and their confidences; (n,) each."""

    value: NDArray[np.float64]
    confidence: NDArray[np.float64]


class AdRows:
    """n rows, and what each of them refers to. Arrays are (n,) in their order."""

    def __init__(self, statistics: Statistics, batch: pa.RecordBatch) -> None:
        """`batch`: columns of `ROW_SCHEMA`, perhaps `FOLD`, among others."""
        self.statistics = statistics
        self._batch = batch
        self._computed: dict[tuple[str | None, ...], Any] = {}

    def __len__(self) -> int:
        return self._batch.num_rows

    @property
    def place(self) -> pa.Array:
        return self._batch.column("geo_location")

    @property
    def folds(self) -> NDArray[np.int64] | None:
        """Folds that the rates of the rows leave out, -1 for none; None if no row's rates leave anything out."""
        if FOLD not in self._batch.schema.names:
            return None
        fold = self.numbers(FOLD)
        return np.where(fold.valid, fold.values, -1)

    def found(self, of: Referred) -> tuple[LookupTable, NDArray[np.int64]]:
        """Return the table that these rows refer to, and (n,) its rows there."""
        return self.once(lambda: self._find(of), of)

    def _find(self, of: Referred) -> tuple[LookupTable, NDArray[np.int64]]:
        tables = self.statistics
        match of:
            case "user":
                return tables.profiles, tables.profiles.find_texts(self._batch.column("uuid"))
            case "ad":
                table, key, ids = tables.ads, "ad_id", self.numbers("ad_id")
            case "landing":
                table, key, ids = tables.documents, "document_id", self.numbers("document_id")
            case "ad_document":
                table, key, ids = tables.documents, "document_id", self.numbers("document_id", "ad")
        return table, table.find({key: ids.values}, ids.valid)

    def numbers(self, column: str, of: Referred | None = None) -> Numbers:
        """Return a column of the rows referred to, or of the rows themselves."""

        def compute() -> Numbers:
            if of is not None:
                table, rows = self.found(of)
                return table.numbers(column, rows)
            values = self._batch.column(column)
            is_valid = values.is_valid().to_numpy(zero_copy_only=False)
            return Numbers(values.cast(pa.int64()).fill_null(0).to_numpy(), is_valid)

        return self.once(compute, column, of)

    def lists(self, column: str, of: Referred) -> Lists:
        """Return a column of lists, such as the values of a document with confidences and weights."""
        table, rows = self.found(of)
        return self.once(lambda: table.lists(column, rows), column, of)

    def once(self, compute: Callable[[], T], *name: str | None) -> T:
        """Return the result of `compute`, called once for each name: several features share a result."""
        if name not in self._computed:
            self._computed[name] = compute()
        return self._computed[name]


# Time: the hour and the weekend at the user's place, and the age of documents.

MOST_DAYS = 3650
_HOUR, _MINUTE = 3_600_000, 60_000
_BIN_STARTS = (5, 8, 11, 14, 19, 22)
_LAST_BIN = 5
"""The bin of the hours from the last start on, and of those before the first."""
_FIRST_WEEKDAY = 3
"""The first day of the Unix epoch was a Thursday; Monday is 0."""
_SATURDAY = 5


def hour_bin(rows: AdRows) -> Numbers:
    """Return 0 ... 5 by the local hour of the event."""
    found = np.searchsorted(_BIN_STARTS, _local_milliseconds(rows) // _HOUR % 24, side="right") - 1
    return Numbers(np.where(found < 0, _LAST_BIN, found), rows.numbers("timestamp").valid)


def is_weekend(rows: AdRows) -> Numbers:
    """Return 1 if the event is on a local Saturday or Sunday, else 0."""
    weekday = (_local_milliseconds(rows) // DAY_MILLISECONDS + _FIRST_WEEKDAY) % 7
    return Numbers((weekday >= _SATURDAY).astype(np.int64), rows.numbers("timestamp").valid)


def days_since_published(rows: AdRows, document: Referred) -> NDArray[np.float64]:
    """Return the full days from a document's publication to the event, (n,).

    NaN if either time is missing, before the publication, and beyond MOST_DAYS.
    """
    published, shown = rows.numbers("publish_time", document), rows.numbers("timestamp")
    days = (FIRST_MILLISECOND + shown.values - published.values) // DAY_MILLISECONDS
    return np.where(shown.valid & published.valid & (days >= 0) & (days <= MOST_DAYS), days, np.nan)


def _local_milliseconds(rows: AdRows) -> NDArray[np.int64]:
    return FIRST_MILLISECOND + rows.numbers("timestamp").values + _MINUTE * utc_offsets(rows.place)


# Click-through rates by key, with a confidence that grows with the number of rows.

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


# Cosines of sparse vectors over the values of an aspect; NaN if missing.


@dataclass(frozen=True)
class _Vectors:
    """A sparse vector for each of n rows."""

    parts: Iterable[Ranges]
    """Values, ascending in each row, and weights, wherever they lie."""
    sizes: NDArray[np.int64]
    """(n,) number of values."""
    norms: NDArray[np.float64]
    """(n,)"""


def landing_similarity(rows: AdRows, aspect: Aspect) -> NDArray[np.float64]:
    """Return the cosines of the landing document with the ad document, (n,)."""
    landing, ad = (_documents(rows.lists(aspect, document)) for document in ("landing", "ad_document"))
    return _cosine(len(rows), landing, ad)[0]


def user_similarity(rows: AdRows, aspect: Aspect) -> NDArray[np.float64]:
    """Return the cosines of the user's profile with the ad document, (n,)."""
    return compute_user_similarity(rows, aspect).value


def user_similarity_confidence(rows: AdRows, aspect: Aspect) -> NDArray[np.float64]:
    """Return the confidences of these cosines, (n,)."""
    return compute_user_similarity(rows, aspect).confidence


def compute_user_similarity(rows: AdRows, aspect: Aspect) -> RateEstimate:
    """Compare the user's profile with the ad document, once for these rows."""
    return rows.once(lambda: _user_similarity(rows, aspect), "user similarity", aspect)


def _user_similarity(rows: AdRows, aspect: Aspect) -> RateEstimate:
    profiles, user = rows.found("user")
    sizes = np.zeros(len(rows), np.int64)
    parts = list(profiles.ranges(aspect, user))
    for part in parts:
        sizes[part.asked] = part.stop - part.start
    left = _Vectors(parts, sizes, profiles.numbers(f"{aspect}_norm", user).values)
    right = _documents(rows.lists(aspect, "ad_document"))
    similarity, common = _cosine(len(rows), left, right)
    chance = sizes * right.sizes / max(rows.statistics.constants.values[aspect], 1) ** 2
    confidence = np.where(common > 0, 1.0 - chance**common, chance)
    return RateEstimate(similarity, np.where((sizes > 0) & (right.sizes > 0), confidence, np.nan))


def _documents(lists: Lists) -> _Vectors:
    """Return the vectors of documents."""
    weights, stops = lists.field("weight", np.float64), np.cumsum(lists.lengths)
    fields = {"value": lists.field("value"), "weight": weights}
    whole = Ranges(np.arange(len(stops)), stops - lists.lengths, stops, fields)
    return _Vectors((whole,), lists.lengths, np.sqrt(np.bincount(lists.owner, weights**2, len(stops))))


def _cosine(count: int, left: _Vectors, right: _Vectors) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return cosines, and the number of values that both sides have, (count,). `right` lies in one part."""
    (searched,) = right.parts
    owner = np.repeat(np.arange(count), right.sizes)
    dot, common = np.zeros(count), np.zeros(count, np.int64)
    for part in left.parts:
        position = np.full(count, -1)
        position[part.asked] = np.arange(len(part.asked))
        wanted = np.flatnonzero(position[owner] >= 0)
        of_part = position[owner[wanted]]
        found, is_found = search_ranges(
            part.fields["value"], part.start[of_part], part.stop[of_part], searched.fields["value"][wanted]
        )
        found, wanted = found[is_found], wanted[is_found]
        products = part.fields["weight"][found] * searched.fields["weight"][wanted]
        dot += np.bincount(owner[wanted], products, count)
        common += np.bincount(owner[wanted], minlength=count)
    norms = left.norms * right.norms
    similarity = np.divide(dot, norms, out=np.zeros(count), where=norms > 0.0)
    return np.where((left.sizes > 0) & (right.sizes > 0), similarity, np.nan), common
