"""Warnings about the splits that metrics were measured on, and the simpler models that a model should beat there."""

import logging
import math
from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.config.evaluate import RankingConfig
from rayrec.config.preprocess import HashSplitConfig, RowsPreprocessConfig
from rayrec.config.table import HistoryConfig
from rayrec.features.schema import Schema
from rayrec.ingest.dataset import Dataset, DatasetManifest, FoundKeys
from rayrec.recipes import Recipe

LEAST_ROWS_OF_A_CLASS = 10
"""An AUC of 0.75 that was measured on ten positives, with any number of negatives, has a standard error of 0.09 (Hanley
and McNeil, "The meaning and use of the area under a receiver operating characteristic (ROC) curve", 1982)."""
_BEYOND_CHANCE = 3.89
"""Standard deviations that a difference of label rates surpasses with probability 1e-4, either way."""
_NOTABLE_CHANGE = 0.2
"""Where rows are not dealt at random label rates always differ; this share of train's is worth a word."""

_NOTABLE_SHARE, _MOST_NAMED = 0.01, 4
"""Share of a split's rows whose values are new, from which on it is told, and the most columns that are named."""


def class_warnings(splits: Mapping[str, Mapping[str, float | None]]) -> list[str]:
    """Say what is wrong with held-out splits, given their metrics `rows` and `positives`, if these were counted."""
    warnings = []
    for name, metrics in splits.items():
        rows, positives = metrics.get("rows"), metrics.get("positives")
        if rows and positives is not None:
            fewest, label = min((positives, 1), (rows - positives, 0))
            if fewest == 0:
                warnings.append(f"split '{name}': no label of {rows:,.0f} is {label}, so no AUC can be measured on it")
            elif fewest < LEAST_ROWS_OF_A_CLASS:
                warnings.append(
                    f"split '{name}': only {fewest:,.0f} of {rows:,.0f} labels are {label}, so metrics on it say little"
                )
    return warnings


def metric_warnings(
    metrics: Mapping[str, Mapping[str, float | None]], baselines: Mapping[str, Mapping[str, Mapping[str, float]]]
) -> list[str]:
    """Say what is wrong with held-out splits, and where a model on them is worse than a simpler one on the same rows.

    `baselines`: `rayrec.inspection.split_checks.baselines` of the metrics. Rates of labels are beaten in log loss,
    popularity, by which users and items are ranked, in the first metric of ranked lists.
    """
    warnings = class_warnings(metrics)
    for split, simpler in baselines.items():
        rate, popularity = simpler.get("base rate", {}), simpler.get("popularity", {})
        loss = metrics[split].get("log_loss")
        if loss is not None and loss > rate.get("log_loss", math.inf):
            warnings.append(
                f"split '{split}': log loss {loss:.4f} is above {rate['log_loss']:.4f}, that of the label rate of "
                "train for every row: the model is worse than none"
            )
        for name, value in list(popularity.items())[:1]:
            if (metrics[split].get(name) or 0.0) < value:
                warnings.append(
                    f"split '{split}': {name} {metrics[split][name]:.4f} is below {value:.4f} by popularity"
                )
    return warnings


def drawn_negatives(schema: Schema) -> dict[str, bool]:
    """Return the entry of a result's details that `shown_metrics` needs; nothing where labels were observed."""
    return {"drawn_negatives": True} if schema.has_drawn_negatives else {}


def ranking_notes(recipe: Recipe, dataset: Dataset, metrics: Mapping[str, Mapping[str, float | None]]) -> list[str]:
    """Say of splits of interactions which items their lists leave out, or which events have no list."""
    ranking, notes = recipe.evaluate.ranking, list[str]()
    if ranking is None or not dataset.schema.has_drawn_negatives:
        return []
    if recipe.serve.recommend.popularity_penalty:
        costs = "; `rayrec report` has what it costs" if ranking.candidates == "next" else ""
        notes.append(f"metrics are without serve.recommend.popularity_penalty, which changes lists{costs}")
    for name in metrics:
        if name not in dataset.evaluation_splits:
            continue
        split, measured = dataset.split(name), metrics[name]
        rows, positives, ranked = (measured.get(count) or 0.0 for count in ("rows", "positives", "groups"))
        if ranking.candidates == "given" and positives:
            negatives = (rows - positives) / positives
            notes.append(
                f"split '{name}': {', '.join(ranking.names)} are ranks among {negatives:.0f} sampled negatives, which "
                "say little of ranks among all items (evaluate.ranking.candidates: next)"
            )
        elif ranking.candidates == "next" and ranked < split.positives:
            notes.append(
                f"split '{name}': {split.positives - ranked:,.0f} of {split.positives:,.0f} events are not ranked, as "
                "train does not have their item"
            )
    return notes


def selection_notes(recipe: Recipe, dataset: Dataset) -> list[str]:
    """Say if training chose its checkpoint by `test`, which flatters the model, for want of the split that it names."""
    train = recipe.train
    chosen_by = dataset.split_to_judge(train.evaluation_split)
    if chosen_by != "test" or train.evaluation_split == "test" or train.checkpoint.keep_best is None:
        return []
    if train.evaluate_every_steps is None and train.most_evaluations < 2:
        return []
    return [
        f"split '{train.evaluation_split}' has no rows, so the checkpoint was chosen by 'test', whose metrics are "
        "better than those of new rows; hold out that split, too (preprocess.split)"
    ]


def run_notes(recipe: Recipe, dataset: Dataset, metrics: Mapping[str, Mapping[str, float | None]]) -> list[str]:
    """Say what the metrics of a run on its own dataset leave out, and where they flatter its model."""
    return [*ranking_notes(recipe, dataset, metrics), *selection_notes(recipe, dataset)]


def split_warnings(manifest: DatasetManifest) -> list[str]:
    """Say what is wrong with the splits of a dataset."""
    splits, recipe = manifest.splits, Recipe.model_validate(manifest.config)
    empty = [
        f"split '{name}' has no rows; give more, or change preprocess.split"
        for name, split in splits.items()
        if split.rows == 0
    ]
    train = splits["train"]
    if recipe.source.gives_interactions:
        # Their train split has positives alone, and negatives are drawn.
        return empty
    if train.positives in (0, train.rows):
        empty.append(f"split 'train': every label is {train.positives / train.rows:.0f}, so there is nothing to learn")
    held_out = {
        name: {"rows": split.rows, "positives": split.positives}
        for name, split in splits.items()
        if name != "train" and split.labelled
    }
    return empty + class_warnings(held_out) + (_rate_changes(manifest, 0.0) if _is_random(recipe) else [])


def split_notes(manifest: DatasetManifest) -> list[str]:
    """Return what differs of held-out splits as it may: how many rows have a value that `train` has not, and the label
    rates of those that were not drawn at random.
    """
    recipe = Recipe.model_validate(manifest.config)
    histories: Mapping[str, HistoryConfig] = getattr(recipe.source, "histories", {})
    pasts = {history.by[0] for history in histories.values() if len(history.by) == 1}
    if recipe.model.scores_next_items:
        pasts.add("user")  # as datasets of interactions name it
    new = [text for split, found in manifest.known_values.items() if (text := describe_new_values(split, found, pasts))]
    if recipe.source.gives_interactions or _is_random(recipe):
        return new
    return new + _rate_changes(manifest, _NOTABLE_CHANGE)


def describe_new_values(split: str, known: Mapping[str, FoundKeys], pasts: Collection[str] = ()) -> str | None:
    """Say how many rows of a held-out split have values that `train` has not, by column; None where next to none has.

    `known`: rows that have a value, and those whose value `train` has, by column. `pasts`: the columns whose histories
    tell of rows with new values, too.
    """
    shares = {column: 1 - found.share for column, found in known.items() if found.rows}
    most = sorted((column for column in shares if shares[column] >= _NOTABLE_SHARE), key=lambda name: -shares[name])
    if not most:
        return None
    named = [f"the '{column}' of {shares[column]:.1%}" for column in most[:_MOST_NAMED]]
    named[0] += " of its rows"
    more = f", nor {len(most) - _MOST_NAMED} more" if len(most) > _MOST_NAMED else ""
    few = [column for column in most[:_MOST_NAMED] if shares[column] >= 0.5]
    told = [column for column in few if column in pasts]
    helps = f"; what the model knows of {' and '.join(map(repr, few))} helps few of them" if few else ""
    helps += f", but the past of {' and '.join(map(repr, told))} tells of them" if told else ""
    return f"split '{split}': train has not {', nor '.join(named)}{more}{helps}"


def _is_random(recipe: Recipe) -> bool:
    """Tell whether each row was dealt to a split by itself, at random."""
    preprocess, group = recipe.preprocess, getattr(recipe.source, "group", None)
    if not isinstance(preprocess, RowsPreprocessConfig) or group is not None:
        return False
    return isinstance(preprocess.split, HashSplitConfig) and preprocess.split.column is None


def _rate_changes(manifest: DatasetManifest, least: float) -> list[str]:
    """Return the splits whose label rate differs from train's beyond chance (z test of two shares) and by a share of
    it.
    """
    train = manifest.splits["train"]
    before = train.positives / train.rows
    found = []
    for name, split in manifest.splits.items():
        if name == "train" or not split.labelled or split.positives in (0, split.rows):
            continue
        rate = split.positives / split.rows
        whole = (train.positives + split.positives) / (train.rows + split.rows)
        deviation = math.sqrt(whole * (1 - whole) * (1 / train.rows + 1 / split.rows))
        if abs(rate - before) > max(_BEYOND_CHANCE * deviation, least * before):
            found.append(f"split '{name}': {rate:.2%} of its labels are 1, but {before:.2%} of train's")
    return found


# Simpler models.

_log = logging.getLogger(__name__)

Baselines = dict[str, dict[str, dict[str, float]]]
_COUNTS = ("groups", "rows")
_MOST_PAIRS = 2**30
"""Scores of items for held-out events that are ranked for a baseline."""
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
    if ranking is None or ranking.candidates == "all" or columns is None or group is None or "train" not in splits:
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
    if ranking.candidates == "next":
        return _popular_next(ranking, dataset, split, counts)
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
    return {name: value for name, value in measured.compute().items() if value is not None and name not in _COUNTS}


def _popular_next(
    ranking: RankingConfig, dataset: Dataset, split: str, counts: NDArray[np.float64]
) -> dict[str, float]:
    """Return what popularity reaches where all items are ranked, if that takes seconds."""
    import torch

    from rayrec.ingest.interactions import num_item_rows
    from rayrec.ingest.next_items import NextItems
    from rayrec.metrics.next_items import NextItemMetrics

    num_items = num_item_rows(dataset.schema) - 1
    if num_items * dataset.split(split).positives > _MOST_PAIRS:
        return {}
    scores = np.zeros(num_items, np.float32)
    scores[: len(counts) - 1] = counts[1:]
    measured = NextItemMetrics(ranking, num_items)
    for events in NextItems.read(dataset, split).batches():
        measured.update(measured.rank(torch.from_numpy(scores).expand(len(events), -1), events))
    return {name: value for name, value in measured.compute().items() if value is not None and name not in _COUNTS}
