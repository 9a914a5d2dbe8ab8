"""How well each column alone predicts the label, out of fold, and which rules make features of numbers."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rayrec.inspection.table.columns import MOST_MISFITS, ColumnProfile, name_words
from rayrec.metrics.auc import auc_of_rows

_FOLDS = 5
_FEW_ROWS = 20_000
"""Samples below this are cut into folds twice, so that chance matters less."""
_PRIOR_ROWS = 10.0
"""Rows of the mean rate that are added to each value's."""
_LEAST_RATE = 1e-6
_CLEAR = 2.5
"""Standard errors by which a reading must be ahead to be the better one."""
LEAST_GAIN = 0.004
_STREAM = 0x666F6C64
_MOST_WORK, _LEAST_ROWS = 4_000_000_000, 10
"""Multiplications of a step of Newton's method over many columns, about 3 s, and rows for each input that it needs."""
_NEWTON_STEPS, _LONGEST_STEP, _SHORTEST_STEP = 10, 4.0, 1e-6
_CROSS_PLACES = 131_071
"""Most places that the pairs of two columns' values share if there are more; two for each row are enough."""
_MOST_SMOOTHING = 100.0
_CLEAR_CROSS = 5.0
"""Standard errors from which on what pairs of values say is more than chance, as many pairs of columns are tried."""


@dataclass(frozen=True)
class Reading:
    """The AUC of one reading of a column in each fold, on the rows that were not used to make it."""

    folds: NDArray[np.float64]
    test_share: float
    """Rows of a fold by the rows of the others."""

    @property
    def auc(self) -> float:
        return float(self.folds.mean())

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return _error(self.folds, self.test_share)

    @property
    def is_clear(self) -> bool:
        """Return whether it ranks the rows better than chance does."""
        return self.auc - 0.5 >= max(LEAST_GAIN, _CLEAR * self.error)

    def is_better_than(self, other: "Reading") -> bool:
        """Return whether it is ahead by more than what chance explains."""
        gain = self.folds - other.folds
        error = _error(gain, self.test_share) if len(gain) > 1 else 0.0  # one fold of a large sample
        return bool(gain.mean() >= max(LEAST_GAIN, _CLEAR * error))


def _error(values: NDArray[np.float64], test_share: float) -> float:
    """Return the error of a mean over folds, which share most of their rows (Nadeau and Bengio 2003)."""
    return float(math.sqrt(values.var(ddof=1) * (1 / len(values) + test_share)))


@dataclass(frozen=True)
class Regression:
    """A logistic regression on several columns."""

    reading: Reading
    """Its AUC, in one fold of a large sample."""
    residuals: NDArray[np.float64]
    """(n,) the label less its probability, NaN if the label is not known."""

    def clear_crosses(self, columns: Sequence[NDArray[np.int64]]) -> list[tuple[int, int, float]]:
        """Return the pairs of (n,) codes whose values together say more of the label than the columns do, the clearest
        first, each with the smoothing of its label rates: the variance within pairs of values by that between them.

        Two rows with the same values of both columns have residuals alike where that is so: the sum of the products
        of their residuals is compared with what rows alike in one of the columns let expect. No row is multiplied with
        itself, so nothing is learnt from its own label.
        """
        known = np.isfinite(self.residuals)
        residuals = self.residuals[known]
        squares = residuals**2
        powers = np.stack([residuals, squares, squares**2])

        def products(places: NDArray[np.int64], size: int) -> tuple[NDArray[Any], ...]:
            rows = np.bincount(places, minlength=size)
            sums, square, fourth = (np.bincount(places, power, size) for power in powers)
            return rows * (rows - 1.0), sums**2 - square, square**2 - fourth, rows + _PRIOR_ROWS

        codes = [column[known] + 1 for column in columns]
        sizes = [int(column.max(initial=0)) + 1 for column in codes]
        shared = []  # what two rows with the same value of one column have in common
        for column, size in zip(codes, sizes, strict=True):
            pairs, product, _, _ = products(column, size)
            shared.append(max(0.0, product.sum() / max(pairs.sum(), 1.0)))
        found, most = [], min(2 * len(residuals) + 1, _CROSS_PLACES)
        for one, other in itertools.combinations(range(len(codes)), 2):
            places, size = codes[one] * sizes[other] + codes[other], sizes[one] * sizes[other]
            if size > most:
                places, size = places % most, most
            pairs, product, variance, rows = products(places, size)
            gain = ((product - pairs * (shared[one] + shared[other])) / rows).sum()
            error = math.sqrt(2 * (variance / rows**2).sum())
            if error and gain > _CLEAR_CROSS * error:
                between = (product / rows).sum() / max((pairs / rows).sum(), _LEAST_RATE)
                smoothing = squares.mean() / between - 1 if between > 0 else _MOST_SMOOTHING
                found.append((gain / error, one, other, float(np.clip(smoothing, 1.0, _MOST_SMOOTHING))))
        return [(one, other, smoothing) for _, one, other, smoothing in sorted(found, reverse=True)]


class Evidence:
    """Measures readings of columns against one label, always on the same folds."""

    def __init__(self, label: NDArray[np.float64], groups: NDArray[np.int64] | None = None, seed: int = 0) -> None:
        """`label`: (n,) 0 or 1, NaN if it is not known. `groups`: (n,) lists whose rows must be in the same fold.

        If each list has one positive, the other rows of a list tell the label of a row.
        """
        self._label = label
        # Generated columns may be drawn from the same seed; folds must not follow them.
        rng = np.random.default_rng([seed, _STREAM])
        units = np.arange(len(label)) if groups is None else groups
        repeats = 2 if len(label) < _FEW_ROWS else 1
        cuts = [rng.integers(_FOLDS, size=int(units.max(initial=0)) + 1)[units] for _ in range(repeats)]
        is_known = np.isfinite(label)
        self._folds = [
            (is_known & (cut != fold), is_known & (cut == fold))
            for cut in cuts
            for fold in range(_FOLDS)
            if len(np.unique(label[is_known & (cut == fold)])) == 2 == len(np.unique(label[is_known & (cut != fold)]))
        ]

    @cached_property
    def is_possible(self) -> bool:
        """Return whether there are enough rows of both labels for a measurement."""
        return len(self._folds) >= _FOLDS

    def as_category(self, codes: NDArray[np.int64]) -> Reading:
        """Return the scores by the smoothed rate of each value; `codes` (n,) are its places, -1 if it is missing."""
        places, size = codes + 1, int(codes.max(initial=-1)) + 2
        return self._reading([self._rates(places, size, train)[places[test]] for train, test in self._folds])

    def as_words(self, words: NDArray[np.int64], lengths: NDArray[np.int64]) -> Reading:
        """Return the scores by the mean log odds of the smoothed rates of a row's words; a row without one has the mean
        rate.

        `words` (sum of `lengths`,) are the places of the words of one row after the other, `lengths` (n,) how many a
        row has.
        """
        row, size, scores = np.repeat(np.arange(len(lengths)), lengths), int(words.max(initial=-1)) + 1, []
        for train, test in self._folds:
            in_train = np.flatnonzero(train[row])
            rates = self._rates(words, size, in_train, row[in_train])
            mean = self._label[train].mean()
            odds = np.log(rates / (1 - rates)) - np.log(mean / (1 - mean))
            scores.append((np.bincount(row, odds[words], len(lengths)) / np.maximum(lengths, 1))[test])
        return self._reading(scores)

    def as_bins(self, numbers: NDArray[np.float64], bins: int) -> Reading:
        """Score by the smoothed rate of each of `bins` ranges of about as many rows; missing ones are one more."""
        scores = []
        for train, test in self._folds:
            known = numbers[train & np.isfinite(numbers)]
            edges = np.unique(np.quantile(known, np.arange(1, bins) / bins)) if len(known) else np.empty(0)
            places = np.where(np.isfinite(numbers), 1 + np.searchsorted(edges, numbers, side="right"), 0)
            scores.append(self._rates(places, len(edges) + 2, train)[places[test]])
        return self._reading(scores)

    def as_number(self, numbers: NDArray[np.float64]) -> Reading:
        """Return the scores by a logistic regression on the number's rank, which is monotone, and on whether it is
        missing.
        """
        inputs = np.concatenate([np.ones((len(numbers), 1)), number_inputs(numbers)], axis=1)
        return self._reading(
            [inputs[test] @ fit_logistic(inputs[train], self._label[train]) for train, test in self._folds]
        )

    def logistic_regression(
        self, categories: Sequence[NDArray[np.int64]], numbers: Sequence[NDArray[np.float64]]
    ) -> "Regression | None":
        """Fit a logistic regression on columns together; measure it on rows that it was not fitted to.

        It is fitted to fewer rows where there are many columns; None if these would be too few.

        `categories`: (n,) codes of columns, which it reads as the log odds of their smoothed rates; `numbers`: (n,)
        columns that it reads as `as_number` does.
        """
        # The first cut alone: a fold of a large sample is enough, and so are five of a small one.
        cut = self._folds[:_FOLDS]
        found, residuals = [], np.full(len(self._label), np.nan)
        for train, test in cut if len(self._label) < _FEW_ROWS else cut[:1]:
            scores = self.regressed(categories, numbers, train)
            if scores is None:
                return None
            found.append(auc_of(scores[test], self._label[test]))
            residuals = np.where(np.isnan(residuals), self._label - 1 / (1 + np.exp(-scores)), residuals)
        return Regression(Reading(np.array(found), 1 / (_FOLDS - 1)), residuals)

    def regressed(
        self,
        categories: Sequence[NDArray[np.int64]],
        numbers: Sequence[NDArray[np.float64]],
        train: NDArray[np.bool_],
    ) -> NDArray[np.float64] | None:
        """Return (n,) the log odds of all rows by such a regression on the rows `train` (n,); None if these are too
        few.
        """
        cut = self._folds[:_FOLDS]
        rates = np.full((len(self._label), len(categories)), self._label[train].mean())
        for place, codes in enumerate(categories):
            places, size = codes + 1, int(codes.max(initial=-1)) + 2
            # A row's rate must not tell its own label, so each fold gets those of the others.
            for others, fold in cut:
                rates[fold, place] = self._rates(places, size, others & train)[places[fold]]
        rates = np.clip(rates, _LEAST_RATE, 1 - _LEAST_RATE)  # the other folds may have labels of one kind
        odds = np.log(rates / (1 - rates))
        inputs = [number_inputs(column) for column in numbers]
        every = np.concatenate([np.ones((len(odds), 1)), odds - odds[train].mean(axis=0), *inputs], axis=1)
        rows = np.flatnonzero(train)
        rows = rows[:: math.ceil(len(rows) * every.shape[1] ** 2 / _MOST_WORK)]
        if len(rows) < _LEAST_ROWS * every.shape[1]:
            return None
        return every @ fit_logistic(every[rows], self._label[rows])

    def _rates(
        self, places: NDArray[np.int64], size: int, train: NDArray[Any], rows: NDArray[Any] | None = None
    ) -> NDArray[np.float64]:
        """Return (size,) the smoothed label rate of each place; `rows`: those that the `train` places belong to, if
        there is not one place a row.
        """
        label = self._label[train if rows is None else rows]
        rows = np.bincount(places[train], minlength=size)
        positives = np.bincount(places[train], weights=label, minlength=size)
        return (positives + _PRIOR_ROWS * label.mean()) / (rows + _PRIOR_ROWS)

    def _reading(self, scores: list[NDArray[np.float64]]) -> Reading:
        values = [auc_of(score, self._label[test]) for score, (_, test) in zip(scores, self._folds, strict=True)]
        return Reading(np.array(values), 1 / (_FOLDS - 1))


def auc_of(scores: NDArray[np.float64], label: NDArray[np.float64]) -> float:
    """Return the AUC of (n,) scores; `label` (n,) has both 0 and 1."""
    value = auc_of_rows(scores[label == 1], scores[label == 0])
    assert value is not None
    return value


def number_inputs(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rank of each of (n,) numbers, around 0, and whether it is missing: (n, 2)."""
    finite = np.isfinite(numbers)
    known = np.sort(numbers[finite])
    middle = (np.searchsorted(known, numbers, "left") + np.searchsorted(known, numbers, "right")) / 2
    rank = np.where(finite, middle / max(len(known), 1) - 0.5, 0.0)
    return np.stack([rank, ~finite], axis=1)


def fit_logistic(inputs: NDArray[np.float64], label: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weights of a logistic regression with a slight L2 penalty, by Newton's method."""
    weights = np.zeros(inputs.shape[1])
    penalty = np.eye(len(weights))
    # By einsum, as BLAS's threads wait for each other on a busy machine: the same work took ten times as long.
    for _ in range(_NEWTON_STEPS):
        p = 1 / (1 + np.exp(-np.clip(np.einsum("ni,i->n", inputs, weights), -30, 30)))
        gradient = np.einsum("ni,n->i", inputs, p - label) + penalty @ weights
        curvature = np.einsum("ni,nj->ij", inputs * (p * (1 - p))[:, None], inputs) + penalty
        # Where all labels are predicted, the curvature vanishes and a whole step would lead away.
        step = np.clip(np.linalg.solve(curvature, gradient), -_LONGEST_STEP, _LONGEST_STEP)
        weights -= step
        if np.abs(step).max() < _SHORTEST_STEP:
            break
    return weights


# Rules for numbers and times.

_CATEGORY_WORDS = {
    "id", "ids", "uid", "uuid", "guid", "code", "type", "category", "cat", "zip", "zipcode", "postcode", "user", "item",
    "ad", "site", "page", "product", "movie", "device", "model", "brand", "campaign", "advertiser", "publisher", "shop",
    "channel", "class", "region", "country", "city", "state", "store", "hash", "key", "platform", "gender", "status",
    "segment", "language", "lang", "browser", "os", "occupation", "slot", "domain", "app",
}  # fmt: skip
_AMOUNT_WORDS = {
    "count", "counts", "cnt", "num", "n", "amount", "price", "cost", "age", "rating", "ratings", "score", "duration",
    "length", "len", "size", "width", "height", "views", "clicks", "impressions", "visits", "days", "hours", "minutes",
    "seconds", "year", "distance", "rate", "ratio", "share", "percent", "pct", "avg", "mean", "sum", "total", "balance",
    "income", "quantity", "qty", "temperature", "lat", "lon", "lng", "latitude", "longitude", "bid", "rank", "depth",
}  # fmt: skip
ID_WORDS = {"id", "ids", "uid", "uuid", "guid", "code", "zip", "zipcode", "postcode", "hash", "key"}
_FEW_KINDS, _MANY_KINDS = 50, 1_000
"""Integers with up to 50 values are taken for categories unless something speaks for numbers; those with more only if
their name or the label says so."""
_FEW_COUNTS = 10
RANGES, _FINE_RANGES, _MANY_FOR_RANGES = 16, 64, 320
_FAR_OUT = 10.0
"""Distances from the median to the outermost half per cent of the numbers, beyond which others are outliers."""
_ABSURD, _GAP = 100.0, 10.0
"""A few numbers are absurd, such as 1e300 among prices, if they are so many times as far from the median as the
outermost half per cent of the others, and so many times as far as their next.
"""
_LEAST_KNOWN, _FARTHEST = 20, 1e300
_MOST_SENTINELS, _ODD_FREQUENCY = 3, 3
_SENTINEL_SHARE = 0.01
"""Share of rows from which on a number that stands for something else has a range of its own."""


@dataclass(frozen=True)
class NumberRules:
    """The rules of `source.features` for a column of numbers, and the evidence for them."""

    reason: str
    rules: tuple[dict[str, Any], ...]
    readings: dict[str, Reading]
    further: str = ""
    """Why there are rules after the first."""


def number_rules(column: ColumnProfile, evidence: Evidence) -> NumberRules:
    """Return a number, a category or both, by what predicts the label, else by name and values."""
    # Everything is decided as if rows of absurd numbers had none.
    bounds, absurd = absurd_bounds(column.row_numbers), ""
    if bounds:
        low, high = bounds.get("min", -np.inf), bounds.get("max", np.inf)
        assert column.numbers is not None
        is_absurd = np.append((column.numbers < low) | (column.numbers > high), False)
        example = column.numbers[is_absurd[:-1] & (column.counts > 0)][0]
        absurd = f"; {_shown(example)} and the like are taken for missing values"
        column = replace(column, codes=np.where(is_absurd[column.codes], -1, column.codes))
    found = _rules_of_sound(column, evidence, bounds)
    return replace(found, reason=found.reason + absurd)


def absurd_bounds(numbers: NDArray[np.float64]) -> dict[str, float]:
    """Return the bounds (`min`, `max`) beyond which a few of (n,) numbers are absurd; none where there are none."""
    known = np.sort(numbers[np.isfinite(numbers)])
    few = max(1, int(MOST_MISFITS * len(known)))
    if len(known) < _LEAST_KNOWN:
        return {}
    found = {}
    with np.errstate(over="ignore"):
        offsets = np.clip(known - known[len(known) // 2], -_FARTHEST, _FARTHEST)
        apart = np.abs(offsets[offsets != 0])
        usual = max(-offsets[few], offsets[-1 - few], apart.min(initial=_FARTHEST))
        for key, sign, tail in (("min", -1, -offsets[few::-1]), ("max", 1, offsets[-1 - few :])):
            is_far = (tail[1:] > _ABSURD * usual) & (tail[1:] > _GAP * np.maximum(tail[:-1], usual))
            if is_far.any():
                first = int(np.argmax(is_far))
                found[key] = float(known[len(known) // 2] + sign * float(f"{_GAP / 2 * max(tail[first], usual):.1g}"))
    return found


def _rules_of_sound(column: ColumnProfile, evidence: Evidence, bounds: dict[str, float]) -> NumberRules:
    readings = {}
    if evidence.is_possible:
        readings["number"] = evidence.as_number(column.row_numbers)
        readings["ranges"] = evidence.as_bins(column.row_numbers, RANGES)
        if column.distinct > RANGES:
            readings["fine_ranges"] = evidence.as_bins(column.row_numbers, _FINE_RANGES)
    spread = "" if column.range is None else f", {_shown(column.range[0])} to {_shown(column.range[1])}"
    if not column.is_integral:
        return _amounts(column, with_auc(f"decimals{spread}", readings), readings, bounds)
    if evidence.is_possible:
        readings["category"] = evidence.as_category(column.codes)
    is_category, why = _reads_as_category(column, readings)
    reason = f"{column.distinct:,} integers{spread}: {why}"
    if readings:
        number, category = _as_number(column, readings).auc, readings["category"].auc
        figures = [f"{category:.3f} as category", f"{number:.3f} as number"]
        reason += f"; AUC {', '.join(figures if is_category else reversed(figures))}"
    if is_category:
        return NumberRules(reason, ({"kind": "categorical"},), readings)
    return _amounts(column, reason, readings, bounds)


def with_auc(reason: str, readings: Mapping[str, Reading]) -> str:
    """Return a reason with the AUC of the best reading."""
    return f"{reason}; AUC {max(r.auc for r in readings.values()):.3f}" if readings else reason


def _as_number(column: ColumnProfile, readings: Mapping[str, Reading]) -> Reading:
    """Return the best reading of a number that keeps its order; fine ranges of few values would be the values
    themselves.
    """
    kinds = ("number", "ranges", "fine_ranges") if column.distinct > _MANY_FOR_RANGES else ("number", "ranges")
    return max((readings[kind] for kind in kinds), key=lambda reading: reading.auc)


def _shown(number: float) -> str:
    return f"{number:,.0f}" if number == int(number) and abs(number) < 1e15 else f"{number:g}"


def _reads_as_category(column: ColumnProfile, readings: Mapping[str, Reading]) -> tuple[bool, str]:
    """Tell whether integers are read as categories, and why: the first of these that holds decides."""
    if column.distinct <= 2:
        return True, "two values"
    known = [word for word in name_words(column.name) if word in _CATEGORY_WORDS | _AMOUNT_WORDS]
    is_amount = bool(known) and known[-1] in _AMOUNT_WORDS and column.distinct > _FEW_KINDS
    if readings:
        number, category = _as_number(column, readings), readings["category"]
        if category.is_better_than(number) and not is_amount:
            return True, "better as category"
        if number.is_better_than(category):
            return False, "better as number"
    if known and (known[-1] in ID_WORDS | _AMOUNT_WORDS or not _falls_from_the_first(column)):
        return known[-1] in _CATEGORY_WORDS, f"'{known[-1]}' in its name"
    if _looks_like_counts(column):
        return False, "small values are the most frequent, as in counts"
    if column.distinct <= min(_FEW_KINDS, column.present / 5):
        return True, "few values"
    if readings and column.distinct <= _MANY_KINDS and readings["category"].is_clear and not number.is_clear:
        return True, "predicts only as category"
    return False, "many values"


def _falls_from_the_first(column: ColumnProfile) -> bool:
    """Return whether 1, 2, 3, 4 and 5 (perhaps 0 before them) are the most frequent numbers in this order, as in
    counts.
    """
    values, counts = np.unique(column.row_numbers[np.isfinite(column.row_numbers)], return_counts=True)
    if len(values) <= 5 or values[0] not in (0, 1) or values[4] != values[0] + 4:
        return False
    return bool((np.diff(counts[:5]) < 0).all() and counts[4] >= counts[5:].max())


def _looks_like_counts(column: ColumnProfile) -> bool:
    """Return whether numbers begin at about 0 without gaps, and are the rarer the larger they are."""
    numbers = column.row_numbers[np.isfinite(column.row_numbers)]
    values, counts = np.unique(numbers, return_counts=True)
    least, most = values[0], values[-1]
    if not -10 <= least <= 1 or values[min(3, len(values) - 1)] - least > 10:
        return False
    if column.distinct > _FEW_COUNTS:
        return bool(np.median(numbers) - least <= 0.25 * (most - least))
    falls = (np.diff(counts[1:]) <= 0).all() and counts[-1] < counts.max() / 2
    return column.distinct > 3 and bool((np.diff(values) == 1).all() and falls)


def _amounts(column: ColumnProfile, reason: str, readings: dict[str, Reading], bounds: dict[str, float]) -> NumberRules:
    """Return a number, with ranges beside it where a line does not follow it, or where rows have no value or a
    sentinel.
    """
    numbers = np.sort(column.row_numbers[np.isfinite(column.row_numbers)])
    sentinels = _sentinels(numbers)
    body = numbers[~np.isin(numbers, sentinels)]
    # Skewed numbers are scaled by their logarithm, or by their rank if they go far below 0. What is fitted sees the
    # same rows as the test for skew does: sentinels and outliers are clipped before.
    low, median, high = np.quantile(body, [0.01, 0.5, 0.99])
    is_skewed = high - median > 10 * max(median - low, 1e-9) or (body[0] >= 0 and high > 20 * max(median, 1e-9))
    steps: list[Any] = ["standardize"]
    scaled = body
    if is_skewed and body[0] > -10:
        offset = 1 - min(0, int(np.floor(body[0])))
        steps, scaled = [{"op": "log", "offset": offset}, "standardize"], np.log(body + offset)
    elif is_skewed:
        steps = ["quantile"]
    # Outliers and sentinels are clipped on either side, unless ranks are taken.
    clip: dict[str, Any] = {}
    if steps != ["quantile"]:
        low, median, high = np.quantile(scaled, [0.005, 0.5, 0.995])
        if scaled[0] < median - _FAR_OUT * max(median - low, 1e-9):
            clip["min"] = _yaml_number(body[np.searchsorted(scaled, low)])
        elif len(sentinels) and sentinels[0] < body[0]:
            clip["min"] = _yaml_number(body[0])
        if scaled[-1] > median + _FAR_OUT * max(high - median, 1e-9):
            clip["max"] = _yaml_number(body[np.searchsorted(scaled, high)])
        elif len(sentinels) and sentinels[-1] > body[-1]:
            clip["max"] = _yaml_number(body[-1])
    if clip:
        steps.insert(0, {"op": "clip", **clip})
        reason += "; outliers are clipped"
    if bounds:
        steps.insert(0, {"op": "clip", **{k: _yaml_number(v) for k, v in bounds.items()}, "outside": "missing"})
        # What is missing is 0, which is the mean of standardized numbers, but the least of ranks.
        steps += [{"op": "fill", "value": 0.5}] if steps[-1] == "quantile" else []
    share = float(np.isin(numbers, sentinels).mean())
    if len(sentinels):
        reason += f"; {', '.join(map(_shown, sentinels))} ({share:.1%} of the values) looks like a code, not an amount"
    # Ranges stand beside the number where they say what it cannot.
    is_fine = "fine_ranges" in readings and readings["fine_ranges"].is_better_than(readings["ranges"])
    quantiles = _FINE_RANGES if is_fine else RANGES
    further, limits = "", dict[str, Any](quantiles=quantiles)
    if share > _SENTINEL_SHARE:
        begins = np.concatenate([np.quantile(body, np.arange(quantiles) / quantiles), sentinels])
        further, limits = "the code has a range of its own", {"boundaries": sorted(set(map(_yaml_number, begins)))}
    if column.missing_share > 0.01:
        further = f"{column.missing_share:.0%} of the rows have no value, which is a range of its own"
    elif not further and readings:
        curve = readings["fine_ranges" if is_fine else "ranges"]
        further = "ranges predict better than a straight line" if curve.is_better_than(readings["number"]) else ""
    if further and bounds:  # beyond the bounds are ranges of their own, too rare to be learned
        begins = np.quantile(body, np.arange(quantiles) / quantiles)
        limits = {"boundaries": sorted({*limits.get("boundaries", map(_yaml_number, begins)),
                                        *map(_yaml_number, bounds.values())})}  # fmt: skip
    rules: tuple[dict[str, Any], ...] = ({"kind": "numeric", "transforms": steps},)
    if further:
        rules += (ranges_rule(column, **limits),)
    return NumberRules(reason, rules, readings, further)


def ranges_rule(column: ColumnProfile, **limits: Any) -> dict[str, Any]:
    """Return a rule for ranges of a number, beside that for the number itself; `limits`: `quantiles` or
    `boundaries`.
    """
    return {"kind": "buckets", "name": f"{column.name.replace('.', '_')}_range", **limits}


def _sentinels(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the numbers of several rows that stand for something else: the one negative number if it is much more
    frequent than the next, and those farther out than all others are wide, such as 9999. `numbers` (n,) and what is
    returned ascend.
    """
    values, counts = np.unique(numbers, return_counts=True)
    found = []
    if len(values) > 3 and values[0] < 0 <= values[1] and counts[0] > _ODD_FREQUENCY * counts[1]:
        found.append(values[0])
        values, counts = values[1:], counts[1:]
    for _ in range(_MOST_SENTINELS):
        if len(values) <= 3:
            break
        for end, rest in ((-1, values[:-1]), (0, values[1:])):
            is_far = abs(values[end] - rest[end]) > max(rest[-1] - rest[0], 1)
            if is_far and counts[end] > 1 and values[end] != 0:
                found.append(values[end])
                values, counts = rest, counts[:-1] if end else counts[1:]
                break
        else:
            break
    return np.sort(np.array(found))


def _yaml_number(number: float) -> int | float:
    return int(number) if number == int(number) and abs(number) < 1e15 else float(f"{number:.9g}")
