"""Gate for the model of a new day: its scores of held-out rows, and the drift of its features."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rayrec.common.progress import SilentProgress
from rayrec.config.evaluate import PublishConfig
from rayrec.features.id_meanings import EarlierIds
from rayrec.inference.batch.scoring import collect_split
from rayrec.inference.folder.model_folder import ModelFolder
from rayrec.ingest.dataset import Dataset
from rayrec.inspection.drift import FeatureDrift, drift_of_extension
from rayrec.metrics.binary import log_losses
from rayrec.metrics.estimates import SumsOfRows

_MOST_ROWS = 1_000_000
_ERRORS = 2.0
"""Standard errors within which a difference is put down to chance."""
_LEAST_PROBABILITY = 1e-9


@dataclass(frozen=True)
class Judgement:
    """Figures of a new model, and the verdict."""

    faults: tuple[str, ...]
    """Why it should not serve, each in a line."""
    split: str | None
    """The held-out rows that both models scored; None if there are none."""
    comparison: "LossComparison | None"
    drift: tuple[FeatureDrift, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the figures, as JSON values."""
        return {
            "faults": list(self.faults),
            "split": self.split,
            "comparison": None if self.comparison is None else dict(vars(self.comparison)),
            "drift": {feature.name: feature.index for feature in self.drift},
        }


def judge(
    config: PublishConfig, candidate: Path, serving: Path, dataset: Dataset, parent: Dataset, preferred: str
) -> Judgement:
    """Compare a new model with the one that serves.

    Args:
        candidate: Model folder of the new model, which was trained on `dataset`.
        serving: Model folder of the serving model, which was trained on `parent`.
        dataset: The new day.
        parent: The dataset that it extends.
        preferred: The split to compare on, if it has labelled rows.
    """
    # Both models score the same held-out rows: is the new one worse than chance explains?
    faults: list[str] = []
    split = dataset.split_to_judge(preferred)
    comparison = _compare(candidate, serving, dataset, parent, split) if split is not None else None
    if comparison is not None:
        faults += comparison.faults(config, is_calibrated=dataset.schema.interactions is None)
    # Are today's rows unlike those that the serving model has learned from?
    drift = drift_of_extension(dataset, parent)
    for feature in drift if config.max_drift is not None else ():
        assert config.max_drift is not None
        bound = config.max_drift + feature.chance
        if feature.index > bound:
            faults.append(
                f"'{feature.name}' has drifted: its stability index against the day before is {feature.index:.2f}, "
                f"above publish.max_drift ({config.max_drift:g})"
            )
    return Judgement(tuple(faults), split, comparison, tuple(drift))


def _compare(candidate: Path, serving: Path, dataset: Dataset, parent: Dataset, split: str) -> "LossComparison":
    new, old, schema = ModelFolder.open(candidate), ModelFolder.open(serving), dataset.schema
    # The serving model knows today's values by the ids that they had yesterday.
    earlier = EarlierIds(schema, dataset.folder, old.schema, parent.folder)
    columns = [schema.label] if schema.weight is None else [schema.label, schema.weight]
    rows, logits = collect_split(new, dataset, split, columns, _MOST_ROWS, SilentProgress())
    _, before = collect_split(old, dataset, split, columns, _MOST_ROWS, SilentProgress(), translate=earlier)
    weights = np.ones(len(rows), np.float32) if schema.weight is None else rows[schema.weight].to_numpy()
    return LossComparison.of(rows[schema.label].to_numpy(), weights, logits, before)


@dataclass(frozen=True)
class LossComparison:
    """Two models on the same rows; means over rows are weighted."""

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
        logits: NDArray[np.float32],
        serving_logits: NDArray[np.float32],
    ) -> "LossComparison":
        """Compare (n,) logits of the new and the serving model for n rows with (n,) labels and weights."""
        label, by, new, serving = (
            torch.from_numpy(column.astype(np.float64)) for column in (labels, weights, logits, serving_logits)
        )
        loss, before = log_losses(new, label), log_losses(serving, label)
        sums = SumsOfRows(("weight", "positives", "loss", "serving loss", "difference", "probability"))
        sums.update(by * torch.stack([torch.ones_like(by), label, loss, before, loss - before, new.sigmoid()]))
        mean, serving_mean, difference = (sums.ratio(name, "weight") for name in sums.names[2:5])
        calibration = sums.ratio("probability", "positives")
        assert mean is not None and serving_mean is not None and difference is not None, "rows have weights"
        return cls(
            rows=len(labels),
            loss=mean.value,
            serving_loss=serving_mean.value,
            loss_difference_error=difference.error,
            calibration=None if calibration is None else calibration.value,
            calibration_error=None if calibration is None else sums.error({"positives": 1.0}) / sums["positives"],
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
