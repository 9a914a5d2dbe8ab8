"""Metrics of simpler models on the held-out splits, to compare a model with."""

import logging
import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.ingest.dataset import Dataset
from rayrec.recipes import Recipe

_log = logging.getLogger(__name__)

Baselines = dict[str, dict[str, dict[str, float]]]
_MOST_ROWS = 20_000_000
"""Rows of `train` and of a split that are read for a baseline; counting these takes a few seconds."""


def baselines(recipe: Recipe, dataset: Dataset, metrics: Mapping[str, Mapping[str, float | None]]) -> Baselines:
    """Return metrics by split and simpler model, those alone that the model has, too.

    `base rate` predicts the label rate of `train` for every row, or where rows have weights that of the split;
    `popularity` ranks items by their positives in `train`; the others are those of the recipe (`evaluate.baselines`).
    """
    found: Baselines = {}
    for split in (name for name in metrics if name in dataset.evaluation_splits):
        try:
            popularity = _popularity(recipe, dataset, split)
        except (OSError, UserError) as error:  # a bucket that fails now must not fail a model that is trained
            _log.warning("no baseline 'popularity' for %s: %s", split, error)
            popularity = {}
        simpler = {
            "base rate": {} if dataset.schema.interactions else _base_rate(dataset, split, metrics[split]),
            "popularity": popularity,
            **recipe.evaluate.baselines,
        }
        measured = {name for name, value in metrics[split].items() if value is not None}
        known = {model: {n: v for n, v in values.items() if n in measured} for model, values in simpler.items()}
        found[split] = {model: values for model, values in known.items() if values}
    return {split: models for split, models in found.items() if models}


def _base_rate(dataset: Dataset, split: str, metrics: Mapping[str, float | None]) -> dict[str, float]:
    train, held_out = dataset.manifest.splits.get("train"), dataset.split(split)
    if dataset.schema.weight is not None:  # a manifest has no sums of weights, but the metrics do
        loss, normalized = metrics.get("log_loss"), metrics.get("normalized_entropy")
        return {"auc": 0.5} | ({"log_loss": loss / normalized} if loss is not None and normalized else {})
    if train is None or not 0 < train.positives < train.rows:  # no rows to take the rate of
        return {"auc": 0.5}
    predicted, rate = train.positives / train.rows, held_out.positives / max(held_out.rows, 1)
    return {"auc": 0.5, "log_loss": -rate * math.log(predicted) - (1 - rate) * math.log1p(-predicted)}


def _popularity(recipe: Recipe, dataset: Dataset, split: str) -> dict[str, float]:
    ranking, schema, splits = recipe.evaluate.ranking, dataset.schema, dataset.manifest.splits
    columns, group, label = schema.interactions, schema.group, schema.label
    if ranking is None or ranking.candidates != "given" or columns is None or group is None or "train" not in splits:
        return {}
    if not 0 < splits["train"].rows <= _MOST_ROWS or splits[split].rows > _MOST_ROWS:
        return {}
    import torch

    from rayrec.metrics.ranking import RankingMetrics

    counts: NDArray[np.float64] = np.zeros(1)
    for batch in dataset.rows("train", [columns.item, label], _MOST_ROWS):
        items = batch[columns.item].to_numpy()
        added: NDArray[np.float64] = np.bincount(items, batch[label].to_numpy(), len(counts)).astype(np.float64)
        added[: len(counts)] += counts
        counts = added
    measured = RankingMetrics(ranking)
    for batch in dataset.rows(split, [columns.item, group, label], _MOST_ROWS):
        items = batch[columns.item].to_numpy()
        scores = np.where(items < len(counts), counts[np.minimum(items, len(counts) - 1)], 0.0)
        measured.update(
            torch.from_numpy(scores),
            torch.from_numpy(batch[label].to_numpy().copy()),
            torch.from_numpy(batch[group].to_numpy().astype(np.int64)),
            torch.ones(len(items)),
            torch.from_numpy(items.astype(np.int64)),
        )
    return {name: value for name, value in measured.compute().items() if value is not None and name != "groups"}
