"""Exact metrics of a binary classifier over any number of rows, in bounded memory.

Sums are float64, so the metrics do not depend on how rows were dealt to batches and ranks, beyond float64 rounding.
"""

import logging
from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from rayrec.common.errors import UserError
from rayrec.config.evaluate import EvaluateConfig
from rayrec.evaluation.auc import ScoreHistogram, Scores, exact_auc

_log = logging.getLogger(__name__)

_SUMS = ("rows", "positives", "weight", "positive_weight", "loss", "probability", "not_finite")


class BinaryMetrics:
    """Accumulates rows; `rayrec.evaluation.distributed` merges the accumulators of several ranks.

    Scores are kept for an exact AUC up to `exact_auc_rows`; beyond, they move into a histogram of `auc_bins` bins.
    """

    def __init__(self, exact_auc_rows: int, auc_bins: int) -> None:
        self.exact_auc_rows = exact_auc_rows
        self.auc_bins = auc_bins
        self.sums: NDArray[np.float64] = np.zeros(len(_SUMS))
        self.positives, self.negatives = Scores(), Scores()
        self.histogram: ScoreHistogram | None = None

    @classmethod
    def from_config(cls, config: EvaluateConfig) -> "BinaryMetrics":
        return cls(config.exact_auc_rows, config.auc_bins)

    @property
    def stored_rows(self) -> int:
        """Rows whose scores are kept."""
        return self.positives.rows + self.negatives.rows

    def update(self, logits: Tensor, labels: Tensor, weights: Tensor) -> None:
        """Add rows: (B,) logits, labels 0 or 1, weights >= 0, on any device. Rows of weight 0 count nowhere."""
        logits, labels, weights = (t.detach().float().reshape(-1) for t in (logits, labels, weights))
        counted = weights > 0
        finite = torch.isfinite(logits)
        kept = counted & finite
        logits, labels, weights = logits[kept], labels[kept], weights[kept]
        scores, targets, by = logits.double(), labels.double(), weights.double()
        losses = F.binary_cross_entropy_with_logits(scores, targets, by, reduction="sum")
        sums = [torch.ones_like(by).sum(), targets.sum(), by.sum(), by @ targets, losses, by @ scores.sigmoid()]
        self.sums += torch.stack([*sums, (counted & ~finite).double().sum()]).cpu().numpy()

        positive = labels > 0.5
        for scores_of_class, of_class in ((self.positives, positive), (self.negatives, ~positive)):
            scores_of_class.add(logits[of_class].cpu().numpy(), weights[of_class].cpu().numpy())
        if self.histogram is not None or self.stored_rows > self.exact_auc_rows:
            self.use_histogram()

    def use_histogram(self) -> None:
        """Move the kept scores into the histogram, and all later ones."""
        self.histogram = self.histogram or ScoreHistogram(self.auc_bins)
        self.histogram.add(self.positives, positive=True)
        self.histogram.add(self.negatives, positive=False)
        self.positives, self.negatives = Scores(), Scores()

    @property
    def sums_by_name(self) -> dict[str, float]:
        """Sums that every metric but the AUC is made of: see `metrics_of_sums`."""
        return dict(zip(_SUMS, self.sums.tolist(), strict=True))

    def compute(self) -> dict[str, float | None]:
        """Return the metrics of all rows so far.

        - `auc`: area under the ROC curve; if it comes from the histogram, `auc_error_bound` is the largest possible
          error (the key is absent if it is exact).
        - `log_loss`: mean of -ln p(label), natural logarithm.
        - `normalized_entropy`: log loss over the entropy of the base rate (He et al. 2014, "Practical lessons from
          predicting clicks on ads at Facebook"): below 1 is better than always predicting the base rate.
        - `calibration`: sum of probabilities over sum of labels.
        - `rows`, `positives`: counted without weights.

        Undefined metrics are None (JSON has no NaN), with a warning: `auc` and `normalized_entropy` if all labels are
        the same, `calibration` without positives, all without rows. Raises UserError if a logit of a row that counts
        is infinite or NaN.
        """
        sums = self.sums_by_name
        if sums["not_finite"]:
            raise UserError(
                f"evaluation: {sums['not_finite']:.0f} of {sums['rows'] + sums['not_finite']:.0f} scores are infinite "
                "or NaN: the model has diverged; lower the learning rates (train.embedding_optimizer.lr, "
                "train.dense_optimizer.lr)"
            )
        auc = self.histogram.auc() if self.histogram else exact_auc(self.positives, self.negatives)
        metrics: dict[str, float | None] = {"auc": auc.value, **metrics_of_sums(sums)}
        if self.histogram:
            metrics["auc_error_bound"] = auc.error_bound
        undefined = [name for name, value in metrics.items() if value is None]
        if undefined:
            _log.warning(
                "%.0f rows, %.0f positive: %s undefined", sums["rows"], sums["positives"], ", ".join(undefined)
            )
        return metrics


def metrics_of_sums(sums: Mapping[str, float]) -> dict[str, float | None]:
    """Return the metrics of `BinaryMetrics.compute` but the AUC, from `BinaryMetrics.sums_by_name`; None if
    undefined.
    """
    weight, positive_weight = sums["weight"], sums["positive_weight"]
    entropy = _entropy(positive_weight / weight) if weight else 0.0
    return {
        "log_loss": sums["loss"] / weight if weight else None,
        "normalized_entropy": sums["loss"] / weight / entropy if entropy else None,
        "calibration": sums["probability"] / positive_weight if positive_weight else None,
        "rows": sums["rows"],
        "positives": sums["positives"],
    }


def _entropy(rate: float) -> float:
    """Return the entropy in nats of a coin that falls on 1 at this rate."""
    return 0.0 if rate in (0.0, 1.0) else float(-rate * np.log(rate) - (1 - rate) * np.log1p(-rate))
