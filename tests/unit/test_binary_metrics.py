"""Metrics against scikit-learn, the histogram within its bound, what is undefined, and metrics of a whole pass."""

import json
import math
from unittest import TestCase

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss, roc_auc_score

from rayrec.common.errors import UserError
from rayrec.config.evaluate import EvaluateConfig
from rayrec.metrics.binary import BinaryMetrics, progressive_metrics


def measure(logits, labels, weights=None, *, exact_auc_rows=10**6, auc_bins=2**20, batch=7) -> dict[str, float | None]:
    metrics = BinaryMetrics(exact_auc_rows, auc_bins)
    weights = np.ones(len(logits)) if weights is None else weights
    columns = [torch.tensor(np.asarray(c), dtype=torch.float32) for c in (logits, labels, weights)]
    for start in range(0, len(logits), batch):
        metrics.update(*(c[start : start + batch] for c in columns))
    return metrics.compute()


def clicks(rows: int, seed: int = 0, *, tied: bool = False) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    logits = rng.normal(-1, 1.5, rows).astype(np.float32)
    if tied:
        logits = np.round(logits * 2) / 2
    return logits, (rng.random(rows) < 1 / (1 + np.exp(-logits))).astype(np.float32)


WEIGHTS = {
    "none": lambda rng, rows: np.ones(rows),
    "padding": lambda rng, rows: (rng.random(rows) < 0.7).astype(np.float32),
    "general": lambda rng, rows: rng.choice([0.0, 0.25, 1.0, 3.5], rows),
}


@pytest.mark.parametrize("weighting", WEIGHTS.values(), ids=WEIGHTS.keys())
@pytest.mark.parametrize("tied", [False, True], ids=["distinct", "tied"])
def test_metrics_equal_scikit_learn(weighting, tied):
    logits, labels = clicks(5_000, tied=tied)
    weights = weighting(np.random.default_rng(1), len(logits)).astype(np.float64)
    probabilities = 1 / (1 + np.exp(-logits.astype(np.float64)))
    found = measure(logits, labels, weights, batch=700)
    assert found["auc"] == pytest.approx(roc_auc_score(labels, logits, sample_weight=weights), abs=1e-12)
    loss = log_loss(labels, probabilities, sample_weight=weights)
    assert found["log_loss"] == pytest.approx(loss, rel=1e-12)
    rate = np.average(labels, weights=weights)
    assert found["normalized_entropy"] == pytest.approx(
        loss / -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate)), rel=1e-12
    )
    assert found["calibration"] == pytest.approx((weights * probabilities).sum() / (weights * labels).sum(), rel=1e-12)
    assert (found["rows"], found["positives"]) == ((weights > 0).sum(), labels[weights > 0].sum())
    assert "auc_error_bound" not in found


rows = st.lists(
    st.tuples(
        st.one_of(st.floats(-60, 60, width=32), st.integers(-3, 3).map(float)),
        st.integers(0, 1),
        st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    ),
    min_size=1,
    max_size=40,
)


@given(rows, st.integers(3, 20))
@settings(max_examples=60)
def test_auc_is_the_share_of_pairs_in_order(examples, batch):
    logits, labels, weights = (np.array(column) for column in zip(*examples, strict=True))
    logits = logits.astype(np.float32)
    positive, negative = labels == 1, labels == 0
    order = np.sign(logits[positive][:, None] - logits[negative][None, :]) / 2 + 0.5
    pairs = weights[positive][:, None] * weights[negative][None, :]
    found = measure(logits, labels, weights, batch=batch)
    if pairs.sum() == 0:
        assert found["auc"] is None
    else:
        assert found["auc"] == pytest.approx((order * pairs).sum() / pairs.sum(), abs=1e-12)


@given(rows, st.integers(0, 45), st.integers(2, 50))
@settings(max_examples=60)
def test_the_histogram_is_within_its_bound_wherever_the_limit_is_crossed(examples, limit, bins):
    logits, labels, weights = (np.array(column) for column in zip(*examples, strict=True))
    exact = measure(logits, labels, weights)
    found = measure(logits, labels, weights, exact_auc_rows=limit, auc_bins=bins)
    crossed = exact["rows"] > limit
    assert ("auc_error_bound" in found) == crossed
    if exact["auc"] is not None:
        bound = found.get("auc_error_bound", 0.0)
        assert abs(found["auc"] - exact["auc"]) <= bound + 1e-12
        # Crossing it in the middle changes nothing against a histogram from the first row on.
        if crossed:
            assert found == measure(logits, labels, weights, exact_auc_rows=0, auc_bins=bins)


def test_the_default_histogram_is_precise():
    logits, labels = clicks(200_000)
    found = measure(logits, labels, exact_auc_rows=1_000, auc_bins=EvaluateConfig().auc_bins, batch=60_000)
    assert 0 < found["auc_error_bound"] < 1e-5
    assert abs(found["auc"] - roc_auc_score(labels, logits)) <= found["auc_error_bound"]


def test_extreme_scores_have_a_finite_loss():
    found = measure([200.0, -200.0], [0, 1])
    assert found["log_loss"] == pytest.approx(200.0)
    assert found["auc"] == 0.0


@pytest.mark.parametrize(
    ("labels", "weights", "undefined"),
    [
        ([1, 1], [1, 1], {"auc", "normalized_entropy"}),
        ([0, 0], [1, 1], {"auc", "normalized_entropy", "calibration"}),
        ([0, 1], [1, 0], {"auc", "normalized_entropy", "calibration"}),
        ([0, 1], [0, 0], {"auc", "normalized_entropy", "calibration", "log_loss"}),
    ],
)
@pytest.mark.parametrize("exact_auc_rows", [0, 100])
def test_what_is_undefined_is_none_and_said(labels, weights, undefined, exact_auc_rows):
    with TestCase().assertLogs("rayrec") as logs:
        found = measure([0.5, -0.5], labels, weights, exact_auc_rows=exact_auc_rows)
    assert {name for name, value in found.items() if value is None} == undefined
    assert all(name in str(logs.output) for name in undefined)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_scores_of_a_diverged_model_are_refused(bad):
    with pytest.raises(UserError, match="1 of 3 scores are infinite or NaN"):
        measure([0.1, bad, bad, 0.3], [0, 1, 1, 1], [1, 1, 0, 1])


def test_padding_changes_nothing():
    logits, labels = clicks(1_000)
    columns = np.append(logits, [99.0, math.nan]), np.append(labels, [0, 1]), np.append(np.ones(1_000), [0, 0])
    assert measure(*columns, batch=100) == measure(logits, labels, batch=100)


# --- metrics of a pass from the records on its way


def _record(logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> dict[str, object]:
    binary = BinaryMetrics(exact_auc_rows=1_000, auc_bins=100)
    binary.update(logits, labels, weights)
    record = {**binary.compute(), "sums": binary.sums_by_name}
    return json.loads(json.dumps(record))


@pytest.mark.parametrize("weighted", [False, True])
def test_sums_are_those_of_all_rows(weighted: bool) -> None:
    torch.manual_seed(1)
    logits, labels = torch.randn(300), (torch.rand(300) < 0.3).float()
    weights = torch.randint(0, 4, (300,)).float() if weighted else torch.ones(300)
    parts = [slice(0, 100), slice(100, 130), slice(130, 300)]
    records = [_record(logits[part], labels[part], weights[part]) for part in parts]
    whole = _record(logits, labels, weights)
    found = progressive_metrics(records)
    for name in ("log_loss", "normalized_entropy", "calibration", "rows", "positives"):
        assert found[name] == pytest.approx(whole[name], rel=1e-12), name
    expected = np.average([r["auc"] for r in records], weights=[r["rows"] for r in records])
    assert found["auc"] == pytest.approx(expected)
    assert found.keys() == whole.keys() - {"sums"}


def test_records_without_an_auc_count_in_all_else() -> None:
    ones, mixed = torch.ones(2), torch.tensor([0.0, 1.0])
    records = [_record(torch.zeros(2), ones, ones), _record(mixed, mixed, ones)]
    found = progressive_metrics(records)
    assert (found["auc"], found["rows"], found["positives"]) == (1.0, 4, 3)
    assert progressive_metrics(records[:1])["auc"] is None
    assert progressive_metrics([])["log_loss"] is None
