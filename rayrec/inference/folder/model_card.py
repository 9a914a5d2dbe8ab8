"""The text of MODEL_CARD.md (Mitchell et al. 2019, arXiv:1810.03993), from what is known of the run."""

from collections.abc import Sequence
from typing import Any

from rayrec.features.schema import Schema
from rayrec.inference.folder.model_folder import Metrics
from rayrec.ingest.dataset import Dataset
from rayrec.models.common.tables import EmbeddingTable
from rayrec.recipes import Recipe

_TEXT = """\
# {name}

{description}

A {kind} model that gives the probability of a positive label (a click) for one row of raw features.

## Intended use

Ranking and bidding by click probability for traffic like the training data: `rayrec serve` over HTTP, `rayrec predict`
for files, `rayrec.load_model` in Python. Features are given raw; the transforms and vocabularies are in this folder.

## Data

| split | rows | positive labels |
| --- | ---: | ---: |
{splits}

Rows rejected: {rejected:,}. Source: {sources}.
Features: {numeric} numeric, {categorical} categorical ({rows:,} embedding rows, {parameters:,} embedding weights).

## Metrics

{metrics}

## Configuration

Model: `{model}`

Training: {trained_on}global batch {batch:,}, {epochs} epoch(s), seed {seed}; {optimizers};
checkpoint `{checkpoint}`. All of it: `config.yaml`.

## Limits

- Scores are calibrated for the training data's share of positive labels; after a shift of traffic measure
  calibration before using them as probabilities.
- A categorical value that the training data had not, or too rarely, shares one embedding with missing values.
- No fairness analysis was made; features may stand in for properties of persons.
"""


def model_card(
    recipe: Recipe,
    schema: Schema,
    tables: Sequence[EmbeddingTable],
    dataset: Dataset,
    metrics: Metrics,
    checkpoint: str,
    judged: str | None = None,
) -> str:
    """Return the card in Markdown; `schema` and `tables` are the model's, `checkpoint` the name of the one exported.

    `judged`: which model the metrics are of, if not of this one.
    """
    model = recipe.model
    splits = "\n".join(
        f"| {name} | {split.rows:,} | {split.positives / split.rows:.2%} |"
        for name, split in dataset.manifest.splits.items()
        if split.rows
    )
    sources = [source.path.rpartition("/")[2] for source in dataset.manifest.sources]
    shown = ", ".join(sources[:3]) + (f" and {len(sources) - 3} more files" if len(sources) > 3 else "")
    train = recipe.train
    present = {table.part for table in tables}
    optimizers = [
        f"{'' if part is train else f'{name} part: '}tables {part.embedding_optimizer.kind} "
        f"(lr {part.embedding_optimizer.lr:g}), dense {part.dense_optimizer.kind} (lr {part.dense_optimizer.lr:g})"
        for name, part in train.by_part.items()
        if part is train or name in present
    ]
    return _TEXT.format(
        name=recipe.name,
        description=recipe.description or f"Made by rayrec from the recipe `{recipe.name}`.",
        kind=model.kind.upper(),
        splits=splits,
        rejected=sum(dataset.manifest.rejected.values()),
        sources=shown or "not recorded",
        numeric=schema.dense_width,
        categorical=len(schema.categorical),
        rows=sum(table.rows for table in tables),
        parameters=sum(table.rows * table.dim for table in tables),
        metrics=_metrics_table(metrics) + (f"\n\n{judged}" if judged else ""),
        model=model.model_dump_json(),
        trained_on="" if train.rows is None else f"the first {train.rows:,} rows of `train` at most, ",
        batch=train.global_batch_size,
        epochs=train.epochs,
        seed=train.seed,
        optimizers="; ".join(optimizers),
        checkpoint=checkpoint,
    )


def tables_section(precision: str, loss: dict[str, Any] | None) -> str:
    """The section on tables that are not stored as float32; `loss` as `export_checkpoint` returns it."""
    text = f"## Tables\n\nStored as {precision}; rows are turned back into float32 when they are looked up.\n"
    if loss is None:
        return text + "What that changes was not measured: the dataset has no other split with labels than `train`.\n"
    changes = {name: value for name, value in loss.items() if name.endswith("_change") and value is not None}
    listed = "".join(f"{name.removesuffix('_change')} {value:+.2e}, " for name, value in changes.items())
    return (
        f"{text}Against float32, on {loss['rows']:,} rows of `{loss['split']}`: {listed}scores differ by "
        f"{loss['mean_score_difference']:.1e} on average, {loss['max_score_difference']:.1e} at most.\n"
    )


def _metrics_table(metrics: Metrics) -> str:
    rows = [
        f"| {split} | {name} | {'undefined' if value is None else f'{value:.6g}'} |"
        for split, values in metrics.items()
        for name, value in values.items()
    ]
    if not rows:
        return "The checkpoint was not evaluated; `rayrec evaluate` does it."
    return "\n".join(["| split | metric | value |", "| --- | --- | ---: |", *rows])
