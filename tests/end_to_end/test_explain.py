"""On generated clicks, importance orders the features as the known truth does."""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

import rayrec
from rayrec.sources.criteo.generator import criteo_rows
from rayrec.sources.synthetic import CHUNK_ROWS

SEED, ROWS = 7, 250_000


def true_importance(seed: int) -> dict[str, NDArray[np.float64]]:
    """How much worse the true probabilities become on average, by feature: AUC and log loss over all possible labels.

    They say as much of the rows as can be said; here they are told the value of another row for one column.
    """
    source = criteo_rows(seed)
    drawn = source.draw(0, np.arange(CHUNK_ROWS))
    truth = source.probability(drawn)
    before = expected_metrics(truth, truth)
    order = np.random.default_rng(seed).permutation(CHUNK_ROWS)
    changes = {}
    for place, column in enumerate(source.columns):
        term, trait = drawn[place].term[order], drawn[place].trait
        other = drawn[place]._replace(term=term, trait=None if trait is None else trait[order])
        told = source.probability([*drawn[:place], other, *drawn[place + 1 :]])
        changes[column.name] = expected_metrics(truth, told) - before
    return changes


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
