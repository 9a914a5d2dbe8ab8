"""Statistics of scored rows: equal to scikit-learn's where it has them, and errors that cover what they say."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from sklearn import metrics as sklearn
from sklearn.calibration import calibration_curve

from rayrec.metrics.estimates import Estimate, wilson
from rayrec.metrics.scored_rows import (
    ScoredRows,
    ThresholdCurves,
    by_score,
    expected_calibration_error,
    rate_interval,
    reliability,
    score_histogram,
    slices,
    threshold_curves,
)

Arrays = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]


def draw(rows: int, seed: int = 0, *, decimals: int | None = None) -> Arrays:
    """Scores, labels and weights; rounded scores have ties."""
    rng = np.random.default_rng(seed)
    score = 1 / (1 + np.exp(-rng.normal(-1.5, 1.2, rows)))
    if decimals is not None:
        score = np.round(score, decimals)
    label = (rng.random(rows) < score**1.2).astype(np.float32)
    return score.astype(np.float32), label, rng.integers(0, 4, rows).astype(np.float32) / 2


def scored(score: NDArray[Any], *columns: NDArray[Any] | None) -> ScoredRows:
    """Rows of which the probabilities are given."""
    probability = np.clip(score.astype(np.float64), 1e-9, 1 - 1e-9)
    return ScoredRows.of(np.log(probability) - np.log1p(-probability), *columns)


def measure(rows: ScoredRows) -> dict[str, Estimate | None]:
    return rows.metrics.estimates()


CASES = [
    pytest.param(decimals, weighted, id=f"{'ties' if decimals else 'distinct'}{', weights' if weighted else ''}")
    for decimals in (None, 1)
    for weighted in (False, True)
]


@pytest.mark.parametrize(("decimals", "weighted"), CASES)
def test_metrics_equal_scikit_learn(decimals: int | None, weighted: bool) -> None:
    score, label, weight = draw(3_000, decimals=decimals)
    weights = weight if weighted else np.ones_like(weight)
    found = measure(scored(score, label, weights if weighted else None))
    probability = np.clip(score.astype(np.float64), 1e-9, 1 - 1e-9)
    loss = sklearn.log_loss(label, np.stack([1 - probability, probability], axis=1), sample_weight=weights)
    rate = np.average(label, weights=weights)
    expected = {
        "auc": sklearn.roc_auc_score(label, score, sample_weight=weights),
        "log_loss": loss,
        "normalized_entropy": loss / sklearn.log_loss(label, np.full(len(label), rate), sample_weight=weights),
        "calibration": (weights * score).sum() / (weights * label).sum(),
    }
    assert {name: value and value.value for name, value in found.items()} == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("label", "undefined"),
    [
        (np.zeros(5), {"auc", "normalized_entropy", "calibration"}),
        (np.ones(5), {"auc", "normalized_entropy"}),
        (np.empty(0), {"auc", "normalized_entropy", "calibration", "log_loss"}),
    ],
    ids=["negatives", "positives", "no rows"],
)
def test_undefined_metrics_are_none(label: NDArray[np.float64], undefined: set[str]) -> None:
    found = measure(scored(np.linspace(0.1, 0.9, 5)[: len(label)], label))
    assert {name for name, value in found.items() if value is None} == undefined


def delong_error(score: NDArray[Any], label: NDArray[Any]) -> float:
    """The standard error of the AUC as DeLong et al. 1988 give it, by comparing all pairs."""
    positive, negative = score[label == 1], score[label == 0]
    wins = (positive[:, None] > negative[None]) + 0.5 * (positive[:, None] == negative[None])
    return float(np.sqrt(wins.mean(axis=1).var(ddof=1) / len(positive) + wins.mean(axis=0).var(ddof=1) / len(negative)))


@pytest.mark.parametrize("decimals", [None, 1])
def test_the_error_of_auc_is_delongs(decimals: int | None) -> None:
    score, label, _ = draw(2_000, decimals=decimals)
    found = measure(scored(score, label))["auc"]
    assert found is not None and found.error == pytest.approx(delong_error(score, label), rel=2e-3)


@pytest.mark.parametrize("grouped", [False, True], ids=["rows", "groups"])
def test_errors_are_those_of_repeated_samples(grouped: bool) -> None:
    """The deviation over many samples from one truth, whose rows of a group have most of their luck in common."""

    groups = np.repeat(np.arange(100), 8)

    def sample(seed: int) -> ScoredRows:
        rng = np.random.default_rng(seed)
        own, luck = (rng.normal(0, 1, 100)[groups] if grouped else rng.normal(0, 1, 800) for _ in range(2))
        label = rng.random(800) < 1 / (1 + np.exp(1 - own - 1.5 * luck))
        return scored(1 / (1 + np.exp(1 - own)), label, None, groups if grouped else None)

    samples = [measure(sample(seed)) for seed in range(300)]
    for name in samples[0]:
        known = [one for found in samples if (one := found[name]) is not None]
        assert np.mean([one.error for one in known]) == pytest.approx(np.std([one.value for one in known]), rel=0.15)


def points_of(curves: ThresholdCurves) -> dict[str, tuple[NDArray[Any], NDArray[Any]]]:
    return {name: (getattr(curves, name).x, getattr(curves, name).y) for name in ("roc", "precision_recall", "lift")}


@pytest.mark.parametrize(("decimals", "weighted"), CASES)
def test_curves_are_scikit_learns_at_some_thresholds(decimals: int | None, weighted: bool) -> None:
    score, label, weight = draw(3_000, decimals=decimals)
    weights = weight if weighted else np.ones_like(weight)
    curves = threshold_curves(scored(score, label, weights if weighted else None))
    points = points_of(curves)
    fallout, recall, _ = sklearn.roc_curve(label, score, sample_weight=weights, drop_intermediate=False)
    precision, recall_of, _ = sklearn.precision_recall_curve(label, score, sample_weight=weights)
    for name, x, y in (("roc", fallout, recall), ("precision_recall", recall_of, precision)):
        known = np.stack([x, y], axis=1)
        for point in np.stack(points[name], axis=1):
            assert np.abs(known - point).sum(axis=1).min() < 1e-5, name
    assert (points["roc"][0][-1], points["roc"][1][-1]) == (1.0, 1.0)
    assert curves.average_precision == pytest.approx(
        sklearn.average_precision_score(label, score, sample_weight=weights), rel=1e-6
    )
    # The area below the points is the AUC, as far as points were left out.
    auc = sklearn.roc_auc_score(label, score, sample_weight=weights)
    area = np.trapezoid([0.0, *points["roc"][1]], [0.0, *points["roc"][0]])
    assert area == pytest.approx(auc, abs=1e-12 if decimals else 1e-3)
    for share, lift in np.stack(points["lift"], axis=1)[:: len(points["lift"][0]) // 5]:
        order = np.argsort(-score, kind="stable")
        above = np.cumsum(weights[order]) <= share * weights.sum() * (1 + 1e-6)
        rate = np.average(label[order][above], weights=weights[order][above])
        assert lift == pytest.approx(rate / np.average(label, weights=weights), rel=1e-4)


def test_bands_hold_the_curve_of_the_truth() -> None:
    """About 95 of 100 heights of the ROC curve of all rows lie in the band of a sample's."""
    score, label, _ = draw(200_000, seed=5)
    whole = threshold_curves(scored(score, label))
    held = []
    for start in range(0, 40_000, 2_000):
        part = slice(start, start + 2_000)
        curve = threshold_curves(scored(score[part], label[part])).roc
        inner = (curve.x > 0.02) & (curve.x < 0.98)
        truth = np.interp(curve.x, whole.roc.x, whole.roc.y)
        held.append(((curve.low <= truth) & (truth <= curve.high))[inner].mean())
        assert ((curve.low <= curve.y) & (curve.y <= curve.high))[inner].mean() > 0.98
    assert 0.85 < np.mean(held) < 0.99


@pytest.mark.parametrize("decimals", [None, 2])
def test_reliability_equals_scikit_learn(decimals: int | None) -> None:
    score, label, _ = draw(5_000, decimals=decimals)
    found = reliability(scored(score, label))
    rates, scores = calibration_curve(label, score.astype(np.float64), n_bins=20, strategy="quantile")
    assert sum(one.rows for one in found) == 5_000
    if decimals is None:
        assert [one.rate for one in found] == pytest.approx(rates)
        assert [one.score for one in found] == pytest.approx(scores)
        distance = np.average(np.abs(rates - scores), weights=[one.rows for one in found])
        assert expected_calibration_error(found) == pytest.approx(distance)
    for one in found:
        interval = stats.binomtest(round(one.rate * one.rows), one.rows).proportion_ci(method="wilson")
        assert (one.low, one.high) == pytest.approx((interval.low, interval.high), abs=1e-6)


def test_the_interval_of_a_rate_is_wider_for_groups() -> None:
    """Groups whose rows all have one label are so many rows, not eight times as many."""
    label = np.repeat(np.random.default_rng(0).random(200) < 0.3, 8).astype(float)
    rows = scored(np.full(1_600, 0.3), label, None, np.repeat(np.arange(200), 8))
    assert rate_interval(rows) == pytest.approx(wilson(rows.metrics.label_rate.value, 200), abs=1e-3)


def test_the_histogram_has_every_row_once() -> None:
    score, label, weight = draw(3_000)
    edges, negatives, positives = score_histogram(scored(score, label, weight))
    kept = weight > 0
    assert (len(edges), negatives.sum(), positives.sum()) == (51, pytest.approx(1), pytest.approx(1))
    inside = kept & (label == 1) & (score < edges[10])
    assert positives[:10].sum() == pytest.approx(weight[inside].sum() / weight[kept & (label == 1)].sum())


@pytest.mark.parametrize("grouped", [False, True])
def test_slices_are_metrics_of_their_rows(grouped: bool) -> None:
    score, label, weight = draw(4_000)
    groups = np.arange(4_000) // 5 if grouped else None
    rows = scored(score, label, weight, groups)
    place = np.random.default_rng(1).integers(0, 5, 4_000)
    place[place == 3] = 4
    found = slices(rows, place, ["a", "b", "c", "nothing", "e"])
    assert [one.value for one in found] == ["a", "b", "c", "e"]
    assert sum(one.rows for one in found) == len(rows) == (weight > 0).sum()
    for number, one in zip((0, 1, 2, 4), found, strict=True):
        own = place == number
        expected = measure(scored(score[own], label[own], weight[own], None if groups is None else groups[own]))
        for name, estimate in expected.items():
            own_estimate = one.metrics[name]
            assert estimate is not None and own_estimate is not None
            assert vars(own_estimate) == pytest.approx(vars(estimate))
        assert one.positives == label[own & (weight > 0)].sum()


def test_tenths_of_the_score_follow_each_other() -> None:
    score, label, weight = draw(4_000)
    rows = scored(score, label, weight)
    place, names = by_score(rows)
    found = slices(rows, place, names)
    assert [one.rows for one in found] == pytest.approx([len(rows) / 10] * 10, abs=1)
    assert found[0].value.startswith("0 to") and found[-1].value.endswith("to 1")
    assert [one.positives for one in found] == sorted(one.positives for one in found)


def test_few_rows_are_not_the_worst() -> None:
    """A slice that is worse for sure comes before one that chance may have made bad; one of two labels of few rows,
    whose error would be wrong, is left out."""
    rng = np.random.default_rng(2)
    score = rng.random(6_000)
    place = np.repeat([0, 1, 2, 3], [3_000, 2_900, 80, 20])
    label = (rng.random(6_000) < np.where(place == 1, 0.5, score)).astype(float)
    label[place == 3] = 0
    good, bad, few, none = slices(scored(score, label), place, ["good", "bad", "few", "none"])
    order = sorted((good, bad, few), key=lambda one: -(one.badness("auc") or 0))
    assert order[0] is bad
    assert none.badness("auc") is None and none.badness("calibration") is None
    over, under = (
        slices(scored(np.full(9_000, p), np.tile([0.0, 0.0, 1.0], 3_000)), np.zeros(9_000, int), [""])[0]
        for p in (0.9, 0.34)
    )
    worse, better = (one.badness("calibration") for one in (over, under))
    assert worse is not None and better is not None and worse > better


def test_units_count_as_often_as_poisson_says() -> None:
    rows = ScoredRows.of(np.arange(20_000), np.zeros(20_000))
    drawn = np.concatenate(list(rows.resamples(10, seed=3))).astype(int)
    shares = np.bincount(drawn, minlength=6)[:6] / len(drawn)
    assert shares == pytest.approx(stats.poisson(1).pmf(np.arange(6)), abs=5e-3)
    other = ScoredRows.of(-np.arange(20_000), np.ones(20_000))
    one, two = next(rows.resamples(10, seed=3)), next(other.resamples(10, seed=3))
    assert np.array_equal(one[np.argsort(rows.row)], two[np.argsort(other.row)])
