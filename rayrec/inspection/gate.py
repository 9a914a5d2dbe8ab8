"""Gate for the model of a new day: the labels, scores of held-out rows of two days, and the drift of features."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rayrec.common.progress import SilentProgress
from rayrec.config.evaluate import PublishConfig
from rayrec.features.id_meanings import EarlierIds
from rayrec.inference.batch.scoring import collect_split
from rayrec.inference.scorer import StoredModel
from rayrec.ingest.dataset import Dataset
from rayrec.inspection.drift import FeatureDrift, drift_of_extension, is_explained_by_new_values
from rayrec.metrics.auc import ScoresOfClass, auc_influences
from rayrec.metrics.binary import log_losses
from rayrec.metrics.estimates import SumsOfRows

_MOST_ROWS = 1_000_000
_ERRORS = 2.0
"""Standard errors within which a difference is put down to chance."""
_LEAST_PROBABILITY = 1e-9
_YEAR = 365 * 86_400.0
_MUCH = 0.2
"""Share of the day's time that may be in that of the day before without a word: rows come late."""


@dataclass(frozen=True)
class Judgement:
    """Figures of a new model, and the verdict."""

    faults: tuple[str, ...]
    """Why it should not serve, each in a line with the key of `publish` that decides."""
    split: str | None
    """The held-out rows of the day that both models scored; None if there are none."""
    comparison: "Comparison | None"
    """The models on these rows."""
    before: "Comparison | None"
    """The models on held-out rows of the day before."""
    drift: tuple[FeatureDrift, ...]
    warnings: tuple[str, ...] = ()
    """What is odd about the day, and no reason not to serve."""

    def as_json(self) -> dict[str, Any]:
        """Return the figures, as JSON values."""
        found = {"comparison": self.comparison, "before": self.before}
        return {
            "faults": list(self.faults),
            "warnings": list(self.warnings),
            "split": self.split,
            **{name: None if one is None else dict(vars(one)) for name, one in found.items()},
            "drift": {feature.name: feature.index for feature in self.drift},
        }


def judge(
    config: PublishConfig, candidate: StoredModel, serving: StoredModel, dataset: Dataset, parent: Dataset, split: str
) -> Judgement:
    """Compare a new model with that of the day before, on held-out rows of both days, which neither was trained on.

    A day must not be judged by itself alone: a model that has learned from wrong labels agrees with more of them.

    Args:
        candidate: The new model, which was trained on `dataset`.
        serving: The model before, which was trained on `parent`.
        dataset: The new day.
        parent: The dataset that it extends.
        split: The split to compare on, if it has labelled rows (`Dataset.split_to_judge`).
    """
    judged, split_before = (of.split_to_judge(split) for of in (dataset, parent))
    faults = [*_label_faults(config, dataset, parent, judged, split_before)]
    warnings = [*_odd_times(dataset, parent)]
    if candidate.recipe.evaluate.next_item_ranking is not None:
        warnings.append("what people choose next has no two labels, so the model was not compared with the serving one")
        judged = split_before = None
    # Each model knows the values of a day by ids of its own.
    comparison = before = None
    if judged is not None:
        earlier = EarlierIds(dataset.schema, dataset.folder, parent.schema, parent.folder)
        comparison = _compare(candidate, serving, dataset, judged, of_serving=earlier)
        faults += comparison.faults(config, is_calibrated=dataset.schema.interactions is None)
    if split_before is not None:
        later = EarlierIds(parent.schema, parent.folder, dataset.schema, dataset.folder)
        before = _compare(candidate, serving, parent, split_before, of_candidate=later)
        faults += before.faults_on_known_rows(config)
    # Are today's rows unlike those that the serving model has learned from?
    drift = drift_of_extension(dataset, parent)
    warnings += [f"'{feature.name}' has one value in all rows" for feature in drift if feature.became_constant]
    for feature in drift if config.max_drift is not None else ():
        assert config.max_drift is not None
        bound = config.max_drift + feature.chance
        if feature.index > bound and is_explained_by_new_values(feature, dataset, parent):
            warnings.append(
                f"{feature.unknown_share:.0%} of the values of '{feature.name}' are new; they look like others"
            )
        elif feature.index > bound:
            faults.append(
                f"'{feature.name}' has drifted: its stability index against the day before is {feature.index:.2f}, "
                f"above publish.max_drift ({config.max_drift:g})"
            )
    return Judgement(tuple(faults), judged, comparison, before, tuple(drift), tuple(warnings))


def fault_beside_base_rate(
    config: PublishConfig, model: StoredModel, dataset: Dataset, split: str, rate: float
) -> str | None:
    """Say why a model should not serve that was trained on `dataset`, if it is worse on a split than `rate`, between 0
    and 1, as the probability of every row, by more than chance and `max_loss_increase`.
    """
    columns = [dataset.schema.label] if dataset.schema.weight is None else [dataset.schema.label, dataset.schema.weight]
    rows, logits = collect_split(model, dataset, split, columns, _MOST_ROWS, SilentProgress())
    weights = (
        np.ones(len(rows), np.float32) if dataset.schema.weight is None else rows[dataset.schema.weight].to_numpy()
    )
    constant = np.full(len(rows), math.log(rate / (1 - rate)), np.float32)
    found = Comparison.of(rows[dataset.schema.label].to_numpy(), weights, logits, constant)
    allowed = config.max_loss_increase * found.serving_loss + _ERRORS * found.loss_difference_error
    if found.loss - found.serving_loss <= allowed:
        return None
    return (
        f"log loss {found.loss:.4f} on '{split}' is above {found.serving_loss:.4f}, that of the label rate "
        f"{rate:.2%} for every row: the model is worse than none; lower the learning rates under train, or set "
        f"publish.max_loss_increase ({config.max_loss_increase:g}) to more"
    )


def _odd_times(dataset: Dataset, parent: Dataset) -> Iterator[str]:
    """Yield what is odd about the times of the day's rows beside those of the day before."""
    now, then = dataset.manifest.times, parent.manifest.times
    if now is None or then is None:
        return
    days = f"rows are of {_date(now.first)} to {_date(now.last)}, those of the day before of {_date(then.first)} to "
    days += _date(then.last)
    if max(now.first - then.last, then.first - now.last) > _YEAR:
        yield f"{days}, years apart; are the times right?"
    shared = min(now.last, then.last) - max(now.first, then.first)
    if shared > _MUCH * (now.last - now.first):
        yield f"{days}; were rows given twice?"


def _date(seconds: float) -> str:
    return str(np.datetime64(int(seconds), "s")).replace("T", " ")


def _label_faults(
    config: PublishConfig, dataset: Dataset, parent: Dataset, split: str | None, split_before: str | None
) -> Iterator[str]:
    """Yield what is wrong with the labels of the day, by which no model should be judged."""
    held_out = dataset.split(split).rows if split is not None else 0
    if split_before is not None and held_out < config.min_rows:
        yield f"{held_out:,} labelled rows were held out, fewer than publish.min_rows ({config.min_rows:,})"
    # In datasets of interactions rows of train are all positives, and negatives are drawn.
    is_observed = dataset.schema.interactions is None
    counted = {"the day": _labels(dataset, "train", *dataset.evaluation_splits)} if is_observed else {}
    # Where none are drawn, all held-out rows are positives, too.
    if split is not None and (is_observed or dataset.split(split).positives < dataset.split(split).rows):
        counted[f"split '{split}'"] = _labels(dataset, split)
    for name, (positives, negatives) in counted.items():
        fewest, label = min((positives, 1), (negatives, 0))
        if fewest < config.min_positives:
            yield (
                f"{fewest:,.0f} of the {positives + negatives:,.0f} labels of {name} are {label}, fewer than "
                f"publish.min_positives ({config.min_positives:,})"
            )
            break
    if config.max_rate_change is None or not is_observed:
        return
    now, then = counted["the day"], _labels(parent, "train", *parent.evaluation_splits)
    if all((*now, *then)):
        change = abs(math.log(now[0] / now[1]) - math.log(then[0] / then[1]))
        error = math.sqrt(sum(1 / count for count in (*now, *then)))
        if change - _ERRORS * error > math.log(config.max_rate_change):
            rates = [positives / (positives + negatives) for positives, negatives in (now, then)]
            yield (
                f"{rates[0]:.2%} of the labels are 1, and {rates[1]:.2%} were the day before: the odds changed by a "
                f"factor of {math.exp(change):.1f}, more than publish.max_rate_change ({config.max_rate_change:g})"
            )


def _labels(dataset: Dataset, *splits: str) -> tuple[float, float]:
    """Return how many labels of some splits are 1, and how many are 0."""
    found = [dataset.split(split) for split in splits]
    positives = sum(split.positives for split in found)
    return positives, sum(split.rows for split in found) - positives


def _compare(
    candidate: StoredModel,
    serving: StoredModel,
    dataset: Dataset,
    split: str,
    of_candidate: EarlierIds | None = None,
    of_serving: EarlierIds | None = None,
) -> "Comparison":
    """Compare the models on a split; `of_candidate` and `of_serving` turn its ids into theirs, if these differ."""
    schema, silent = dataset.schema, SilentProgress()
    columns = [schema.label] if schema.weight is None else [schema.label, schema.weight]
    rows, logits = collect_split(candidate, dataset, split, columns, _MOST_ROWS, silent, of_candidate)
    _, before = collect_split(serving, dataset, split, columns, _MOST_ROWS, silent, of_serving)
    weights = np.ones(len(rows), np.float32) if schema.weight is None else rows[schema.weight].to_numpy()
    return Comparison.of(rows[schema.label].to_numpy(), weights, logits, before)


@dataclass(frozen=True)
class Comparison:
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
    auc: float | None
    """AUC of the new model; None for rows of one class."""
    auc_error: float | None
    serving_auc: float | None
    auc_difference_error: float | None
    """Standard error of the difference of the two, from the differences of single rows (DeLong et al. 1988)."""

    @classmethod
    def of(
        cls,
        labels: NDArray[np.float32],
        weights: NDArray[np.float32],
        logits: NDArray[np.float32],
        serving_logits: NDArray[np.float32],
    ) -> "Comparison":
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
        aucs = [auc_influences(*_by_class(scores, labels, weights)) for scores in (logits, serving_logits)]
        new_auc, serving_auc = (found or (None, np.array([])) for found in aucs)
        errors = [float(np.linalg.norm(one)) for one in (new_auc[1], new_auc[1] - serving_auc[1])]
        return cls(
            rows=len(labels),
            loss=mean.value,
            serving_loss=serving_mean.value,
            loss_difference_error=difference.error,
            calibration=None if calibration is None else calibration.value,
            calibration_error=None if calibration is None else sums.error({"positives": 1.0}) / sums["positives"],
            auc=new_auc[0],
            auc_error=None if new_auc[0] is None else errors[0],
            serving_auc=serving_auc[0],
            auc_difference_error=None if new_auc[0] is None else errors[1],
        )

    def faults(self, config: PublishConfig, *, is_calibrated: bool) -> list[str]:
        """Why the new model should not serve, from rows of its day, each in a line; `is_calibrated`: whether its scores
        are probabilities.
        """
        found = []
        if self.auc is not None and self.auc_error is not None and self.auc + _ERRORS * self.auc_error < config.min_auc:
            found.append(
                f"AUC {self.auc:.3f} (standard error {self.auc_error:.3f}) is below publish.min_auc "
                f"({config.min_auc:g}); 0.5 is chance, and less is that of swapped labels"
            )
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

    def faults_on_known_rows(self, config: PublishConfig) -> list[str]:
        """Why the new model should not serve, from rows of the day before, each in a line.

        Ranks tell what it has forgotten. Log loss does not: rates of labels differ from day to day.
        """
        if self.auc is None or self.serving_auc is None or self.auc_difference_error is None:
            return []
        loss = self.serving_auc - self.auc
        if loss - _ERRORS * self.auc_difference_error <= config.max_auc_loss:
            return []
        return [
            f"AUC on held-out rows of the day before is {self.auc:.3f}, and was {self.serving_auc:.3f}: lower by "
            f"{loss:.3f} (standard error {self.auc_difference_error:.3f}), more than publish.max_auc_loss "
            f"({config.max_auc_loss:g})"
        ]


def _by_class(
    scores: NDArray[np.float32], labels: NDArray[np.float32], weights: NDArray[np.float32]
) -> tuple[ScoresOfClass, ScoresOfClass]:
    found = ScoresOfClass(), ScoresOfClass()
    for of_class, is_of_class in zip(found, (labels > 0, labels <= 0), strict=True):
        chosen = is_of_class & (weights > 0)
        of_class.add(scores[chosen], weights[chosen])
    return found
