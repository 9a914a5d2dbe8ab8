"""The table that a recipe describes, any number of rows in constant memory, drawn from a known truth.

Every value of a category or list, every number and every part of a time adds something of its own to the logit of the
label; crosses and roles add nothing. Rows come in chunks of fixed size. More rows repeat the values that fewer rows
had; their times are other ones, as all rows together always span 30 days.
"""

import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rayrec.common.errors import ConfigError, did_you_mean
from rayrec.common.progress import Progress, SilentProgress
from rayrec.config.preprocess import ColumnSplitConfig, HashSplitConfig, RowsPreprocessConfig
from rayrec.config.table import (
    CategoricalRule,
    LabelCondition,
    ListRule,
    Rule,
    TableSourceConfig,
    TimeColumn,
    VectorRule,
    matches,
)
from rayrec.recipes import Recipe
from rayrec.sources.generated_text import csv_file
from rayrec.sources.generated_truth import BINS, TRUTH_FILE, RowsTruth, TruthAccumulator
from rayrec.sources.table.generated_columns import (
    DEFAULT_CARDINALITY,
    ChunkRows,
    GeneratedColumn,
    rule_columns,
    written_times,
)
from rayrec.store.files import write_json
from rayrec.store.folders import new_folder

CHUNK_ROWS = 16_384
_CALIBRATION = 2**31
"""The number of the chunk that is drawn to scale the logits; it is in no table."""
_BIAS, _SCALE = -1.1, 1.5
"""Mean and standard deviation of the logits: about 30 % of the labels are 1, and the best AUC is about 0.83."""
_FIRST_SECOND, _SECONDS = 1_704_067_200, 30 * 86_400
"""Rows are of January 2024, in which hardly any zone changes its clocks."""
_GROUP_ROWS = 8


def _spread(rows: int) -> NDArray[np.int64]:
    """Return the numbers of rows from all over the table, for a chunk."""
    return np.linspace(0, rows - 1, CHUNK_ROWS).astype(np.int64)


def _is_category(column: GeneratedColumn) -> bool:
    return column.rule is None or isinstance(column.rule, (CategoricalRule, ListRule))


class TableTruth(RowsTruth):
    """The content of `truth.json`."""

    source: str
    recipe: str
    seed: int
    path: str
    """The file of the rows, beside this one."""
    cardinality: dict[str, int]
    """Distinct values that a column can have."""
    method: str = (
        "Labels are drawn from a logistic model of hidden weights of values, numbers and parts of times; on average no "
        f"model ranks the rows better than its probabilities do. AUC: from a histogram of {BINS} equal bins, pairs "
        "within a bin counted half. Log loss: exact. Weights of rows are not counted."
    )


class GeneratedTable:
    """The columns of a recipe's raw files, and the truth of its labels."""

    def __init__(self, recipe: Recipe, cardinality: Mapping[str, int], rows: int, seed: int) -> None:
        """`cardinality`: distinct values by column, or pattern. Raises ConfigError on a recipe without such a table."""
        assert isinstance(recipe.source, TableSourceConfig) and isinstance(recipe.preprocess, RowsPreprocessConfig)
        self.source, self._rows, self._seed = recipe.source, rows, seed
        if self.source.tables:
            raise ConfigError(
                f"source.tables: side tables are not generated ('{next(iter(self.source.tables))}'); give a recipe "
                "without them"
            )
        self.format = self._format()
        split = recipe.preprocess.split
        self._split = split if isinstance(split, ColumnSplitConfig) else None
        rules: dict[str, Rule] = {}
        for rule in self.source.features:
            for name in rule_columns(rule):
                if not self.source.is_ignored(name) or rule.name is not None:
                    rules.setdefault(name, rule)
        weights = {rule.weights for rule in rules.values() if isinstance(rule, ListRule)}
        own = {self.source.label_column, self.source.weight, *weights}
        self._columns = [self._column(name, rules, cardinality) for name in rules if name not in own]
        # What no rule reads: rates are looked up by some of it, of the rest no model hears.
        keys = {key for rate in self.source.rates for key in rate.keys}
        hashed = split.column if isinstance(split, HashSplitConfig) else None
        others = {*keys, *filter(None, (self.source.candidate, hashed))} - {*own, *rules}
        others -= {self.source.group, self.source.time_column}
        for name in sorted(others):
            size = next((size for pattern, size in cardinality.items() if matches(name, pattern)), DEFAULT_CARDINALITY)
            self._columns.append(GeneratedColumn(name, None, size, may_miss=False, adds=name in keys))
        for pattern, size in cardinality.items():
            if not any(matches(name, pattern) for name in self.cardinality):
                hint = did_you_mean(pattern, self.cardinality, "the recipe has")
                raise ConfigError(f"--cardinality {pattern}={size}: no column of categories or lists; {hint}")
        effect = sum(effect for _, effect in self._drawn(self._chunk(_CALIBRATION, _spread(rows))).values())
        self._mean, self._deviation = float(np.mean(effect)), max(float(np.std(effect)), 1e-9)

    @property
    def cardinality(self) -> dict[str, int]:
        """Distinct values that a column can have, by name."""
        return {column.name: column.cardinality for column in self._columns if _is_category(column)}

    def chunks(self) -> Iterator[tuple[pa.RecordBatch, NDArray[np.float64], NDArray[np.bool_]]]:
        """Yield all rows, the true probability of each and its label."""
        for number in range(-(-self._rows // CHUNK_ROWS)):
            rows = np.arange(number * CHUNK_ROWS, (number + 1) * CHUNK_ROWS)
            chunk = self._chunk(number, rows)
            drawn = self._drawn(chunk)
            effect = sum(effect for _, effect in drawn.values())
            logit = _BIAS + _SCALE * (effect - self._mean) / self._deviation
            probability = 1.0 / (1.0 + np.exp(-logit))
            rng = np.random.default_rng([self._seed, number])
            label = rng.random(CHUNK_ROWS) < probability
            columns = {name: values for name, (values, _) in drawn.items()}
            columns |= self._roles(rng, chunk) | {self.source.label_column: self._written_label(rng, label)}
            if self.source.header is not None:
                columns = {name: columns.get(name, pa.nulls(CHUNK_ROWS, pa.string())) for name in self.source.header}
            kept = slice(0, self._rows - int(rows[0]))
            batch = pa.RecordBatch.from_pydict(columns).slice(0, self._rows - int(rows[0]))
            yield batch, probability[kept], label[kept]

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

    def _column(self, name: str, rules: Mapping[str, Rule], given: Mapping[str, int]) -> GeneratedColumn:
        rule = rules[name]
        # Only an empty field of delimited text is sure to be read as missing, and roles must have a value.
        split = self._split
        is_role = name in {self.source.group, self.source.candidate, self.source.time_column, split and split.column}
        may_miss = not is_role and (self.format != "delimited" or "" in self.source.null_values)
        has_lists = isinstance(rule, (ListRule, VectorRule)) and rule.separator is None
        if not isinstance(rule, (CategoricalRule, ListRule)):
            return GeneratedColumn(name, rule, may_miss=may_miss, has_lists=has_lists)
        # The column, and its rule, that says which values there are.
        owners = ((n, r) for n, r in rules.items() if rule.share in {n, getattr(r, "name", None)})
        owner, listed = (name, rule) if rule.share is None else next(owners, (name, rule))
        assert isinstance(listed, (CategoricalRule, ListRule))
        stated = len(listed.values) if listed.values is not None else listed.cardinality
        most = stated if isinstance(stated, int) else None
        wanted = {pattern: size for pattern, size in given.items() if matches(owner, pattern)}
        for pattern, size in wanted.items():
            if most is not None and size > most:
                raise ConfigError(f"--cardinality {pattern}={size}: column '{owner}' has {most} values in the recipe")
        size = [*wanted.values(), most or DEFAULT_CARDINALITY][0]
        return GeneratedColumn(
            name, rule, size, listed.values, listed.cardinality is not None, may_miss, has_lists=has_lists
        )

    def _chunk(self, number: int, rows: NDArray[np.int64]) -> ChunkRows:
        return ChunkRows(number, rows, _FIRST_SECOND + rows * _SECONDS // self._rows)

    def _drawn(self, chunk: ChunkRows) -> dict[str, tuple[pa.Array, NDArray[np.float64]]]:
        return {name: drawn for column in self._columns for name, drawn in column.draw(chunk, self._seed).items()}

    def _roles(self, rng: np.random.Generator, chunk: ChunkRows) -> dict[str, pa.Array]:
        """Return the columns of a row that no rule reads; groups are of 8 rows after each other."""
        source, n, made = self.source, len(chunk.rows), {}
        by_rules = {column.name for column in self._columns if column.rule is not None}
        if source.time_column is not None and source.time_column not in by_rules:
            form = source.time if isinstance(source.time, TimeColumn) else TimeColumn(column=source.time_column)
            made[source.time_column] = written_times(chunk.times, form)
        if source.weight is not None:
            made[source.weight] = pa.array(np.round(rng.uniform(0.5, 1.5, n), 2))
        if source.group is not None and source.group not in by_rules:
            made[source.group] = pa.array(chunk.rows // _GROUP_ROWS)
        if self._split is not None and self._split.column not in by_rules:
            named = [*(values[0] for values in self._split.values.values())]
            made[self._split.column] = pa.array([*named, "train"]).take(
                pa.array(np.minimum((rng.random(n) * 10).astype(np.int64), len(named)))
            )
        return made

    def _written_label(self, rng: np.random.Generator, label: NDArray[np.bool_]) -> pa.Array:
        """Return the values from which the recipe reads these labels."""
        condition, step = self.source.label, rng.integers(0, 2, len(label))
        if not isinstance(condition, LabelCondition):
            return pa.array(label.astype(np.int8))
        if condition.at_least is not None:
            return pa.array(np.where(label, condition.at_least + step, condition.at_least - 1 - step))
        if condition.equals is not None:
            other = next(name for name in ("other", "another", "none of them") if name not in condition.equals)
            positive = pa.array(condition.equals).take(pa.array(rng.integers(0, len(condition.equals), len(label))))
            return pc.if_else(pa.array(label), positive, other)
        return pa.array(label.astype(np.int8), mask=label == bool(condition.missing))


def generate(
    output: Path,
    rows: int,
    *,
    recipe: Recipe,
    cardinality: Mapping[str, int],
    seed: int = 0,
    compress: bool = False,
    progress: Progress | None = None,
) -> TableTruth:
    """Write the raw file of a recipe and `truth.json` into the new folder `output`, which is whole or absent.

    The file is `table.csv` (`.tsv` if fields are separated by tabs), `table.jsonl` or `table.parquet`, as the recipe's
    format says, packed by gzip with `compress`. Raises ConfigError on a recipe whose table cannot be made.
    """
    table = GeneratedTable(recipe, cardinality, rows, seed)
    text = ".tsv" if table.source.separator == "\t" else ".csv"
    name = "table" + {"delimited": text, "json_lines": ".jsonl", "parquet": ".parquet"}[table.format]
    if compress and table.format != "parquet":
        name += ".gz"
    truth, progress = TruthAccumulator(), progress or SilentProgress()
    with new_folder(output) as folder:
        progress.stage("generate", rows)
        chunks = table.chunks()
        batch, probability, label = next(chunks)
        with _file(folder / name, table, batch.schema, compress) as write:
            while True:
                write(batch)
                truth.add(probability, label)
                progress.advance(batch.num_rows)
                if (following := next(chunks, None)) is None:
                    break
                batch, probability, label = following
        result = TableTruth(
            source=table.source.kind,
            recipe=recipe.name,
            seed=seed,
            path=name,
            cardinality=table.cardinality,
            **truth.result().model_dump(),
        )
        write_json(folder / TRUTH_FILE, result.model_dump(mode="json"))
    return result


@contextmanager
def _file(
    path: Path, table: GeneratedTable, schema: pa.Schema, compress: bool
) -> Iterator[Callable[[pa.RecordBatch], None]]:
    """Yield a function that appends rows to the new file at `path`."""
    if table.format == "parquet":
        with pq.ParquetWriter(path, schema, compression="gzip" if compress else "snappy") as writer:
            yield writer.write_batch
    elif table.format == "json_lines":
        # A fixed time keeps the same rows the same bytes.
        with path.open("wb") as raw, gzip.GzipFile("", "wb", 1, raw, 0) if compress else raw as sink:

            def write_lines(batch: pa.RecordBatch) -> None:
                sink.write("".join(json.dumps(row) + "\n" for row in batch.to_pylist()).encode())

            yield write_lines
    else:
        separator = table.source.separator or ","
        has_header = table.source.header is None
        with csv_file(
            path, schema, separator=separator, has_header=has_header, quotes=table.source.quote is True
        ) as write:
            yield write
