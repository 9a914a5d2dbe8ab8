"""What a model's scores lose when its tables are stored in a smaller precision, measured at export."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rayrec.config.evaluate import EvaluateConfig
from rayrec.evaluation.binary import BinaryMetrics
from rayrec.inference.predictor import Predictor
from rayrec.ingest.dataset import Dataset
from rayrec.ingest.reader import first_rows

MOST_ROWS = 1_000_000
"""Most rows that are scored: both precisions score the same rows, so that their difference is far more exact."""


class LabelledScores:
    """Scores of the first rows of a split and what they reach."""

    def __init__(self, predictor: Predictor, dataset: Dataset, split: str) -> None:
        """Score up to `MOST_ROWS` rows. Raises UserError if the split has no labels."""
        dataset.labelled_split(split)
        label = dataset.schema.label
        names = [feature.name for feature in predictor.schema.features]
        metrics = BinaryMetrics.from_config(EvaluateConfig())
        parts: list[NDArray[np.float32]] = []
        for rows in first_rows(dataset, split, [*names, label], MOST_ROWS):
            scores = predictor.predict_encoded(rows.select(names))
            # A probability that float32 rounds to 0 or 1 has no finite logit.
            logits = torch.logit(torch.from_numpy(scores.astype(np.float64)), eps=1e-9)
            labels = torch.from_numpy(rows.column(label).to_numpy().astype(np.float32))
            metrics.update(logits, labels, torch.ones(len(scores)))
            parts.append(scores)
        self.scores = np.concatenate(parts)
        """(n,) probabilities."""
        found = metrics.compute()
        self.metrics = {name: found[name] for name in ("auc", "log_loss")}
        """None if all labels are the same."""


def compare(before: LabelledScores, after: LabelledScores) -> dict[str, Any]:
    """How the scores of the same rows and their metrics changed: rows, metrics before and after, differences."""
    difference = np.abs(after.scores.astype(np.float64) - before.scores)
    change = {
        f"{name}_change": None if value is None or after.metrics[name] is None else after.metrics[name] - value  # type: ignore[operator]
        for name, value in before.metrics.items()
    }
    return {
        "rows": len(before.scores),
        "fp32": before.metrics,
        "stored": after.metrics,
        **change,
        "mean_score_difference": float(difference.mean()),
        "max_score_difference": float(difference.max()),
    }
