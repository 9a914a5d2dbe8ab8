"""Inspects a table: a sample of its files, what each column is, and a recipe for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.common.errors import ConfigError, UserError
from rayrec.common.plugins import MODELS
from rayrec.config.preprocess import RowsPreprocessConfig
from rayrec.config.table import TableSourceConfig
from rayrec.config.validation import parse_yaml
from rayrec.ingest.dataset import FoundKeys
from rayrec.inspection.split_checks import describe_new_values
from rayrec.inspection.table.column_forms import profile_column
from rayrec.inspection.table.columns import NULL_WORDS, ColumnProfile
from rayrec.inspection.table.decisions import (
    Decision,
    Regressed,
    decide,
    logistic_regression,
    table_warnings,
    with_number_formats,
)
from rayrec.inspection.table.file_form import FileForm, FoundEncoding, find_encoding, first_with_rows, recognize
from rayrec.inspection.table.histories import FoundHistory, find_past
from rayrec.inspection.table.recipe_text import (
    find_interactions,
    inspect_interactions,
    planned_split,
    write_recipe,
)
from rayrec.inspection.table.roles import Label, find_label, find_roles
from rayrec.preprocessing.column_plan import plan_columns
from rayrec.raw.input_files import InputFile, list_inputs
from rayrec.raw.rows import LEFT_OUT, Reason, describe_others, describe_reasons, describe_rejected
from rayrec.raw.sample import LeftOut, Sample, read_again, sample_rows
from rayrec.raw.table_reader import open_table
from rayrec.recipes import RecipeContent

_FEW_OF_A_KIND = 10
_SAFETY = 2
"""Allowance for files that were not read whole: rows that were not seen may be worse than those of the sample."""

MODEL_OF_ROWS, MODEL_OF_INTERACTIONS = "wide_deep", "neumf"
"""The models of recipes that name none: for rows with a label, and for who chose what."""
ROWS_OF_INTERACTIONS = 2_000_000
"""Rows of the sample of a table of who chose what, at least."""


@dataclass(frozen=True)
class InspectedTable:
    """Facts about a table's columns and rows."""

    sample: Sample
    decisions: Sequence[Decision]
    warnings: list[str]
    recipe: str
    """The YAML of a recipe for it."""
    left_out: LeftOut = field(default_factory=LeftOut)
    """The lines of the sample's places that preprocessing by this recipe leaves out; not counted of interactions."""
    can_run: bool = True
    """Whether few enough rows are bad for preprocessing."""
    regressed: Regressed = field(default_factory=Regressed)
    """What a logistic regression on the features says, on rows of the sample that it was not fitted to."""
    label: NDArray[np.float64] | None = None
    """(n,) the label of each row of the sample, NaN if it is not known; None where every row is a choice."""
    histories: Sequence[FoundHistory] = ()
    """Keys whose past says more, which the recipe has."""
    known_values: Mapping[str, FoundKeys] = field(default_factory=dict)
    """Rows of the sample that the recipe's split would hold out: see `_known_values`."""

    @property
    def new_values(self) -> str | None:
        """Return how many rows of `test` have values that `train` has not; None where next to none has."""
        pasts = [history.by[0] for history in self.histories if len(history.by) == 1]
        if MODELS.configs[parse_yaml(self.recipe)["model"]["kind"]].scores_next_items:
            pasts += [decision.column.name for decision in self.decisions if decision.role == "user"]
        return describe_new_values("test", self.known_values, pasts)

    def columns_as_json(self) -> list[dict[str, Any]]:
        """Return the facts about each column, and what it becomes."""
        return [
            {
                "name": decision.column.name,
                "type": decision.column.type,
                "role": decision.role,
                "kind": decision.kind,
                "reason": decision.reason,
                "distinct": decision.column.distinct,
                "distinct_estimate": decision.column.distinct_estimate(self.sample.total_rows),
                "missing_share": decision.column.missing_share,
                "examples": decision.column.examples(),
                "range": decision.column.range,
                "auc": {name: reading.auc for name, reading in decision.auc.items()},
                "rules": [{"columns": decision.column.name, **rule} for rule in decision.rules],
            }
            for decision in self.decisions
        ]


def inspect_table(
    paths: Sequence[str],
    label: str | None,
    model: str | None,
    rows: int,
    command: str,
    seed: int = 0,
    missing_label: int | None = None,
) -> InspectedTable:
    """Inspect `rows` rows of the files at `paths`.

    `label` is a column or a condition, None to look for one; `missing_label` that of rows without one; `model` the kind
    of the recipe's model, None for one that suits the table; `command` what the recipe says it was written by. What the
    recipe would leave out is counted by reading again; a column with too many bad values is taken for text, or else
    ignored. Raises UserError.
    """
    files = list_inputs(paths)
    sample, form = _read_sample(files, label, rows, seed)
    columns = _describe(sample, form)
    # Who chose what, and perhaps when, has nothing else to learn from; a rating of two values may be a label.
    pairs = find_interactions(columns, form)
    if model is None:
        is_plain = label is None and form.has_names and pairs is not None and not pairs.others
        is_label = pairs is not None and pairs.rating is not None and pairs.rating.distinct <= 2
        model = MODEL_OF_INTERACTIONS if is_plain and not is_label else MODEL_OF_ROWS
    if not MODELS.configs[model].needs_interactions:
        return _inspect_rows(paths[0], sample, form, columns, label, model, command, seed, missing_label)
    if pairs is None:
        names = ", ".join(map(repr, columns))
        raise ConfigError(
            f"--model {model}: needs one column of users and one of items, recognized by names such as user_id and "
            f"item_id; rename yours, or write a recipe with source: {{kind: interactions, user: NAME, item: NAME}}; "
            f"the files have {names}"
        )
    if sample.rows.num_rows < sample.total_rows:
        # How many rows a person has cannot be told from a few rows of all people.
        sample = sample_rows(files, form.settings, max(rows, ROWS_OF_INTERACTIONS), seed)
        columns = _describe(sample, form)
        pairs = find_interactions(columns, form) or pairs
    choices = None if label is None else find_label(columns, label)
    decisions, warnings, text = inspect_interactions(command, files[0], sample, form, pairs, choices, model)
    labels = None if choices is None else choices.values
    split = parse_yaml(text)["preprocess"]["split"]
    known = _known_values(decisions, _divide(split, decisions, labels, pairs.time, None, seed))
    return InspectedTable(sample, decisions, [*form.warnings, *warnings], text, label=labels, known_values=known)


def _read_sample(files: Sequence[InputFile], label: str | None, rows: int, seed: int) -> tuple[Sample, FileForm]:
    """Return a sample of the rows, and how the files are written. Raises UserError if no row can be read."""
    first = first_with_rows(files)
    form = recognize(first, label)
    sample = sample_rows(files, form.settings, rows, seed)
    bad = sample.unreadable[Reason.UTF8]
    if form.settings.encoding is None and bad and bad > len(_texts_beyond_ascii(sample)):
        # Texts that are not UTF-8 begin after the first lines. As Latin-1, their bytes stay what they are.
        form = recognize(first, label, FoundEncoding("latin-1", None))
        texts = _texts_beyond_ascii(sample_rows(files, form.settings, rows, seed))
        form = recognize(first, label, find_encoding("\n".join(texts).encode("latin-1", "ignore")))
        sample = sample_rows(files, form.settings, rows, seed)
    if not sample.rows.num_rows:
        lost = read_again(sample, sample.table.reader([]))
        why = f"no row can be read: {_bad_rows(lost)}" if lost.bad else "no rows; give files with rows"
        raise UserError(f"{files[0].name}: {why}")
    return sample, form


def _inspect_rows(
    path: str,
    sample: Sample,
    form: FileForm,
    columns: dict[str, ColumnProfile],
    wanted_label: str | None,
    model: str,
    command: str,
    seed: int,
    missing_label: int | None,
) -> InspectedTable:
    """Inspect rows with a label, in which a model finds what goes with it.

    What preprocessing would reject can only be told by reading: so the recipe is tried on the sample's rows, and while
    too many are bad, the columns to blame become plainer: a number becomes a text, and a text nothing. Each column does
    so at most twice, so the loop ends.
    """
    while True:
        # Decide what each column becomes.
        label = find_label(columns, wanted_label, missing_label)
        roles = find_roles(columns, label)
        decisions = decide(columns, label, roles, total_rows=sample.total_rows, seed=seed)
        decisions, number_format = with_number_formats(decisions)
        if not any(decision.rules for decision in decisions):
            why = "; ".join(f"{d.column.name} {d.reason}" for d in decisions if d.role == "ignored")
            raise UserError(f"{path}: no column can be a feature ({why or 'there is none besides the label'})")
        # Write it down as a recipe, and try that.
        written = form.having(
            "null_values", _null_values(columns, label, decisions), "found among numbers, times or labels"
        )
        written = written.having("number_format", number_format, "how people write numbers; a rule may say another")
        regressed = logistic_regression(columns, label, roles, decisions, seed)
        split, _ = planned_split(model, sample.total_rows, roles, decisions)
        time, group = (None if name is None else columns[name] for name in (roles.time, roles.group or roles.unit))
        division = _divide(split, decisions, label.values, time, group, seed)
        past = find_past(columns, label, roles, decisions, regressed.pairs, division.held_out, seed)
        text = write_recipe(command, sample, written, label, roles, decisions, model, regressed, past)
        left_out, most = _left_out(sample, text)
        can_run = left_out.share <= (most if sample.is_whole else most / _SAFETY)
        worst = [name for name, _ in left_out.columns.most_common() if name != label.column]
        if can_run or not worst:
            break
        limit = most * (left_out.rows + left_out.bad)
        for name in [name for name in worst if left_out.columns[name] > limit] or worst[:1]:
            columns[name] = _plainer(columns[name], left_out)

    # What a person should look at before training.
    warnings = [*sample.table.warnings, *form.warnings, *table_warnings(decisions, roles)]
    if sample.others:
        warnings.append(describe_others(sample.others))
    fewer = min((label.values == side).sum() for side in (0, 1))
    if sample.is_whole and fewer < _FEW_OF_A_KIND:
        warnings.append(f"{label.column}: {fewer} rows of one kind are too few to train and to measure on")
    if unknown := left_out.reasons[Reason.NO_LABEL]:
        share = unknown / (unknown + left_out.bad + left_out.rows)
        warnings.append(
            f"{label.column}: {share:.2%} of the rows have no label and are left out; --missing-label gives them one"
        )
    if left_out.bad:
        refused = "" if can_run else "; `rayrec preprocess` refuses so many: fix them"
        warnings.append(f"{_bad_rows(left_out)}{refused}")
    known = _known_values(decisions, division)
    return InspectedTable(
        sample, decisions, warnings, text, left_out, can_run, regressed, label.values, past.histories, known
    )


def _null_values(columns: Mapping[str, ColumnProfile], label: Label, decisions: Sequence[Decision]) -> tuple[str, ...]:
    """Return the texts that stand for missing values in all columns."""
    words = {word for d in decisions if d.role != "ignored" for word in d.column.null_words}
    # A word that is a value of another column is no missing value there.
    values = {text for d in decisions if d.rules and d.column.form == "text" for text in d.column.texts}
    words = (words & set(NULL_WORDS)) | (words - values)
    words -= {text for text in columns[label.column].texts if text not in label.null_words}
    return ("", *sorted(words | set(label.null_words)))


class _Division(NamedTuple):
    """The rows of the sample, but for those without a label, as the recipe's split would divide them."""

    train: NDArray[np.int64]
    validation: NDArray[np.int64]
    test: NDArray[np.int64]

    @property
    def held_out(self) -> NDArray[np.int64]:
        return np.concatenate([self.validation, self.test])


def _divide(
    split: Mapping[str, Any],
    decisions: Sequence[Decision],
    label: NDArray[np.float64] | None,
    time: ColumnProfile | None,
    group: ColumnProfile | None,
    seed: int,
) -> _Division:
    """Divide the rows by `preprocess.split`."""
    count = decisions[0].column.rows
    rows = np.arange(count) if label is None else np.flatnonzero(np.isfinite(label))
    order = np.arange(count) if time is None or time.seconds is None else np.argsort(time.row_seconds, kind="stable")
    place = np.empty(count)  # from 0 to 1: the last rows are held out
    if split["kind"] == "leave_one_out":
        rows = rows if label is None else rows[label[rows] == 1]
        user = next(d.column.codes for d in decisions if d.role == "user")
        order = order[np.argsort(-user[order], kind="stable")][::-1]
        order = order[np.isin(order, rows)]  # by user, the latest first
        rank = np.arange(len(order)) - np.searchsorted(user[order], user[order])
        has_others = np.bincount(np.maximum(user[rows], 0), minlength=1)[user[order]] > 1
        place[order] = np.where(has_others & (rank == 0), 1.0, np.where(rank < 1 + split["validation"], 0.5, 0.0))
        split = {"validation": 0.5, "test": 0.25}
    elif split["kind"] == "time":
        order = order[np.isin(order, rows)]
        place[order] = np.arange(len(order)) / len(order)
    else:
        drawn = np.random.default_rng(seed).random(count)
        place = drawn if group is None else np.append(drawn, 0.0)[group.codes]
    from_test = 1 - split["test"]
    from_validation = from_test - split.get("validation", 0.0)
    of_rows = place[rows]
    is_test, is_train = of_rows >= from_test, of_rows < from_validation
    return _Division(rows[is_train], rows[~is_train & ~is_test], rows[is_test])


def _known_values(decisions: Sequence[Decision], division: _Division) -> dict[str, FoundKeys]:
    """Return how many rows of `test` have a value, and one that `train` has, by column of categories, users or items;
    of a sample, in which more values are new than among all rows.
    """
    known = {}
    for decision in decisions:
        if decision.kind == "categorical" or decision.role in ("user", "item"):
            codes = decision.column.codes
            of_test = codes[division.test][codes[division.test] >= 0]
            found = int(np.isin(of_test, np.unique(codes[division.train])).sum())
            known[decision.column.name] = FoundKeys(rows=len(of_test), found=found)
    return known


def _texts_beyond_ascii(sample: Sample) -> list[str]:
    """Return the rows' texts with another character than ASCII's, those of a row in one."""
    columns = [column.to_pylist() for column in sample.rows.columns if pa.types.is_string(column.type)]
    rows = (" ".join(filter(None, row)) for row in zip(*columns, strict=True))
    return [row for row in rows if not row.isascii()]


def _left_out(sample: Sample, text: str) -> tuple[LeftOut, float]:
    """Return what preprocessing by a recipe leaves out where the sample was read, and the most bad rows that it
    bears.
    """
    recipe = RecipeContent("the recipe", {"name": "inspected", **parse_yaml(text)}).resolve()
    assert isinstance(recipe.source, TableSourceConfig) and isinstance(recipe.preprocess, RowsPreprocessConfig)
    source, split = recipe.source, recipe.preprocess.split
    table = open_table(sample.table.files, source)
    plan = plan_columns(source, split, table.columns.names, {})
    return read_again(sample, plan.reader(table, source, split)), recipe.preprocess.max_rejected_fraction


def _plainer(column: ColumnProfile, left_out: LeftOut) -> ColumnProfile:
    """Return a column as text, as too many of its values are not what it seemed to be; or if it is text, as nothing."""
    share = left_out.columns[column.name] / (left_out.rows + left_out.bad)
    seemed = {"integer": "integers", "number": "numbers", "time": "times"}.get(column.form, f"{column.form}s")
    note = f"{share:.1%} of its values are not {seemed}"
    if column.form == "text" or (column.lengths is not None and column.separator is None):
        return replace(column, form="nested", type=f"values of several types ({note})")
    return replace(column, form="text", notes=(note,), null_words=())


def _bad_rows(left_out: LeftOut) -> str:
    """Say how many rows are bad and why, with the first one, in one line."""
    counts = describe_reasons({reason: rows for reason, rows in left_out.reasons.items() if reason not in LEFT_OUT})
    total, first = left_out.bad + left_out.rows, describe_rejected(left_out.examples[0])
    return f"{left_out.bad:,} of {total:,} rows are bad ({counts}); the first is {first}"


def _describe(sample: Sample, form: FileForm) -> dict[str, ColumnProfile]:
    return {
        name: profile_column(name, sample.rows[name], delimited=form.is_delimited, named=form.has_names)
        for name in sample.rows.column_names
    }
