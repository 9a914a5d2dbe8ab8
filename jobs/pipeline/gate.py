"""Gate for the model of a new day: its scores of held-out rows, and the drift of its features."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rayrec.config.evaluate import PublishConfig

if TYPE_CHECKING:
    from rayrec.evaluation.gate import Comparison
    from rayrec.ingest.dataset import Dataset
    from rayrec.inspection.drift import FeatureDrift

_MOST_ROWS = 1_000_000


@dataclass(frozen=True)
class Judgement:
    """Figures of a new model, and the verdict."""

    faults: tuple[str, ...]
    """Why it should not serve, each in a line."""
    split: str | None
    """The held-out rows that both models scored; None if there are none."""
    comparison: "Comparison | None"
    drift: tuple["FeatureDrift", ...]

    def as_json(self) -> dict[str, Any]:
        """Return the figures, as JSON values."""
        return {
            "faults": list(self.faults),
            "split": self.split,
            "comparison": None if self.comparison is None else self.comparison.as_json(),
            "drift": {feature.name: feature.index for feature in self.drift},
        }


def judge(
    config: PublishConfig, candidate: Path, serving: Path, dataset: "Dataset", parent: "Dataset", preferred: str
) -> Judgement:
    """Compare a new model with the one that serves.

    Args:
        candidate: Model folder of the new model, which was trained on `dataset`.
        serving: Model folder of the serving model, which was trained on `parent`.
        dataset: The new day.
        parent: The dataset that it extends.
        preferred: The split to compare on, if it has labelled rows.
    """
    from rayrec.inspection.drift import drift_of_extension

    faults: list[str] = []
    splits = sorted(dataset.evaluation_splits, key=lambda name: name != preferred)
    comparison = _compare(candidate, serving, dataset, parent, splits[0]) if splits else None
    if comparison is not None:
        faults += comparison.faults(config, is_calibrated=dataset.schema.interactions is None)
    drift = drift_of_extension(dataset, parent)
    for feature in drift if config.max_drift is not None else ():
        assert config.max_drift is not None
        bound = config.max_drift + feature.chance
        if feature.index > bound:
            faults.append(
                f"'{feature.name}' has drifted: its stability index against the day before is {feature.index:.2f}, "
                f"above publish.max_drift ({config.max_drift:g})"
            )
    return Judgement(tuple(faults), splits[0] if splits else None, comparison, tuple(drift))


def _compare(candidate: Path, serving: Path, dataset: "Dataset", parent: "Dataset", split: str) -> "Comparison":
    from rayrec.evaluation.gate import Comparison
    from rayrec.features.vocabularies.earlier_ids import EarlierIds
    from rayrec.inference.predictor import load_model

    new, old, schema = load_model(candidate), load_model(serving), dataset.schema
    earlier = EarlierIds(schema, dataset.folder, old.schema, parent.folder)
    names = [feature.name for feature in schema.features]
    weight = [] if schema.weight is None else [schema.weight]

    def parts() -> Iterator[tuple[np.ndarray, ...]]:
        for rows in dataset.rows(split, [*names, schema.label, *weight], _MOST_ROWS):
            features = rows.select(names)
            labels = rows[schema.label].to_numpy()
            weights = rows[schema.weight].to_numpy() if schema.weight is not None else np.ones(len(labels), np.float32)
            yield labels, weights, new.predict_encoded(features), old.predict_encoded(earlier(features))

    return Comparison.of(*(np.concatenate(column) for column in zip(*parts(), strict=True)))
