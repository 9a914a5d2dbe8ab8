"""What pages show of runs: the curves, time and memory of a training, and how its model scores a held-out split."""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.common.progress import Progress
from rayrec.config.evaluate import MAIN_METRICS, RankingConfig
from rayrec.features.schema import CategoricalFeature, Schema
from rayrec.inference.batch.pool import ScoringPool
from rayrec.inference.batch.scoring import collect_split, measure_next_items
from rayrec.inference.scorer import StoredModel
from rayrec.ingest.dataset import Dataset
from rayrec.inspection.cells import (
    cells_by_frequency,
    cells_of_past,
    cells_of_rows,
    past_counts,
    values_of_rows,
)
from rayrec.metrics.estimates import Estimate
from rayrec.metrics.paired import Difference, compare_recipes, repeats_of, seed_variance
from rayrec.metrics.scored_rows import (
    SLICE_METRICS,
    Curve,
    ScoredRows,
    SliceMetrics,
    by_score,
    expected_calibration_error,
    reliability,
    score_histogram,
    slices,
    threshold_curves,
)
from rayrec.recipes import differing_values
from rayrec.training.run.folder import METRICS_FILE, PLAN_FILE, RunFolder
from rayrec.training.run.history import read_history

MOST_ROWS = 1_000_000
"""Rows that are scored: the first ones of the split."""
_WORST = 20
_BY_SCORE = "score"


@dataclass(frozen=True)
class ScoredSplit:
    """Scored rows of a split."""

    split: str
    rows: int
    """Rows of the split, of which the first `MOST_ROWS` are scored."""
    scored: ScoredRows
    columns: pa.Table
    """The encoded features of the scored rows, in the order of the split."""


Division = tuple[str, list[SliceMetrics]]
"""What all rows were divided by, and the parts."""


def score_held_out(
    model: StoredModel, dataset: Dataset, split: str, progress: Progress, name: str | None = None
) -> ScoredSplit:
    """Score the first rows of a labelled split of a dataset that is encoded as the model reads it.

    Rows of a group are one unit. `name` is the model's in the progress. Raises UserError if the split has no labels, or
    no row that counts.
    """
    schema, rows = dataset.schema, dataset.labelled_split(split).rows
    features = [feature.name for feature in schema.features]
    progress.stage(f"score {split}" + (f" with {name}" if name is not None else ""), min(rows, MOST_ROWS))
    columns, logits = collect_split(model, dataset, split, [*features, *schema.other_columns], MOST_ROWS, progress)
    label, weight, group = (
        None if name is None else columns[name].to_numpy() for name in (schema.label, schema.weight, schema.group)
    )
    assert label is not None
    scored = ScoredRows.of(logits, label, weight, group)
    if not len(scored):
        raise UserError(f"{dataset.folder}: no row of '{split}' has a weight above 0; give a dataset with such rows")
    return ScoredSplit(split, rows, scored, columns.select(features).combine_chunks())


def divisions(held_out: ScoredSplit, dataset: Dataset, progress: Progress) -> list[Division]:
    """Return the rows by tenths of the score, by the values of each feature, and by how often values occurred in
    `train`: where they did not, and are the key of a history, by whether it has an event before the row.
    """
    scored, past = held_out.scored, past_counts(dataset.schema)
    has_past = _has_past(held_out.columns, dataset.schema)
    found: list[Division] = [(_BY_SCORE, slices(scored, *by_score(scored)))]
    progress.stage("slices", len(dataset.schema.features))
    for feature in dataset.schema.features:
        column = held_out.columns[feature.name].combine_chunks()
        values = values_of_rows(feature, column)
        is_past = feature.name in past
        cells = cells_of_past(feature, values) if is_past else cells_of_rows(feature, values, dataset.folder)
        found.append((feature.name, slices(scored, cells.places(values), cells.names)))
        by_frequency = None
        if isinstance(feature, CategoricalFeature):
            by_frequency = cells_by_frequency(feature, dataset.folder)
        if by_frequency is not None:
            places, names = by_frequency.places(values), by_frequency.names
            if (known := has_past.get(feature.columns[0])) is not None:
                places = np.where(places > 0, places + 1, known)
                names = (f"{names[0]}, no event before", f"{names[0]}, with events before", *names[1:])
            found.append((_in_train(feature.name), slices(scored, places, names)))
        progress.advance(1)
    return found


def _in_train(feature: str) -> str:
    """Return what rows are divided by where it is how often the values of a feature occurred in `train`."""
    return f"{feature} in train"


def _has_past(columns: pa.Table, schema: Schema) -> dict[str, NDArray[np.bool_]]:
    """Return by the key of histories which rows (n,) have an event before them; of several, by that with most."""
    features = {feature.name: feature for feature in schema.numeric}
    found: dict[str, NDArray[np.bool_]] = {}
    for name, history in past_counts(schema).items():
        if len(history.keys) > 1:
            continue
        values = values_of_rows(features[name], columns[name].combine_chunks())
        of_history = cells_of_past(features[name], values).places(values) > 0
        (key,) = history.keys
        if key not in found or of_history.sum() > found[key].sum():
            found[key] = of_history
    return found


def _divisions_of_keys(schema: Schema) -> list[str]:
    """Return what rows are divided by where that says what is known of the keys of histories."""
    past = past_counts(schema)
    keys = {key for history in past.values() for key in history.keys}
    of_keys = [_in_train(feature.name) for feature in schema.categorical if feature.columns[0] in keys]
    return [*of_keys, *past]


def held_out_figures(held_out: ScoredSplit, dataset: Dataset, progress: Progress) -> dict[str, Any]:
    """Return the metrics with standard errors, curves with bands, and slices of scored rows, as JSON values.

    Curves are None where all rows have the same label. `worst` has the places in `slices` of the worst ones by metric;
    `of_keys` what slices are by that say what is known of the keys of histories.
    """
    scored = held_out.scored
    metrics = scored.metrics.estimates()
    found = [(by, one) for by, parts in divisions(held_out, dataset, progress) for one in parts]
    progress.stage("curves")
    figures: dict[str, Any] = {
        "split": held_out.split,
        "rows": held_out.rows,
        "rows_scored": len(scored),
        "has_groups": scored.has_units,
        "label_rate": _estimate(scored.metrics.label_rate),
        "metrics": {name: _estimate(value) for name, value in metrics.items()},
        "curves": None,
        "slices": [_slice(by, one) for by, one in found],
        "worst": {metric: _worst(found, metric) for metric in SLICE_METRICS},
        "of_keys": _divisions_of_keys(dataset.schema),
    }
    if metrics["auc"] is not None:
        curves = threshold_curves(scored)
        bins = reliability(scored)
        edges, negatives, positives = score_histogram(scored)
        figures["curves"] = {
            "roc": _curve(curves.roc),
            "precision_recall": _curve(curves.precision_recall),
            "average_precision": curves.average_precision,
            "lift": _curve(curves.lift),
            "reliability": [asdict(of_bin) for of_bin in bins],
            "expected_calibration_error": expected_calibration_error(bins),
            "histogram": {"edges": edges.tolist(), "negatives": negatives.tolist(), "positives": positives.tolist()},
        }
    progress.finish()
    return figures


def next_item_figures(
    model: StoredModel, dataset: Dataset, split: str, ranking: RankingConfig, progress: Progress
) -> dict[str, Any]:
    """Return the metrics of held-out events, of all of them and of those of people of whom more or less is known, with
    standard errors, how alike their lists are, and what lists with fewer popular items cost, as JSON values. Raises
    UserError as `score_held_out`.
    """
    progress.stage(f"rank {split}", dataset.labelled_split(split).rows)
    penalties = sorted({*_PENALTIES, model.recipe.serve.recommend.popularity_penalty})
    measured = measure_next_items(model, dataset, split, ranking, ScoringPool(), progress, penalties)
    found = measured[0]
    slices, estimates, values = found.slices(), found.estimates(), found.compute()
    progress.finish()
    return {
        "split": split,
        "events": int(values["rows"] or 0),
        "metrics": {name: _estimate(value) for name, value in estimates.items()},
        "lists": {name: value for name, value in values.items() if name not in {*estimates, *_NO_METRICS}},
        "slices": [
            {"events of": one.name, "events": one.events, "metrics": {k: _estimate(v) for k, v in one.metrics.items()}}
            for one in slices
        ],
        "penalties": [
            {
                "popularity_penalty": penalty,
                **{name: value for name, value in one.compute().items() if name not in _NO_METRICS},
            }
            for penalty, one in zip(penalties, measured, strict=True)
        ],
    }


def _estimate(found: Estimate | None) -> dict[str, float] | None:
    return None if found is None else asdict(found)


def _curve(curve: Curve) -> dict[str, list[float]]:
    return {name: values.tolist() for name, values in vars(curve).items()}


def _slice(by: str, one: SliceMetrics) -> dict[str, Any]:
    metrics = {name: _estimate(found) for name, found in one.metrics.items()}
    return {"by": by, "value": one.value, "rows": one.rows, "positives": one.positives, "metrics": metrics}


def _worst(found: list[tuple[str, SliceMetrics]], metric: str) -> list[int]:
    """Return the places of the worst slices by a metric, the worst first.

    Rows of about the same score are hard to rank for any model, so slices by score count for calibration alone.
    """
    bad = {
        place: how
        for place, (by, one) in enumerate(found)
        if (by != _BY_SCORE or metric == "calibration") and (how := one.badness(metric)) is not None
    }
    return sorted(bad, key=lambda place: -bad[place])[:_WORST]


_PENALTIES = (0.0, 0.25, 0.5, 1.0)
"""Values of `serve.recommend.popularity_penalty` whose cost is measured."""

# A training.

_SAYS_NOTHING = ("name", "description", "seed")
"""Keys in which runs of one recipe may differ; the seed is that of `train`."""
_NO_METRICS = {
    "step", "epoch", "event", "split", "seconds", "rows", "rows_per_second", "positives", "auc_error_bound", "groups",
    "sums",
}  # fmt: skip


@dataclass(frozen=True)
class ComparedRun:
    """One of the runs."""

    name: str
    folder: RunFolder
    dataset: Dataset

    @classmethod
    def open(cls, folder: Path, name: str) -> "ComparedRun":
        """Raise UserError if it is no run, or its dataset is gone."""
        run = RunFolder.open(folder)
        return cls(name, run, Dataset.open(run.dataset_folder))

    @property
    def seed(self) -> int:
        return self.folder.recipe.train.seed

    def config(self) -> dict[str, Any]:
        """Return what it was made by, apart from what says nothing: JSON values by key."""
        recipe = self.folder.recipe.model_dump(mode="json")
        # How the dataset was made is what its manifest says, whatever the recipe of the training does.
        made = self.dataset.manifest.config
        config = {**recipe, "source": made["source"], "preprocess": made["preprocess"]}
        train = {key: value for key, value in recipe["train"].items() if key not in _SAYS_NOTHING}
        others = {key: value for key, value in config.items() if key not in _SAYS_NOTHING}
        return {**others, "train": train, "dataset": self.dataset.id[:12]}


@dataclass(frozen=True)
class ComparedRecipe:
    """The runs that differ in nothing but their seed."""

    name: str
    """Recipe of its first run."""
    runs: tuple[ComparedRun, ...]


def group_by_recipe(runs: Sequence[ComparedRun]) -> list[ComparedRecipe]:
    """Return the recipes of the runs, in the order of their first runs.

    Raises UserError if two runs have the recipe and the seed in common: the one would only repeat the other.
    """
    groups: list[tuple[dict[str, Any], list[ComparedRun]]] = []
    for run in runs:
        config = run.config()
        group = next((members for known, members in groups if known == config), None)
        if group is None:
            groups.append((config, [run]))
            continue
        twin = next((other for other in group if other.seed == run.seed), None)
        if twin is not None:
            raise UserError(f"{run.folder.path}: has the same recipe and seed as {twin.folder.path}; leave one out")
        group.append(run)
    return [ComparedRecipe(members[0].name, tuple(members)) for _, members in groups]


def config_differences(recipes: Sequence[ComparedRecipe]) -> dict[str, dict[str, Any]]:
    """Return, by key, the value of each recipe, where one differs from the first."""
    found = differing_values([recipe.runs[0].config() for recipe in recipes])
    names = [recipe.name for recipe in recipes]
    return {".".join(key): dict(zip(names, values, strict=True)) for key, values in found.items()}


def require_same_rows(runs: Sequence[ComparedRun], split: str) -> None:
    """Raise UserError unless the runs' datasets have the same held-out rows, by their labels, weights and groups."""
    first = runs[0]
    columns = None
    for run in runs[1:]:
        if run.dataset.id == first.dataset.id:
            continue
        columns = _row_columns(first.dataset, split) if columns is None else columns
        if not _same(columns, _row_columns(run.dataset, split)):
            raise UserError(
                f"{run.folder.path}: its dataset ({run.dataset.folder}) has other rows in '{split}' than that of "
                f"{first.folder.path}; only metrics of the same held-out rows can be compared"
            )


def _row_columns(dataset: Dataset, split: str) -> list[pa.ChunkedArray]:
    dataset.labelled_split(split)
    schema = dataset.schema
    names = [name for name in (schema.label, schema.weight, schema.group) if name is not None]
    table = pa.Table.from_batches(list(dataset.rows(split, names, MOST_ROWS)))
    return [table[name] for name in names]


def _same(first: Sequence[pa.ChunkedArray], second: Sequence[pa.ChunkedArray]) -> bool:
    pairs = zip(first, second, strict=True)
    return len(first) == len(second) and all(np.array_equal(a.to_numpy(), b.to_numpy()) for a, b in pairs)


def compare_runs(
    recipes: Sequence[ComparedRecipe],
    split: str,
    stored_model: Callable[[Path], AbstractContextManager[StoredModel]],
    progress: Progress,
) -> dict[str, Any]:
    """Score the held-out rows with every run, and tell which recipes are better, as JSON values.

    `stored_model` opens the model of a run's folder. Raises UserError if all rows have one label.
    """
    for run in (run for recipe in recipes for run in recipe.runs):
        if run.folder.recipe.evaluate.next_item_ranking is not None:
            raise UserError(
                f"{run.folder.path}: is measured by what people choose next, and rows of one label cannot be compared; "
                "`rayrec report` has its metrics with their errors"
            )
    # Score the held-out rows with every run, by recipe.
    scored: dict[str, list[ScoredRows]] = {}
    for recipe in recipes:
        for run in recipe.runs:
            with stored_model(run.folder.path) as model:
                rows = score_held_out(model, run.dataset, split, progress, name=run.name).scored
            scored.setdefault(recipe.name, []).append(rows)
    labels = {float(label) for rows in scored.values() for label in np.unique(rows[0].label)}
    if len(labels) < 2:
        raise UserError(f"all rows of '{split}' have the label {labels.pop():g}; compare on a dataset with both labels")
    # Each pair of recipes, by metric: the same resamples of the rows for all runs, and what seeds change.
    progress.stage("compare")
    repeats = repeats_of(scored)
    seeds = {metric: seed_variance(list(repeats[metric].values())) for metric in MAIN_METRICS}
    pairs = [(a, b) for number, a in enumerate(recipes) for b in recipes[number + 1 :]]
    found = [
        (a.name, b.name, compare_recipes(metric, repeats[metric][a.name], repeats[metric][b.name], seeds[metric]))
        for a, b in pairs
        for metric in MAIN_METRICS
    ]
    return {
        "split": split,
        "rows": recipes[0].runs[0].dataset.split(split).rows,
        "rows_scored": len(next(iter(scored.values()))[0]),
        "runs": [
            {
                "name": run.name,
                "folder": str(run.folder.path),
                "recipe": recipe.name,
                "seed": run.seed,
                "scored": {metric: repeats[metric][recipe.name].values[number] for metric in MAIN_METRICS},
                "metrics": run_metrics(run.folder),
                "curves": training_curves(run.folder),
            }
            for recipe in recipes
            for number, run in enumerate(recipe.runs)
        ],
        "config": config_differences(recipes),
        "seed_deviation": {
            metric: None if known is None else {"deviation": known[0] ** 0.5, "degrees_of_freedom": known[1]}
            for metric, known in seeds.items()
        },
        "differences": [{"first": a, "second": b, **_as_json(one)} for a, b, one in found],
    }


def _as_json(found: Difference) -> dict[str, Any]:
    low, high = found.interval
    figures = {key: value for key, value in vars(found).items() if key != "interval"}
    return {**figures, "low": low, "high": high, "why": _why(found)}


def _why(found: Difference) -> str:
    """Return what the verdict rests on, in a sentence."""
    if found.seed_error is None:
        if not found.is_beyond_rows:
            return "the choice of held-out rows alone may explain it"
        return (
            "the held-out rows do not explain it, but the seed may, because no recipe has two runs: "
            "train one again with another train.seed, and add that run"
        )
    if found.verdict == "no difference shown":
        return "the choice of held-out rows and seeds may explain it"
    return "neither the held-out rows nor the seeds explain it"


def run_metrics(run: RunFolder) -> dict[str, dict[str, float | None]]:
    """Return the metrics of the finished run by split; empty while it trains."""
    path = run.path / METRICS_FILE
    return json.loads(path.read_text()) if path.is_file() else {}


def training_curves(run: RunFolder) -> dict[str, Any]:
    """Return the numbers of a run by step, as JSON values.

    `train`: steps, and loss, learning rates, samples a second, share of time waiting for data, memory. `evaluations`:
    by split, or `progressive` for rows that were measured before they were trained on, steps and metrics.
    """
    records = list(read_history(run.history))
    measured: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        if record["event"] in ("evaluate", "progressive"):
            measured.setdefault(record.get("split", record["event"]), []).append(record)
    return {
        "train": _columns([record for record in records if record["event"] == "train"]),
        "evaluations": {name: _columns(of_split) for name, of_split in measured.items()},
    }


def _columns(records: list[dict[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for record in records for name in record if name not in _NO_METRICS)
    return {"step": [r["step"] for r in records], **{name: [r.get(name) for r in records] for name in names}}


def resources(run: RunFolder, command_seconds: float | None) -> dict[str, Any]:
    """Return where time (seconds) and memory (bytes) went, as JSON values.

    `command_seconds`: how long the command took, if that is known and it trained the whole run.
    """
    records = list(read_history(run.history))
    batch = run.recipe.train.global_batch_size
    computing = waiting = 0.0
    windows = [record for record in records if record["event"] in ("epoch", "train")]
    for before, record in pairwise(windows):
        if record["event"] == "epoch":
            continue
        # What lies between two records of training is not in their windows, but takes no step.
        seconds = (record["step"] - before["step"]) * batch / record["samples_per_second"]
        waiting += seconds * record["data_wait_share"]
        computing += seconds * (1 - record["data_wait_share"])
    progress = run.progress()
    trained = progress.seconds if progress is not None else 0.0
    parts = {"steps": computing, "waiting for data": waiting}
    parts["evaluations, checkpoints"] = max(0.0, trained - computing - waiting)
    if command_seconds is not None and command_seconds > trained:
        parts["start, evaluation at the end"] = command_seconds - trained
    plan = sharding_plan(run)
    begun = next((r for r in records if r["event"] == "epoch"), {})
    return {
        "seconds": parts,
        "peak_memory_bytes": max((r["peak_memory_bytes"] for r in records if r["event"] == "train"), default=None),
        "table_bytes": sum(plan["bytes_by_rank"]) + sum(plan["host_bytes_by_rank"]) if plan is not None else None,
        "device": begun.get("device"),
        "workers": begun.get("workers"),
        "precision": begun.get("precision"),
    }


def sharding_plan(run: RunFolder) -> dict[str, Any] | None:
    """Return the content of plan.json; None before the first step."""
    path = run.path / PLAN_FILE
    return json.loads(path.read_text()) if path.is_file() else None
