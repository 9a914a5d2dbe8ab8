"""The columns of a generated table: their values, and what each value adds to the logit of the label.

Values are drawn by chunk, column and seed alone, so a column does not depend on the others; what a value adds is a
function of the column, the value and the seed, so that nothing is kept of millions of values.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.config.preprocess import Names
from rayrec.config.table import (
    BucketsRule,
    CategoricalRule,
    CrossRule,
    ListRule,
    NumericRule,
    Rule,
    TimeColumn,
    TimestampRule,
    VectorRule,
)
from rayrec.random.splitmix64 import StatelessRandom

DEFAULT_CARDINALITY = 1_000
"""Values of a column of which neither the recipe nor the user says how many it has."""
_EXPONENT = 1.3
"""The value of rank r has a share of about r^-_EXPONENT of a column's rows."""
_MISSING = 0.03
_MOST_IN_LIST = 5
_DAYS_BEFORE = 10.0
"""Mean of the days from another time of a row to the row's own."""
_PARTS = {"hour": pc.hour, "weekday": pc.day_of_week, "day": pc.day, "month": pc.month}


@dataclass(frozen=True)
class ChunkRows:
    """The rows of a chunk."""

    number: int
    """The chunk's."""
    rows: NDArray[np.int64]
    """(n,) numbers of the rows."""
    times: NDArray[np.int64]
    """(n,) times of the rows, ascending, in seconds since 1970."""


Drawn = tuple[pa.Array, NDArray[np.float64]]
"""The values of a column (n,), and what each adds to the logit, which `Table` scales."""


@dataclass(frozen=True)
class GeneratedColumn:
    """A column that a rule of the recipe reads, or one that only has a role: then `rule` is None."""

    name: str
    rule: Rule | None
    cardinality: int = DEFAULT_CARDINALITY
    """Distinct values of a category or a list."""
    values: Names | None = None
    """The values themselves, if the recipe lists them."""
    has_ids: bool = False
    """Whether values are integers from 0 on."""
    may_miss: bool = True
    """Whether some rows have no value."""
    adds: bool = True
    """Whether its values add to the logit, as features and keys of rates do."""
    has_lists: bool = False
    """Whether the file holds lists; otherwise they are joined to text."""

    def draw(self, chunk: ChunkRows, seed: int) -> dict[str, Drawn]:
        """Return the values of n rows, of a list with weights those too, by name of the column."""
        rng = np.random.default_rng([seed, zlib.crc32(self.name.encode()), chunk.number])
        hidden, n = StatelessRandom(seed), len(chunk.rows)
        missing = rng.random(n) < (_MISSING if self.may_miss else 0.0)
        match self.rule:
            case NumericRule() | BucketsRule():
                latent = rng.standard_normal(n)
                values = pa.array(np.round(_number(self.rule, latent), 3), mask=missing)
                return {self.name: (values, np.where(missing, 0.0, self._weight(hidden) * latent))}
            case VectorRule():
                numbers = np.round(rng.standard_normal((n, self.rule.size)), 3)
                weights = hidden.normal(self.name, np.arange(self.rule.size))
                # Without BLAS, whose order of summation depends on the machine's threads.
                effect = np.einsum("nd,d->n", numbers, weights) / np.sqrt(self.rule.size)
                return {self.name: (self._lists(numbers.ravel(), np.full(n, self.rule.size), self.rule), effect)}
            case TimestampRule():
                seconds = chunk.times
                if self.may_miss:  # not the row's own time
                    seconds = seconds - (rng.exponential(_DAYS_BEFORE, n) * 86_400).astype(np.int64)
                local = pa.array(seconds, pa.timestamp("s", "UTC")).cast(pa.timestamp("s", self.rule.zone))
                effect = np.zeros(n)
                for part in self.rule.derive:
                    if part == "age":
                        effect -= (chunk.times - seconds) / (86_400 * _DAYS_BEFORE)
                    else:
                        effect += hidden.normal(f"{self.name} {part}", _PARTS[part](local).to_numpy())
                return {self.name: (written_times(seconds, TimeColumn(column="", **_form(self.rule))), effect)}
            case ListRule():
                return self._draw_lists(rng, hidden, missing)
        assert self.rule is None or isinstance(self.rule, CategoricalRule)
        ranks = self._draw_ranks(rng, n)
        return {
            self.name: (
                pc.if_else(pa.array(missing), None, self._spelled(ranks)),
                np.where(missing | (not self.adds), 0.0, hidden.normal(self.name, ranks)),
            )
        }

    def _draw_lists(
        self, rng: np.random.Generator, hidden: StatelessRandom, missing: NDArray[np.bool_]
    ) -> dict[str, Drawn]:
        """Return the lists of up to 5 values, whose effects are pooled as the recipe pools embeddings."""
        assert isinstance(self.rule, ListRule)
        lengths = np.where(missing, 0, rng.integers(1, min(self.rule.max_length, _MOST_IN_LIST) + 1, len(missing)))
        row = np.repeat(np.arange(len(lengths)), lengths)
        ranks = self._draw_ranks(rng, len(row))
        weights = np.round(rng.uniform(0.5, 2.0, len(row)), 2) if self.rule.weights else np.ones(len(row))
        sums = np.bincount(row, weights * hidden.normal(self.name, ranks), len(lengths))
        totals = np.maximum(np.bincount(row, weights, len(lengths)), 1e-9)
        pooled = (sums / totals if self.rule.pooling == "mean" else sums).astype(np.float64)
        drawn: dict[str, Drawn] = {self.name: (self._lists(self._spelled(ranks), lengths, self.rule), pooled)}
        if self.rule.weights:
            drawn[self.rule.weights] = (self._lists(weights, lengths, self.rule), np.zeros(len(lengths)))
        return drawn

    def _weight(self, hidden: StatelessRandom) -> float:
        """Return what a deviation of a number adds: not near 0, so that every number says something."""
        drawn = float(hidden.normal(self.name, np.zeros(1, np.int64))[0])
        return drawn + (0.5 if drawn >= 0 else -0.5)

    def _draw_ranks(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        """Return the ranks from 0 on: the inverse of the cumulative distribution of a density x^-exponent on [1, size +
        1).
        """
        power = 1.0 - _EXPONENT
        drawn = (1.0 + rng.random(count) * ((self.cardinality + 1.0) ** power - 1.0)) ** (1.0 / power)
        return np.minimum(drawn.astype(np.int64), self.cardinality) - 1

    def _spelled(self, ranks: NDArray[np.int64]) -> pa.Array:
        """Return the values of these ranks; those of columns that share a vocabulary are the same."""
        if self.values is not None:
            return pa.array(self.values, pa.string()).take(pa.array(ranks))
        return pa.array(ranks) if self.has_ids else pc.binary_join_element_wise("v", pa.array(ranks).cast("string"), "")

    def _lists(self, values: Any, lengths: NDArray[np.int64], rule: ListRule | VectorRule) -> pa.Array:
        """Return the lists of these lengths, or their values joined by the rule's separator."""
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
        lists = pa.ListArray.from_arrays(offsets, values if isinstance(values, pa.Array) else pa.array(values))
        if self.has_lists:
            return lists
        joined = pc.binary_join(lists.cast(pa.list_(pa.string())), rule.separator)
        return pc.if_else(pa.array(lengths > 0), joined, None)


def _number(rule: NumericRule | BucketsRule, latent: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the numbers that ascend with normal ones, in the range that the recipe expects."""
    if isinstance(rule, BucketsRule):
        low, high = (rule.boundaries[0], rule.boundaries[-1]) if rule.boundaries else (0.0, 100.0)
        return (low + high) / 2 + max(high - low, 1.0) / 3 * latent
    steps: Mapping[str, Any] = {step.op: step for step in rule.transforms}
    if {"log", "log2"} & steps.keys():
        return np.exp(2.0 + latent)
    least, most = (getattr(steps.get("clip"), bound, None) for bound in ("min", "max"))
    low = least if least is not None else (0.0 if most is None else most - 100.0)
    high = most if most is not None else low + 100.0
    return (low + high) / 2 + (high - low) / 6 * latent


def _form(rule: TimestampRule) -> dict[str, str]:
    return {"format": rule.format, "zone": rule.zone}


def written_times(seconds: NDArray[np.int64], form: TimeColumn) -> pa.Array:
    """Return the times (n,) in seconds since 1970 as files have them."""
    per_second = {"s": 1, "ms": 1_000, "us": 1_000_000}.get(form.format)
    if per_second is not None:
        return pa.array(seconds * per_second)
    zone, pattern = ("UTC", "%Y-%m-%dT%H:%M:%SZ") if form.format == "iso" else (form.zone, form.format)
    return pc.strftime(pa.array(seconds, pa.timestamp("s", "UTC")).cast(pa.timestamp("s", zone)), pattern)


def rule_columns(rule: Rule) -> tuple[str, ...]:
    """Return the columns that a rule reads, those of a pattern being three: 1, 2 and 3 in place of `*` and `?`."""
    if isinstance(rule, CrossRule):
        return ()
    found = []
    for name in rule.columns:
        is_pattern = "*" in name or "?" in name
        found += [name.replace("*", d).replace("?", d) for d in "123"] if is_pattern else [name]
    return tuple(found)
