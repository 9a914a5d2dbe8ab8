"""The metrics of a whole pass from the records that were made on its way."""

import json

import numpy as np
import pytest
import torch

from rayrec.metrics.binary import BinaryMetrics, progressive_metrics


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
