"""The table that a recipe describes, any number of rows in constant memory, drawn from a known truth.

Every frequent value of a category or list, every number and every part of a time adds something of its own to the logit
of the label; crosses, roles and what histories take add nothing. More rows repeat the values that fewer rows had; their
times are other ones, as all rows together always span 30 days.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.common.errors import ConfigError, did_you_mean
from rayrec.common.progress import Progress
from rayrec.config.preprocess import ColumnSplitConfig, HashSplitConfig, Names, RowsPreprocessConfig
from rayrec.config.table import (
    BucketsRule,
    CategoricalRule,
    CrossRule,
    LabelCondition,
    ListRule,
    NumericRule,
    Rule,
    TableSourceConfig,
    TimeColumn,
    TimestampRule,
    VectorRule,
    matches,
)
from rayrec.preprocessing.history_plan import event_columns, plan_history
from rayrec.recipes import Recipe
from rayrec.sources.generated_files import TRUTH_FILE, GeneratedTruth, GeneratorOptions, TruthAccumulator, rows_file
from rayrec.sources.synthetic import CHUNK_ROWS, Category, Column, Drawn, GeneratedRows, World, skewed
from rayrec.store.files import write_json
from rayrec.store.folders import new_folder

# The columns: values as the rules of a recipe read them, and what these add to the logit.

MISSING = 0.03
"""Share of the rows without a value, in columns that may have such."""
_MOST_IN_LIST = 5
_DAYS_BEFORE = 10.0
"""Mean of the days from another time of a row to the row's own."""
_PARTS = {"hour": pc.hour, "weekday": pc.day_of_week, "day": pc.day, "month": pc.month}


def numbers(name: str, rule: NumericRule | BucketsRule, missing: float) -> Column:
    """Return numbers that ascend with normal ones, in the range that the recipe expects."""

    def draw(rng: np.random.Generator, rows: NDArray[np.int64]) -> Drawn:
        normal, is_missing = rng.standard_normal(len(rows)), rng.random(len(rows)) < missing
        values = pa.array(np.round(_in_range(rule, normal), 3), mask=is_missing)
        return Drawn({name: values}, np.where(is_missing, 0.0, normal))

    return Column(name, draw)


def _in_range(rule: NumericRule | BucketsRule, normal: NDArray[np.float64]) -> NDArray[np.float64]:
    if isinstance(rule, BucketsRule):
        low, high = (rule.boundaries[0], rule.boundaries[-1]) if rule.boundaries else (0.0, 100.0)
        return (low + high) / 2 + max(high - low, 1.0) / 3 * normal
    steps: Mapping[str, Any] = {step.op: step for step in rule.transforms}
    if {"log", "log2"} & steps.keys():
        return np.exp(2.0 + normal)
    least, most = (getattr(steps.get("clip"), bound, None) for bound in ("min", "max"))
    low = least if least is not None else (0.0 if most is None else most - 100.0)
    high = most if most is not None else low + 100.0
    return (low + high) / 2 + (high - low) / 6 * normal


def vectors(name: str, rule: VectorRule, world: World, has_lists: bool) -> Column:
    """Return lists of a fixed number of normal numbers, each of which says something."""

    def draw(rng: np.random.Generator, rows: NDArray[np.int64]) -> Drawn:
        values = np.round(rng.standard_normal((len(rows), rule.size)), 3)
        # Without BLAS, whose order of summation depends on the machine's threads.
        term = np.einsum("nd,d->n", values, world.effects(name, np.arange(rule.size)))
        lengths = np.full(len(rows), rule.size)
        return Drawn({name: _lists(pa.array(values.ravel()), lengths, rule, has_lists)}, term)

    return Column(name, draw)


def times(
    name: str,
    rule: TimestampRule,
    world: World,
    is_own: bool,
    seconds_of: Callable[[NDArray[np.int64]], NDArray[np.int64]],
) -> Column:
    """Return times up to the row's own, of which the derived parts say something; the row's own if `is_own`.

    `seconds_of`: returns the times of rows (n,) in seconds since 1970.
    """

    def draw(rng: np.random.Generator, rows: NDArray[np.int64]) -> Drawn:
        before = np.zeros(len(rows)) if is_own else rng.exponential(_DAYS_BEFORE, len(rows))
        seconds = seconds_of(rows) - (before * 86_400).astype(np.int64)
        local = pa.array(seconds, pa.timestamp("s", "UTC")).cast(pa.timestamp("s", rule.zone))
        term = -before / _DAYS_BEFORE * ("age" in rule.derive)
        for part in (part for part in rule.derive if part != "age"):
            term += world.effects(f"{name} {part}", _PARTS[part](local).to_numpy())
        form = TimeColumn(column=name, format=rule.format, zone=rule.zone)
        return Drawn({name: written_times(seconds, form)}, term)

    return Column(name, draw)


def lists(name: str, rule: ListRule, values: Category, missing: float, has_lists: bool) -> Column:
    """Return lists of up to 5 values, whose effects are pooled as the recipe pools embeddings."""

    def draw(rng: np.random.Generator, rows: NDArray[np.int64]) -> Drawn:
        is_missing = rng.random(len(rows)) < missing
        lengths = np.where(is_missing, 0, rng.integers(1, min(rule.max_length, _MOST_IN_LIST) + 1, len(rows)))
        row = np.repeat(np.arange(len(rows)), lengths)
        ranks = skewed(rng, len(row), values.cardinality)
        weights = np.round(rng.uniform(0.5, 2.0, len(row)), 2) if rule.weights else np.ones(len(row))
        totals = np.bincount(row, weights, len(rows)) if rule.pooling == "mean" else np.ones(len(rows))
        term = np.bincount(row, weights * values.effects_of(ranks), len(rows)) / np.maximum(totals, 1e-9)
        spelled = values.spell(ranks, np.zeros(len(row), np.bool_))
        written = {name: _lists(spelled, lengths, rule, has_lists)}
        if rule.weights:
            written[rule.weights] = _lists(pa.array(weights), lengths, rule, has_lists)
        return Drawn(written, term)

    return Column(name, draw)


def role(name: str, values: Callable[[np.random.Generator, NDArray[np.int64]], pa.Array]) -> Column:
    """Return a column that no rule reads and that says nothing."""
    return Column(name, lambda rng, rows: Drawn({name: values(rng, rows)}, np.zeros(len(rows))))


def spelling(
    values: Names | None = None, has_ids: bool = False
) -> Callable[[NDArray[np.int64], NDArray[np.bool_]], pa.Array]:
    """Return what writes values by their numbers: listed ones, ids, or made ones, the same in all columns."""

    def spell(numbers: NDArray[np.int64], missing: NDArray[np.bool_]) -> pa.Array:
        ids = pa.array(numbers, mask=missing)
        if values is not None:
            return pa.array(values, pa.string()).take(ids)
        return ids if has_ids else pc.binary_join_element_wise("v", ids.cast("string"), "")

    return spell


def written_times(seconds: NDArray[np.int64], form: TimeColumn) -> pa.Array:
    """Return the times (n,) in seconds since 1970 as files have them."""
    per_second = {"s": 1, "ms": 1_000, "us": 1_000_000}.get(form.format)
    if per_second is not None:
        return pa.array(seconds * per_second)
    zone, pattern = ("UTC", "%Y-%m-%dT%H:%M:%SZ") if form.format == "iso" else (form.zone, form.format)
    return pc.strftime(pa.array(seconds, pa.timestamp("s", "UTC")).cast(pa.timestamp("s", zone)), pattern)


def _lists(values: pa.Array, lengths: NDArray[np.int64], rule: ListRule | VectorRule, has_lists: bool) -> pa.Array:
    """Return the lists of these lengths, or their values joined by the rule's separator."""
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    lists = pa.ListArray.from_arrays(offsets, values)
    if has_lists:
        return lists
    joined = pc.binary_join(lists.cast(pa.list_(pa.string())), rule.separator)
    return pc.if_else(pa.array(lengths > 0), joined, None)


# The table.

_DEFAULT_CARDINALITY = 1_000
"""Values of a column of which neither the recipe nor the user says how many it has."""
_FIRST_SECOND, _SECONDS = 1_704_067_200, 30 * 86_400
"""Rows are of January 2024, in which hardly any zone changes its clocks."""
_GROUP_ROWS = 8


class TableTruth(GeneratedTruth):
    """The content of `truth.json`."""

    recipe: str
    path: str
    """The file of the rows, beside this one."""
    cardinality: dict[str, int]
    """Distinct values that a column can have."""


class GeneratedTable:
    """The columns of a recipe's raw files, and the truth of its labels."""

    def __init__(self, recipe: Recipe, cardinality: Mapping[str, int], rows: int, seed: int) -> None:
        """`cardinality`: distinct values by column, or pattern. Raises ConfigError on a recipe without such a table."""
        source, preprocess = recipe.source, recipe.preprocess
        assert isinstance(source, TableSourceConfig) and isinstance(preprocess, RowsPreprocessConfig)
        self.source, self._rows, self._given, self._world = source, rows, cardinality, World(seed)
        self._split = preprocess.split
        if source.tables:
            raise ConfigError(
                f"source.tables: side tables are not generated ('{next(iter(source.tables))}'); give a recipe "
                "without them"
            )
        if beside := next((name for name, past in source.histories.items() if past.path is not None), None):
            raise ConfigError(
                f"source.histories.{beside}.path: events beside the log are not generated; leave `path` out, which "
                "takes the rows of the log"
            )
        if "1.234,5" in {source.number_format, *(getattr(rule, "number_format", None) for rule in source.features)}:
            raise ConfigError("source.number_format: generated numbers have no decimal comma; give a recipe without")
        self.format = self._format()
        histories = [plan_history(name, past, "") for name, past in source.histories.items()]
        past = {name for history in histories for name in history.columns}
        self._rules: dict[str, Rule] = {}
        for rule in source.features:
            for name in _columns_of(rule):
                if name not in past and (not source.is_ignored(name) or rule.name is not None):
                    self._rules.setdefault(name, rule)
        # Columns that rules read; a list's weights and the label are drawn with what they belong to.
        weights = {rule.weights for rule in self._rules.values() if isinstance(rule, ListRule)}
        own = {source.label_column, source.weight, *weights}
        self.cardinality: dict[str, int] = {}
        columns: list[Column | Category] = [
            self._column(name, rule) for name, rule in self._rules.items() if name not in own
        ]
        # What no rule reads: rates and histories are looked up by some of it, of the rest no model hears.
        keys = {key for rate in source.rates for key in rate.keys}
        keys |= {key for history in histories for key in history.keys}
        own |= past
        for history, given in zip(histories, source.histories.values(), strict=True):
            # What is taken of events, or asked of them, has values that suit it.
            asked = {} if given.where is None else {given.where.column: given.where.equals}
            of_texts = {taken.of for taken in history.takes if taken.op == "last"}
            for name in event_columns(given, source.label_column):
                if name in self._rules or name in keys or name in own:
                    continue
                self._rules[name] = NumericRule(columns=(name,))
                values = asked.get(name)
                if name in of_texts or values is not None:
                    listed = None if values is None else (*values, "other")
                    self._rules[name] = CategoricalRule(columns=(name,), values=listed)
                columns.append(self._column(name, self._rules[name]))
        hashed = self._split.column if isinstance(self._split, HashSplitConfig) else None
        others = {*keys, *filter(None, (source.candidate, hashed))} - {*own, *self._rules}
        for name in sorted(others - {source.group, source.time_column}):
            category = self._category(name, None, 0.0)
            columns.append(category if name in keys else _without_effect(category))
        for pattern, size in cardinality.items():
            if not any(matches(name, pattern) for name in self.cardinality):
                hint = did_you_mean(pattern, self.cardinality, "the recipe has")
                raise ConfigError(f"--cardinality {pattern}={size}: no column of categories or lists; {hint}")
        columns += (one for one in self._roles() if one.name not in self._rules or one.name == source.weight)
        # Scaled on rows from all over the table, whose times are as those of all rows.
        sample = np.linspace(0, rows - 1, CHUNK_ROWS).astype(np.int64)
        self.rows = GeneratedRows(self._world, columns, self._written_label, source.header, sample=sample)

    def _format(self) -> str:
        """Return the format of the file: delimited text if it can hold all columns, unless the recipe says another."""
        needs_lists = [
            rule for rule in self.source.features if isinstance(rule, (ListRule, VectorRule)) and rule.separator is None
        ]
        if self.source.format == "auto":
            return "parquet" if needs_lists else "delimited"
        if self.source.format == "delimited" and needs_lists:
            number = self.source.features.index(needs_lists[0])
            raise ConfigError(f"source.features.{number}.separator: missing; delimited text has no lists")
        return self.source.format

    def _column(self, name: str, rule: Rule) -> Column | Category:
        # Only an empty field of delimited text is sure to be read as missing, and roles must have a value.
        split = self._split.column if isinstance(self._split, ColumnSplitConfig) else None
        is_role = name in {self.source.group, self.source.candidate, self.source.time_column, split}
        may_miss = not is_role and (self.format != "delimited" or "" in self.source.null_values)
        missing = MISSING if may_miss else 0.0
        match rule:
            case CategoricalRule():
                return self._category(name, rule, missing)
            case ListRule():
                return lists(name, rule, self._category(name, rule, 0.0), missing, rule.separator is None)
            case VectorRule():
                return vectors(name, rule, self._world, rule.separator is None)
            case TimestampRule():
                return times(name, rule, self._world, not may_miss, self._times)
        assert not isinstance(rule, CrossRule)
        return numbers(name, rule, missing)

    def _category(self, name: str, rule: CategoricalRule | ListRule | None, missing: float) -> Category:
        """Return the values of a column, which may be those of another one; `rule` is None if no rule reads it."""
        owner, listed = name, rule
        if rule is not None and rule.share is not None:
            owner = next(n for n, r in self._rules.items() if rule.share in {n, getattr(r, "name", None)})
            shared = self._rules[owner]
            assert isinstance(shared, (CategoricalRule, ListRule))
            listed = shared
        values, stated = (listed.values, listed.cardinality) if listed is not None else (None, None)
        most = len(values) if values is not None else stated if isinstance(stated, int) else None
        sizes = []
        for pattern, size in self._given.items():
            if matches(owner, pattern):
                if most is not None and size > most:
                    raise ConfigError(
                        f"--cardinality {pattern}={size}: column '{owner}' has {most} values in the recipe"
                    )
                sizes.append(size)
        self.cardinality[name] = [*sizes, most or _DEFAULT_CARDINALITY][0]
        return Category(self._world, name, self.cardinality[name], spelling(values, stated is not None), missing)

    def _times(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the times of rows in seconds since 1970, ascending, (n,)."""
        return _FIRST_SECOND + rows * _SECONDS // self._rows

    def _roles(self) -> list[Column]:
        """Return the columns of a row's place in the data; groups are of 8 rows after each other."""
        source, roles = self.source, []
        if source.time_column is not None:
            form = source.time if isinstance(source.time, TimeColumn) else TimeColumn(column=source.time_column)
            roles.append(role(source.time_column, lambda rng, rows: written_times(self._times(rows), form)))
        if source.weight is not None:
            roles.append(role(source.weight, lambda rng, rows: pa.array(np.round(rng.uniform(0.5, 1.5, len(rows)), 2))))
        if source.group is not None:
            roles.append(role(source.group, lambda rng, rows: pa.array(rows // _GROUP_ROWS)))
        if isinstance(self._split, ColumnSplitConfig):
            # Every named split has a tenth of the rows.
            names = [*(values[0] for values in self._split.values.values())]
            places = pa.array([*names, *["train"] * (10 - len(names))])
            column = self._split.column
            roles.append(role(column, lambda rng, rows: places.take(pa.array(rng.integers(0, 10, len(rows))))))
        return roles

    def _written_label(self, rng: np.random.Generator, label: NDArray[np.bool_]) -> dict[str, pa.Array]:
        """Return the values from which the recipe reads these labels."""
        condition, step = self.source.label, rng.integers(0, 2, len(label))
        written = pa.array(label.astype(np.int8))
        if isinstance(condition, LabelCondition):
            if condition.at_least is not None:
                written = pa.array(np.where(label, condition.at_least + step, condition.at_least - 1 - step))
            elif condition.equals is not None:
                other = next(name for name in ("other", "another", "none of them") if name not in condition.equals)
                positive = pa.array(condition.equals).take(pa.array(rng.integers(0, len(condition.equals), len(label))))
                written = pc.if_else(pa.array(label), positive, other)
            else:
                written = pa.array(label.astype(np.int8), mask=label == bool(condition.missing))
        return {self.source.label_column: written}


def generate(output: Path, options: GeneratorOptions, progress: Progress) -> TableTruth:
    """Write the raw file of a recipe and `truth.json` into the new folder `output`, which is whole or absent.

    The file is `table.csv` (`.tsv` if fields are separated by tabs), `table.jsonl` or `table.parquet`, as the recipe's
    format says. Raises ConfigError on a recipe whose table cannot be made.
    """
    assert options.recipe is not None
    table, truth = GeneratedTable(options.recipe, options.cardinality, options.rows, options.seed), TruthAccumulator()
    source = table.source
    ending = {"delimited": ".tsv" if source.separator == "\t" else ".csv", "json_lines": ".jsonl"}
    name = "table" + (ending[table.format] + ".gz" * options.compress if table.format in ending else ".parquet")
    with new_folder(output) as folder:
        progress.stage("generate", options.rows)
        with rows_file(folder / name, source, codec="gzip" if options.compress else "snappy") as write:
            for chunk in table.rows.chunks(options.rows):
                write(chunk.rows)
                truth.add(chunk.probability, chunk.label)
                progress.advance(len(chunk.label))
        result = TableTruth(
            source=source.kind,
            recipe=options.recipe.name,
            seed=options.seed,
            path=name,
            cardinality=table.cardinality,
            **truth.result().model_dump(),
        )
        write_json(folder / TRUTH_FILE, result.model_dump(mode="json"))
    return result


def _without_effect(values: Category) -> Column:
    return role(values.name, lambda rng, rows: values.draw(rng, rows).written[values.name])


def _columns_of(rule: Rule) -> tuple[str, ...]:
    """Return the columns that a rule reads, those of a pattern being three: 1, 2 and 3 in place of `*` and `?`."""
    if isinstance(rule, CrossRule):
        return ()
    found = []
    for name in rule.columns:
        is_pattern = "*" in name or "?" in name
        found += [name.replace("*", d).replace("?", d) for d in "123"] if is_pattern else [name]
    return tuple(found)
