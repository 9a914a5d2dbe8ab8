"""On generated clicks, importance orders the features as the known truth does."""

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

import rayrec
from rayrec.sources.criteo.click_model import ClickModel, RawValues
from rayrec.sources.criteo.config import CATEGORICAL, NUMERIC
from rayrec.sources.criteo.generator import CHUNK_ROWS, CriteoGenerator

SEED, ROWS = 7, 250_000


def true_importance(seed: int) -> dict[str, NDArray[np.float64]]:
    """How much worse the true probabilities become on average, by feature: AUC and log loss over all possible labels.

    They say as much of the rows as can be said; here they are told the value of another row for one column.
    """
    generator = CriteoGenerator(seed)
    (chunk,) = generator.chunks(CHUNK_ROWS)
    model, truth = generator.click_model, chunk.probability
    before = expected_metrics(truth, truth)
    order = np.random.default_rng(seed).permutation(CHUNK_ROWS)
    return {
        name: expected_metrics(truth, with_permuted(model, chunk.values, place, order)) - before
        for place, name in enumerate([*NUMERIC, *CATEGORICAL])
    }


def with_permuted(model: ClickModel, values: RawValues, place: int, order: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the probabilities of rows of which one column's values are permuted, with all that is told of them."""
    changed = {}
    for field in fields(values):
        columns = getattr(values, field.name)
        own = place if columns.shape[1] == len(NUMERIC) else place - len(NUMERIC)
        if 0 <= own < columns.shape[1] and (columns.shape[1] == len(NUMERIC)) == (place < len(NUMERIC)):
            columns = columns.copy()
            columns[:, own] = columns[order, own]
            changed[field.name] = columns
    return model.probability(replace(values, **changed))


def expected_metrics(truth: NDArray[np.float64], told: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 - AUC and log loss of probabilities `told` where label 1 has the probability `truth`."""
    labels = np.repeat([1, 0], len(truth))
    auc = roc_auc_score(labels, np.tile(told, 2), sample_weight=np.concatenate([truth, 1.0 - truth]))
    return np.array([1.0 - auc, -(truth * np.log(told) + (1.0 - truth) * np.log1p(-told)).mean()])


def rank_correlation(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Spearman's."""
    return float(np.corrcoef(first.argsort().argsort(), second.argsort().argsort())[0, 1])


@pytest.mark.minutes
def test_importance_orders_features_as_the_truth(tmp_path: Path) -> None:
    rayrec.generate("criteo", ROWS, tmp_path / "raw", seed=SEED, progress=False)
    rayrec.preprocess("dlrm-criteo-debug", tmp_path / "raw", tmp_path / "data", progress=False)
    rayrec.train("dlrm-criteo-debug", tmp_path / "data", tmp_path / "run", workers=1, progress=False)
    rayrec.explain(tmp_path / "run", tmp_path / "data", tmp_path / "explained", feature=["I2"], progress=False)
    figures = json.loads((tmp_path / "explained" / "report.json").read_text())
    found = {one["name"]: one["worse_by"] for one in figures["importance"]}
    truth = true_importance(SEED)
    assert found.keys() == truth.keys()
    for column, metric in enumerate(("auc", "log_loss")):
        measured = np.array([found[name][metric]["value"] for name in truth])
        expected = np.array([change[column] for change in truth.values()])
        assert rank_correlation(measured, expected) >= 0.9, metric
