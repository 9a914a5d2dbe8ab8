"""Compares a new model with the one that serves, on rows that neither was trained on."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rayrec.config.evaluate import PublishConfig
from rayrec.evaluation.statistics.scored_rows import log_losses

_ERRORS = 2.0
"""Standard errors within which a difference is put down to chance."""
_LEAST_PROBABILITY = 1e-9


@dataclass(frozen=True)
class Comparison:
    """Two models on the same rows; sums over rows are weighted."""

    rows: int
    loss: float
    """Log loss of the new model, natural logarithm."""
    serving_loss: float
    """Log loss of the serving model."""
    loss_difference_error: float
    """Standard error of the difference of the two, from the differences of single rows."""
    calibration: float | None
    """Sum of the new model's probabilities over the number of positives; None without positives."""
    calibration_error: float | None
    """The relative standard error of `calibration`, as if positives came one by one: 1 / sqrt(positives)."""

    @classmethod
    def of(
        cls,
        labels: NDArray[np.float32],
        weights: NDArray[np.float32],
        scores: NDArray[np.float32],
        serving_scores: NDArray[np.float32],
    ) -> "Comparison":
        """Compare (n,) probabilities of the new and the serving model for n rows with (n,) labels and weights."""
        weight = weights.astype(np.float64)
        losses, before = log_losses(labels, scores), log_losses(labels, serving_scores)
        total = weight.sum()
        difference = losses - before
        mean = (weight * difference).sum() / total
        error = np.sqrt((weight**2 * (difference - mean) ** 2).sum()) / total
        positives = float((weight * labels).sum())
        return cls(
            rows=len(labels),
            loss=float((weight * losses).sum() / total),
            serving_loss=float((weight * before).sum() / total),
            loss_difference_error=float(error),
            calibration=float((weight * scores).sum() / positives) if positives else None,
            calibration_error=float(np.sqrt((weight**2 * labels).sum()) / positives) if positives else None,
        )

    def faults(self, config: PublishConfig, *, is_calibrated: bool) -> list[str]:
        """Why the new model should not serve, each in a line; `is_calibrated`: whether its scores are probabilities."""
        found = []
        excess = self.loss - self.serving_loss
        bound = config.max_loss_increase * self.serving_loss
        if excess - _ERRORS * self.loss_difference_error > bound:
            found.append(
                f"log loss {self.loss:.5f} exceeds the serving model's {self.serving_loss:.5f} by {excess:.5f} "
                f"(standard error {self.loss_difference_error:.5f}), more than publish.max_loss_increase allows "
                f"({bound:.5f})"
            )
        if is_calibrated and self.calibration is not None and self.calibration_error is not None:
            bound = np.log1p(config.max_miscalibration) + _ERRORS * self.calibration_error
            if abs(np.log(max(self.calibration, _LEAST_PROBABILITY))) > bound:
                found.append(
                    f"the probabilities add up to {self.calibration:.3f} times the number of positives, outside "
                    f"publish.max_miscalibration ({config.max_miscalibration:g})"
                )
        return found

    def as_json(self) -> dict[str, Any]:
        """Return the figures, as JSON values."""
        return dict(vars(self))
