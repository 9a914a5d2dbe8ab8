"""Progressive evaluation: a model is measured on each row before it is trained on it."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from rayrec.evaluation.binary import metrics_of_sums


def progressive_metrics(records: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the metrics of all rows of progressive records: each has `BinaryMetrics.compute`, and `sums_by_name` as
    `sums`.

    `log_loss`, `normalized_entropy` and `calibration` are those of all rows together. `auc` is the mean of the records'
    AUCs, weighted by their rows: scores of a model that has moved on meanwhile are not ranked against each other. It
    leaves out records whose AUC is undefined.
    """
    sums: dict[str, float] = defaultdict(float)
    for record in records:
        for name, value in record["sums"].items():
            sums[name] += value
    ranked = [(record["auc"], record["rows"]) for record in records if record["auc"] is not None]
    rows = sum(count for _, count in ranked)
    return {"auc": sum(auc * count for auc, count in ranked) / rows if rows else None, **metrics_of_sums(sums)}
