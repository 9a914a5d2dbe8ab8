"""Turns a checkpoint of a run into a model folder, in one process, a few tables at a time."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray

from rayrec.common.progress import SilentProgress
from rayrec.config.evaluate import MAIN_METRICS, EvaluateConfig
from rayrec.features.histories import horizon_of, means_file, write_recent
from rayrec.features.lookups import lookup_folder
from rayrec.features.raw_columns import SECOND, STATISTICS_FOLDER, History, Lookup
from rayrec.features.schema import Schema
from rayrec.inference.batch.scoring import collect_split
from rayrec.inference.examples import ReferenceTraffic, rows_of_split, write_examples, write_reference_rows
from rayrec.inference.folder.facts import KnownItems, can_recommend
from rayrec.inference.folder.model_folder import CARD_FILE, Metrics, ModelFolder, copy, new_model_folder
from rayrec.inference.folder.table_files import TablePrecision, quantise_tables
from rayrec.inference.model_card import Baselines, model_card, tables_section
from rayrec.inference.predictor import Predictor
from rayrec.inference.scorer import CheckpointModel
from rayrec.ingest.dataset import Dataset
from rayrec.ingest.held_out_rows import (
    HELD_OUT_ROWS_FILE,
    MOST_LOOKED_AT,
    HeldOutRows,
    held_out_rows,
    read_held_out_rows,
)
from rayrec.metrics.binary import BinaryMetrics
from rayrec.models.common.embedding_tables import EmbeddingTable
from rayrec.recipes import Recipe
from rayrec.store.artifact import Parent
from rayrec.store.files import files_below, write_atomically, write_json

_MOST_COMPARED_ROWS = 1_000_000
"""Both precisions score the same rows, so that their difference is far more exact than each metric."""


def export_checkpoint(
    checkpoint: Path,
    output: Path,
    *,
    recipe: Recipe,
    dataset: Dataset,
    metrics: Metrics,
    judged: str | None = None,
    baselines: Baselines | None = None,
    tables: TablePrecision = "fp32",
    refit_of: Dataset | None = None,
    made_of: Mapping[str, Parent] | None = None,
    base: Schema | None = None,
) -> dict[str, Any] | None:
    """Write the model folder of `checkpoint`, a folder of torch.distributed.checkpoint, to `output`.

    A few tables are read at once, each shard on its own, and written through the map of the table's file, so that
    memory needs to hold some shards, not the model.

    Args:
        recipe: That of the run.
        dataset: What the model was trained on; the model folder takes its vocabularies and statistics.
        metrics: Of this checkpoint, by split.
        judged: Which model the metrics are of, if not of this checkpoint; for the model card.
        baselines: Metrics of simpler models by split, for the model card.
        tables: What the tables are stored in; less than fp32 is compared with it on the rows of a split.
        refit_of: The dataset that the metrics are of, if the model was then trained on all of its rows; some of its
            held-out rows go into the model folder.
        made_of: The checkpoint and the dataset, for the manifest.
        base: The schema of the model that this one is to be a delta of.

    Return that comparison: the split and its rows, the metrics of both, their changes and the differences of the
    scores; None for fp32, or without rows whose labels are known. Raises UserError if the checkpoint lacks a weight of
    the model or holds it in another shape.
    """
    weights = CheckpointModel(checkpoint, recipe, dataset.schema)
    schema = with_recent_past(weights.schema, refit_of or dataset, base)
    loss: dict[str, Any] | None = None
    with new_model_folder(
        output,
        schema=schema,
        tables=weights.tables,
        recipe=recipe,
        metrics=metrics,
        card=model_card(recipe, weights.schema, weights.tables, dataset, metrics, checkpoint.name, judged, baselines),
        vocabularies_in=dataset.folder,
        dense=weights.dense(),
        fill_table=weights.fill_table,
        made_of=made_of,
        data_time=None if dataset.manifest.times is None else dataset.manifest.times.last,
    ) as folder:
        if can_recommend(weights.schema):
            KnownItems.read(dataset).save(folder)
        write_statistics(schema, dataset.folder / STATISTICS_FOLDER, folder / STATISTICS_FOLDER)
        preferred = recipe.train.evaluation_split
        if tables != "fp32":
            loss = _with_smaller_tables(folder, weights.tables, tables, dataset, preferred)
            card = (folder / CARD_FILE).read_text()
            write_atomically(folder / CARD_FILE, f"{card}\n{tables_section(tables, loss)}")
        predictor = Predictor(ModelFolder.open_unfinished(folder))
        write_examples(predictor)
        split = _split(dataset, preferred)
        if split is not None and not predictor.scores_next_items:
            ReferenceTraffic.measure(dataset, split, predictor).save(folder)
            write_reference_rows(predictor, rows_of_split(dataset, split, predictor))
        if split is not None and split != "train":
            _write_held_out_rows(dataset, split, predictor)
        if refit_of is not None:
            kept = read_held_out_rows(refit_of.folder).get(_split(refit_of, preferred) or "")
            if kept is not None and kept.rows:
                kept = kept.model_copy(update={"trained_on": True})
                write_json(folder / HELD_OUT_ROWS_FILE, kept.model_dump(mode="json"))
    return loss


def with_recent_past(schema: Schema, dataset: Dataset, base: Schema | None = None) -> Schema:
    """Return the schema whose histories tell rows from the first held-out one on, if those are the latest rows; of a
    delta those that the histories of its `base` tell, so that keys without new events stay what they are there.
    """
    times = dataset.manifest.times
    first = None if times is None or times.held_out is None else np.array([round(times.held_out * SECOND)])
    begun = {} if base is None else {history.rule: history.since for history in base.histories}

    def recent(lookup: Lookup) -> Lookup:
        if not isinstance(lookup, History):
            return lookup
        since = None if first is None else int(horizon_of(lookup, first)[0])
        return lookup.model_copy(update={"since": begun.get(lookup.rule, since)})

    return schema.model_copy(update={"lookups": tuple(map(recent, schema.lookups))})


def write_statistics(schema: Schema, given: Path, output: Path) -> None:
    """Copy the tables that rows are completed from; those of histories as far as the schema says that they tell."""
    histories = [history for history in schema.histories if history.since is not None]
    tables = {lookup_folder(given, history): history for history in histories}
    left_out = {path for table in tables for path in (table, means_file(table))}
    for name in files_below(given) if given.is_dir() else ():
        if left_out.isdisjoint((given / name, (given / name).parent)):
            copy(given / name, output / name)
    for table, history in tables.items():
        assert history.since is not None
        write_recent(history, history.since, table, lookup_folder(output, history))


def _write_held_out_rows(dataset: Dataset, split: str, predictor: Predictor) -> None:
    """Write a few raw rows of a split into the model folder: those that the dataset keeps, or positive pairs."""
    kept = read_held_out_rows(dataset.folder).get(split)
    if kept is None and can_recommend(predictor.schema):
        kept = _held_out_pairs(dataset, split, predictor)
    if kept is not None and kept.rows:
        write_json(predictor.folder / HELD_OUT_ROWS_FILE, kept.model_dump(mode="json"))


def _held_out_pairs(dataset: Dataset, split: str, predictor: Predictor) -> HeldOutRows:
    """Return the first positive pairs of users and items, as the vocabularies have them."""
    schema = predictor.schema
    names = [feature.name for feature in schema.features]
    rows = pa.Table.from_batches(dataset.rows(split, [*names, schema.label], MOST_LOOKED_AT))
    rows = rows.filter(pc.equal(rows[schema.label], 1))
    values = {}
    for feature in schema.categorical:
        ids = rows[feature.name].to_numpy().astype(np.int64)
        found = predictor.model_folder.vocabulary(feature).values(np.maximum(ids, 1)).to_pylist()
        values[feature.columns[0]] = [value if id_ else None for value, id_ in zip(found, ids.tolist(), strict=True)]
    label = rows[schema.label]
    return held_out_rows(split, pa.table({**values, schema.label: label}), schema.raw_columns, schema.label)


def _split(dataset: Dataset, preferred: str) -> str | None:
    """Return the split to look at: `preferred`, or else another one that has rows."""
    splits = dataset.manifest.splits
    return next((name for name in (preferred, "test", "train") if name in splits and splits[name].rows > 0), None)


def _with_smaller_tables(
    folder: Path, tables: Sequence[EmbeddingTable], precision: TablePrecision, dataset: Dataset, preferred: str
) -> dict[str, Any] | None:
    """Quantise a folder's tables; return what that changed on `preferred`, or else another labelled split, if any, of a
    model that scores rows.
    """
    split = dataset.split_to_judge(preferred)
    if split is None or ModelFolder.open_unfinished(folder).recipe.model.scores_next_items:
        quantise_tables(folder, tables, precision)
        return None
    before, metrics_before = _labelled_scores(folder, dataset, split)
    quantise_tables(folder, tables, precision)
    after, metrics_after = _labelled_scores(folder, dataset, split)
    difference = np.abs(after.astype(np.float64) - before)
    changes = {}
    for name in MAIN_METRICS:
        old, new = metrics_before[name], metrics_after[name]
        changes[f"{name}_change"] = None if old is None or new is None else new - old
    return {
        "split": split,
        "rows": len(before),
        "fp32": metrics_before,
        "stored": metrics_after,
        **changes,
        "mean_score_difference": float(difference.mean()),
        "max_score_difference": float(difference.max()),
    }


def _labelled_scores(folder: Path, dataset: Dataset, split: str) -> tuple[NDArray[np.float32], dict[str, float | None]]:
    """Return the probabilities of the first rows of a split, and their AUC and log loss. Raises UserError without
    labels.
    """
    dataset.labelled_split(split)
    label, metrics = dataset.schema.label, BinaryMetrics.from_config(EvaluateConfig())
    rows, scores = collect_split(
        ModelFolder.open_unfinished(folder), dataset, split, [label], _MOST_COMPARED_ROWS, SilentProgress()
    )
    logits, labels = torch.from_numpy(scores), torch.from_numpy(rows[label].to_numpy().astype(np.float32))
    metrics.update(logits, labels, torch.ones(len(logits)))
    found = metrics.compute()
    return logits.sigmoid().numpy(), {name: found[name] for name in MAIN_METRICS}
