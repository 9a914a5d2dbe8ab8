"""Exact metrics of a binary classifier over any number of rows, in bounded memory, with their standard errors.

Sums are float64, so the metrics do not depend on how rows were cut into batches and ranks, beyond float64 rounding.
Rank 0 takes in the accumulators of the other ranks, and all get the result.
"""

import logging
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from rayrec.common.errors import UserError
from rayrec.config.evaluate import EvaluateConfig
from rayrec.metrics.auc import ScoreHistogram, ScoresOfClass, auc_estimate, auc_of_rows
from rayrec.metrics.estimates import Estimate, MetricValues, SumsOfRows
from rayrec.metrics.next_items import NextItemMetrics
from rayrec.metrics.ranking import RankingMetrics

_log = logging.getLogger(__name__)


class BinaryMetrics:
    """Accumulator of rows; `add` and `rayrec.metrics.binary` merge those of several processes.

    Scores are kept for an exact AUC up to `exact_auc_rows`; beyond, they move into a histogram of `auc_bins` bins.
    """

    def __init__(self, exact_auc_rows: int, auc_bins: int) -> None:
        self._exact_auc_rows = exact_auc_rows
        self._auc_bins = auc_bins
        self._counts: NDArray[np.int64] = np.zeros(3, np.int64)
        """Rows, positives, and rows whose logit is infinite or NaN."""
        self.sums = SumsOfRows(("weight", "positive_weight", "loss", "probability"))
        self._positives, self._negatives = ScoresOfClass(), ScoresOfClass()
        self._histogram: ScoreHistogram | None = None

    @classmethod
    def from_config(cls, config: EvaluateConfig) -> "BinaryMetrics":
        return cls(config.exact_auc_rows, config.auc_bins)

    def update(self, logits: Tensor, labels: Tensor, weights: Tensor, units: Tensor | None = None) -> None:
        """Add rows: (B,) logits, labels 0 or 1, weights >= 0, on any device. Rows of weight 0 count nowhere.

        `units`: (B,) numbers, from 0, of the units that were drawn together; all rows of a unit must be in one call.
        """
        logits, labels, weights = (t.detach().float().reshape(-1) for t in (logits, labels, weights))
        # Scores that are no numbers are counted, for `compute` to refuse, and left out of the sums.
        counted = weights > 0
        finite = torch.isfinite(logits)
        kept = counted & finite
        logits, labels, weights = logits[kept], labels[kept], weights[kept]
        units = None if units is None else units[kept]
        # Sums, of which all metrics but the AUC are made; in float64, on the device.
        scores, targets, by = logits.double(), labels.double(), weights.double()
        columns = [torch.ones_like(by), targets, log_losses(scores, targets), scores.sigmoid()]
        self.sums.update(by * torch.stack(columns), units)
        positive = labels > 0.5
        counts = torch.stack([kept.sum(), positive.sum(), (counted & ~finite).sum()])
        self._counts += counts.cpu().numpy()
        # The scores themselves, by class, for the AUC.
        for of_class, rows in ((self._positives, positive), (self._negatives, ~positive)):
            own_units = None if units is None else units[rows].cpu().numpy()
            of_class.add(logits[rows].cpu().numpy(), weights[rows].cpu().numpy(), own_units)
        self._bound_memory()

    def add(self, other: "BinaryMetrics") -> None:
        """Add the rows of another one, which is used up."""
        self._counts += other._counts
        self.sums.add(other.sums)
        self._positives.extend(other._positives)
        self._negatives.extend(other._negatives)
        if other._histogram is not None:
            self.use_histogram().positives += other._histogram.positives
            self.use_histogram().negatives += other._histogram.negatives
        self._bound_memory()

    @property
    def stored_rows(self) -> float:
        """Rows whose scores are kept; infinite where a histogram has taken their place."""
        return math.inf if self._histogram is not None else self._positives.rows + self._negatives.rows

    def use_histogram(self) -> ScoreHistogram:
        """Move the kept scores into the histogram, and all later ones."""
        self._histogram = self._histogram or ScoreHistogram(self._auc_bins)
        self._histogram.add(self._positives, positive=True)
        self._histogram.add(self._negatives, positive=False)
        self._positives, self._negatives = ScoresOfClass(), ScoresOfClass()
        return self._histogram

    def is_beyond_exact_auc(self, rows: float) -> bool:
        """Return whether so many rows are too many to keep."""
        return rows > self._exact_auc_rows

    def _bound_memory(self) -> None:
        if self.is_beyond_exact_auc(self.stored_rows):
            self.use_histogram()

    @property
    def sums_by_name(self) -> dict[str, float]:
        """Sums that every metric but the AUC is made of: see `metrics_of_sums`."""
        rows, positives, not_finite = self._counts.tolist()
        sums = zip(self.sums.names, self.sums.sums.tolist(), strict=True)
        return {"rows": float(rows), "positives": float(positives), **dict(sums), "not_finite": float(not_finite)}

    def compute(self) -> MetricValues:
        """Return the metrics of all rows so far, in the order in which pages show them.

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
        self._require_finite()
        if self._histogram is not None:
            found = self._histogram.auc()
            auc = None if found is None else found.value
        else:
            positives, negatives = self._positives, self._negatives
            auc = auc_of_rows(positives.logits, negatives.logits, positives.weights, negatives.weights)
        sums = self.sums_by_name
        metrics: MetricValues = {"auc": auc, **metrics_of_sums(sums)}
        if self._histogram is not None:
            metrics["auc_error_bound"] = self._histogram.error_bound()
        undefined = [name for name, value in metrics.items() if value is None]
        if undefined:
            _log.warning(
                "%.0f rows, %.0f positive: %s undefined", sums["rows"], sums["positives"], ", ".join(undefined)
            )
        return metrics

    def estimates(self) -> dict[str, Estimate | None]:
        """Return `auc`, `log_loss`, `normalized_entropy` and `calibration` as `compute` does, with standard errors.

        They need no resampling, and say how far rows (units) of the same kind may move the metric. None where one is
        undefined. Raises UserError as `compute`.
        """
        self._require_finite()
        loss = self.sums.ratio("loss", "weight")
        return {
            "auc": self._histogram.auc() if self._histogram else auc_estimate(self._positives, self._negatives),
            "log_loss": loss,
            "normalized_entropy": None if loss is None else self._normalized_entropy(loss.value),
            "calibration": self.sums.ratio("probability", "positive_weight"),
        }

    @property
    def label_rate(self) -> Estimate | None:
        """Weighted mean of the labels; None without rows."""
        return self.sums.ratio("positive_weight", "weight")

    def _normalized_entropy(self, loss: float) -> Estimate | None:
        weight, rate = self.sums["weight"], self.sums["positive_weight"] / self.sums["weight"]
        entropy = _entropy(rate)
        if not entropy:
            return None
        # How a row moves the loss, less how it moves the entropy of the base rate.
        slope = loss / entropy * math.log((1 - rate) / rate)
        factors = {"loss": 1.0, "weight": slope * rate - loss, "positive_weight": -slope}
        return Estimate(loss / entropy, self.sums.error(factors) / weight / entropy)

    def _require_finite(self) -> None:
        rows, _, not_finite = self._counts.tolist()
        if not_finite:
            raise UserError(
                f"evaluation: {not_finite} of {rows + not_finite} scores are infinite or NaN: the model has diverged; "
                "lower the learning rates (train.embedding_optimizer.lr, train.dense_optimizer.lr)"
            )


def log_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return -ln p(label) of n rows, (n,) float64, of float64 logits and labels of 0 or 1."""
    return F.binary_cross_entropy_with_logits(logits, labels, reduction="none")


def metrics_of_sums(sums: Mapping[str, float]) -> MetricValues:
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


def progressive_metrics(records: Sequence[Mapping[str, Any]]) -> MetricValues:
    """Return the metrics of rows that were measured before they were trained on, from the records of them.

    Each record has `BinaryMetrics.compute`, and `sums_by_name` as `sums`. `log_loss`, `normalized_entropy` and
    `calibration` are those of all rows together. `auc` is the mean of the records' AUCs, weighted by their rows: scores
    of a model that has moved on meanwhile are not ranked against each other. It leaves out records whose AUC is
    undefined.
    """
    sums: dict[str, float] = defaultdict(float)
    for record in records:
        for name, value in record["sums"].items():
            sums[name] += value
    ranked = [(record["auc"], record["rows"]) for record in records if record["auc"] is not None]
    rows = sum(count for _, count in ranked)
    return {"auc": sum(auc * count for auc, count in ranked) / rows if rows else None, **metrics_of_sums(sums)}


def _entropy(rate: float) -> float:
    """Return the entropy in nats of a coin that falls on 1 at this rate."""
    return 0.0 if rate in (0.0, 1.0) else float(-rate * np.log(rate) - (1 - rate) * np.log1p(-rate))


def compute_over_ranks(
    metrics: BinaryMetrics | RankingMetrics | NextItemMetrics, group: dist.ProcessGroup | None = None
) -> MetricValues:
    """Return the metrics of the rows of all ranks of `group` (default: all), the same dict on every rank.

    A collective call. Every rank's accumulator is used up. Raises what `metrics.compute` raises, on every rank.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    device = torch.device("cuda" if dist.get_backend(group) == "nccl" else "cpu")  # which the backend sends from

    if isinstance(metrics, BinaryMetrics):
        # More scores than rank 0 may keep do not travel to it: each rank sends a histogram of its own.
        stored = torch.tensor(metrics.stored_rows, dtype=torch.float64, device=device)
        dist.all_reduce(stored, group=group)
        if metrics.is_beyond_exact_auc(float(stored)):
            metrics.use_histogram()

    for other in range(1, size):
        if rank == other:
            dist.send_object_list([metrics], group=group, group_dst=0, device=device)
        elif rank == 0:
            received: list[Any] = [None]
            dist.recv_object_list(received, group=group, group_src=other, device=device)
            metrics.add(received[0])

    outcome: list[MetricValues | str | None] = [None]
    if rank == 0:
        try:
            outcome = [metrics.compute()]
        except UserError as error:
            # The other ranks wait for the result: they must fail, too.
            outcome = [str(error)]
    dist.broadcast_object_list(outcome, group=group, group_src=0, device=device)
    (result,) = outcome
    if not isinstance(result, dict):
        raise UserError(result)
    return result
