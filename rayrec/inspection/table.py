"""Inspects a table: a sample of its files, what each column is, and a recipe for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rayrec.common.errors import ConfigError, UserError
from rayrec.inspection.columns import Column, describe_column
from rayrec.inspection.decisions import Decision, decide, find_roles, table_warnings
from rayrec.inspection.file_form import FileForm, recognize
from rayrec.inspection.interactions import find_interactions, inspect_interactions, reads_interactions
from rayrec.inspection.label import find_label
from rayrec.inspection.recipe_text import write_recipe
from rayrec.raw.files import list_inputs
from rayrec.raw.sample import Sample, sample_rows

MODEL_OF_ROWS, MODEL_OF_INTERACTIONS = "wide_deep", "neumf"
"""The models of recipes that name none: for rows with a label, and for who chose what."""
ROWS_OF_INTERACTIONS = 2_000_000
"""Rows of the sample of a table of who chose what, at least."""


@dataclass(frozen=True)
class InspectedTable:
    """What was found out about a table."""

    sample: Sample
    decisions: Sequence[Decision]
    warnings: list[str]
    recipe: str
    """The YAML of a recipe for it."""

    def columns_as_json(self) -> list[dict[str, Any]]:
        """The facts about each column, and what it becomes."""
        return [_as_json(decision, self.sample.total_rows) for decision in self.decisions]


def inspect_table(
    paths: Sequence[str], label: str | None, model: str | None, rows: int, command: str, seed: int = 0
) -> InspectedTable:
    """Inspect `rows` rows of the files at `paths`.

    `label` is a column or a condition, None to look for one; `model` the kind of the recipe's model, None for one that
    suits the table; `command` what the recipe says it was written by. Raises UserError.
    """
    files = list_inputs(paths)
    form = recognize(files[0])
    sample = sample_rows(files, form.settings, rows, seed)
    if not sample.rows.num_rows:
        raise UserError(f"{files[0].name}: no rows; give files with rows")
    columns = _describe(sample, form)
    pairs = find_interactions(columns, form)
    if model is None:
        # Of who chose what, and perhaps when, there is nothing else to learn; a rating of two values may be a label.
        is_plain = label is None and form.has_names and pairs is not None and not pairs.others
        is_label = pairs is not None and pairs.rating is not None and pairs.rating.distinct <= 2
        model = MODEL_OF_INTERACTIONS if is_plain and not is_label else MODEL_OF_ROWS
    if reads_interactions(model):
        if pairs is None:
            names = ", ".join(map(repr, columns))
            raise ConfigError(
                f"--model {model}: no one column of users, and no one of items, among {names}; rename them"
            )
        if sample.rows.num_rows < sample.total_rows:
            # How many rows a person has cannot be told from a few rows of all people.
            sample = sample_rows(files, form.settings, max(rows, ROWS_OF_INTERACTIONS), seed)
            columns = _describe(sample, form)
            pairs = find_interactions(columns, form) or pairs
        choices = None if label is None else find_label(columns, label)
        return InspectedTable(sample, *inspect_interactions(command, files[0], sample, form, pairs, choices, model))
    found = find_label(columns, label)
    roles = find_roles(columns, found)
    decisions = decide(columns, found, roles, total_rows=sample.total_rows, seed=seed)
    if not any(decision.rules for decision in decisions):
        why = "; ".join(f"{d.column.name} {d.reason}" for d in decisions if d.role == "ignored")
        raise UserError(f"{paths[0]}: no column can be a feature ({why or 'there is none besides the label'})")
    form = form.with_null_values(sorted({word for d in decisions if d.rules for word in d.column.null_words}))
    recipe = write_recipe(command, sample, form, found, roles, decisions, model)
    return InspectedTable(sample, decisions, table_warnings(decisions, found), recipe)


def _describe(sample: Sample, form: FileForm) -> dict[str, Column]:
    return {
        name: describe_column(name, sample.rows[name], delimited=form.is_delimited, named=form.has_names)
        for name in sample.rows.column_names
    }


def _as_json(decision: Decision, total_rows: int) -> dict[str, Any]:
    column = decision.column
    return {
        "name": column.name,
        "type": column.type,
        "role": decision.role,
        "kind": decision.kind,
        "reason": decision.reason,
        "distinct": column.distinct,
        "distinct_estimate": column.distinct_estimate(total_rows),
        "missing_share": column.missing_share,
        "examples": column.examples(),
        "range": column.range,
        "auc": {name: reading.auc for name, reading in decision.auc.items()},
        "rules": [{"columns": column.name, **rule} for rule in decision.rules],
    }
