"""MODEL_CARD.md (Mitchell et al. 2019, arXiv:1810.03993), from what is known of the run."""

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from rayrec.common.text import format_number, printable
from rayrec.config.evaluate import shown_metrics
from rayrec.config.table import LabelCondition
from rayrec.features.schema import Schema
from rayrec.inference.folder.model_folder import Metrics
from rayrec.inference.past import history_facts
from rayrec.ingest.dataset import Dataset
from rayrec.models.common.embedding_tables import EmbeddingTable
from rayrec.recipes import Recipe

Baselines = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Metrics of simpler models by split, model and name."""

_MOST_FEATURES = 60
_COUNTS = {"rows", "positives", "groups"}
_TEXT = """\
# {name}

{description}

A `{kind}` model. {predicts}

## Intended use

{use}

## Data

{splits}

Positive: {outcome}. Rejected rows: {rejected:,}. Source: {sources}.

## Features

{numeric} numbers, {categorical} categories; {rows:,} embedding rows, {parameters:,} embedding weights.

{features}
{past}
## Metrics

{metrics}

## Model

{model}

## Training

{training}

All settings: `config.yaml`.

## Limits

- {probabilities}
- A category that the training data did not have, or too rarely, shares one embedding with missing values.
- Nobody has analysed fairness. Features may stand in for properties of persons.
"""


_OF_ROWS = """\
Ranking rows by this probability, and decisions that use it, for rows like the training data. `rayrec serve` answers
over HTTP, `rayrec predict` scores files, `rayrec.load_model` is for Python. Features are given raw: their transforms
and vocabularies are in this folder."""
_OF_NEXT_ITEMS = """\
Recommending items to anybody whose items are known, in this folder or in the request, and finding items like an item.
`rayrec serve` answers over HTTP, `rayrec predict --top-k` recommends to everybody in this folder,
`rayrec.load_recommender` is for Python."""
_SHARES = """\
The probabilities of all items add up to one: they tell which item is next, not whether any will be."""
_CALIBRATED = """\
The probabilities fit the training data's share of positives. If that share shifts, measure calibration again before
  using scores as probabilities."""
_NOT_CALIBRATED = """\
Negatives were drawn, and their number decides how high scores are: use scores to rank items of a user, not as
  probabilities."""


def model_card(
    recipe: Recipe,
    schema: Schema,
    tables: Sequence[EmbeddingTable],
    dataset: Dataset,
    metrics: Metrics,
    checkpoint: str,
    judged: str | None = None,
    baselines: Baselines | None = None,
) -> str:
    """Return the card in Markdown; `schema` and `tables` are the model's, `checkpoint` the name of the one exported.

    `judged`: which model the metrics are of, if not of this one. `baselines`: what simpler models reach.
    """
    splits = [
        {"split": name, "rows": f"{split.rows:,}",
         "positive": f"{format_number(100 * split.positives / split.rows)}%" if split.labelled else "not known"}
        for name, split in dataset.manifest.splits.items()
        if split.rows
    ]  # fmt: skip
    is_next = recipe.model.scores_next_items
    sources = [_plain(source.path.rpartition("/")[2]) for source in dataset.manifest.sources]
    shown = ", ".join(sources[:3]) + (f" and {len(sources) - 3} more files" if len(sources) > 3 else "")
    return _TEXT.format(
        name=_plain(recipe.name),
        description=recipe.description or f"Made by rayrec from the recipe {_code(recipe.name)}.",
        kind=recipe.model.kind,
        predicts="From the items that somebody has, in order of time, it predicts which one is next."
        if is_next
        else f"From a row of raw features it predicts the probability that {_outcome(recipe, schema)}.",
        use=_OF_NEXT_ITEMS if is_next else _OF_ROWS,
        outcome=_outcome(recipe, schema),
        splits=_table(splits),
        rejected=sum(dataset.manifest.rejected.values()),
        sources=shown or "not recorded",
        numeric=schema.dense_width,
        categorical=len(schema.categorical),
        rows=sum(table.rows for table in tables),
        parameters=sum(table.rows * table.dim for table in tables),
        features=_features(schema),
        past=_past(schema),
        probabilities=_SHARES if is_next else _NOT_CALIBRATED if schema.has_drawn_negatives else _CALIBRATED,
        metrics=_metrics(
            {
                split: shown_metrics(values, drawn_negatives=schema.has_drawn_negatives)
                for split, values in metrics.items()
            },
            baselines or {},
        )
        + (f"\n\n{textwrap.fill(judged, 120)}" if judged else ""),
        model=_settings(recipe.model.model_dump(mode="json", exclude={"kind", "part"})),
        training=_training(recipe, tables, checkpoint),
    )


def _outcome(recipe: Recipe, schema: Schema) -> str:
    """Return what the model predicts the probability of, by the name of the label."""
    if schema.interactions is not None:
        return f"the {_plain(schema.interactions.user)} chooses the {_plain(schema.interactions.item)}"
    label = getattr(recipe.source, "label", None)
    if isinstance(label, LabelCondition) and label.at_least is not None:
        return f"{_code(label.column)} is at least {label.at_least:g}"
    if isinstance(label, LabelCondition) and label.equals is not None:
        return f"{_code(label.column)} is {' or '.join(map(_plain, label.equals))}"
    return f"{_code(schema.label)} is 1"


def _code(text: str) -> str:
    """Return a text as code of Markdown, or if that cannot be, as plain text."""
    return _plain(text) if "`" in text else f"`{printable(text)}`"


def _plain(text: str) -> str:
    """Return a text that Markdown shows as it is; an underscore within a word means nothing to it."""
    return re.sub(r"[\\`*|<>&\[\]~]|\b_|_\b", r"\\\g<0>", printable(text))


def _features(schema: Schema) -> str:
    rows = [
        {"feature": feature.name, "kind": feature.kind, "made of": ", ".join(feature.columns),
         "values": f"{size:,}" if (size := getattr(feature, "cardinality", None)) is not None else ""}
        for feature in schema.features[:_MOST_FEATURES]
    ]  # fmt: skip
    left = len(schema.features) - len(rows)
    return _table(rows) + (f"\n\nAnd {left:,} more, in `schema.json`." if left else "")


def _past(schema: Schema) -> str:
    """Return what is known of what happened before a row; nothing without histories."""
    rows = history_facts(schema)
    if not rows:
        return ""
    return f"""
Of what happened before a row this folder knows events up to a time; those of which a request tells come after them.

{_table(rows)}
"""


def _metrics(metrics: Metrics, baselines: Baselines) -> str:
    """Return a row for each split, and below it one for each simpler model."""
    rows: list[dict[str, Any]] = []
    for split, values in metrics.items():
        rows.append({"split": split, "predicted by": "this model", **values})
        rows += [{"split": split, "predicted by": model, **found} for model, found in baselines.get(split, {}).items()]
    if not rows:
        return "The checkpoint was not evaluated; `rayrec evaluate` does it."
    names = dict.fromkeys(name for row in rows for name in row)
    return _table([{name: _measure(name, row[name]) if name in row else "" for name in names} for row in rows])


def _measure(name: str, value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or "undefined"
    return f"{value:,.0f}" if name in _COUNTS else format_number(value)


def _training(recipe: Recipe, tables: Sequence[EmbeddingTable], checkpoint: str) -> str:
    train, present = recipe.train, {table.part for table in tables}
    settings: dict[str, Any] = {} if train.rows is None else {"rows of train, at most": f"{train.rows:,}"}
    settings |= {"batch size": f"{train.global_batch_size:,}", "epochs": train.epochs, "seed": train.seed}
    for name, part in train.by_part.items():
        if part is train or name in present:
            of_part = "" if part is train else f" of the {name} part"
            for what, optimizer in (("tables", part.embedding_optimizer), ("dense layers", part.dense_optimizer)):
                settings[f"optimizer of the {what}{of_part}"] = f"{optimizer.kind}, learning rate {optimizer.lr:g}"
    return _settings(settings | {"checkpoint": checkpoint})


def _settings(values: Mapping[str, Any]) -> str:
    """Return a table of the settings that have a value."""
    rows = [
        {"setting": name, "value": _setting(value)} for name, value in values.items() if value not in (None, {}, [])
    ]
    return _table(rows)


def _setting(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_setting(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return ", ".join(map(_setting, value))
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return a table of Markdown that is aligned as a text, too; numbers to the right."""
    if not rows:
        return "None."
    rows = [{_plain(name): _plain(cell) for name, cell in row.items()} for row in rows]
    names = list(rows[0])
    widths = {name: max(len(name), 4, *(len(row[name]) for row in rows)) for name in names}
    right = {name for name in names if not any(row[name].strip("0123456789.,-%e+") for row in rows)}

    def line(cells: Mapping[str, str]) -> str:
        texts = (cells[n].rjust(widths[n]) if n in right else cells[n].ljust(widths[n]) for n in names)
        return f"| {' | '.join(texts)} |"

    rule = {name: "-" * (widths[name] - 1) + (":" if name in right else "-") for name in names}
    return "\n".join([line(dict(zip(names, names, strict=True))), line(rule), *map(line, rows)])


def tables_section(precision: str, loss: dict[str, Any] | None) -> str:
    """Return the section on tables that are not stored as float32; `loss` as `export_checkpoint` returns it."""
    text = f"## Tables\n\nStored as {precision}; a row becomes float32 again when it is looked up.\n"
    if loss is None:
        return text + "The effect was not measured: there are no rows with labels beside `train` that it scores.\n"
    changes = {name: value for name, value in loss.items() if name.endswith("_change") and value is not None}
    listed = "".join(f"{name.removesuffix('_change')} {value:+.2e}, " for name, value in changes.items())
    return (
        f"{text}Against float32, on {loss['rows']:,} rows of `{loss['split']}`: {listed}scores differ by "
        f"{loss['mean_score_difference']:.1e} on average, {loss['max_score_difference']:.1e} at most.\n"
    )
