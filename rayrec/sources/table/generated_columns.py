"""The columns of a generated table: values as the rules of a recipe read them, and what these add to the logit."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.config.preprocess import Names
from rayrec.config.table import BucketsRule, ListRule, NumericRule, TimeColumn, TimestampRule, VectorRule
from rayrec.sources.synthetic import Category, Column, Drawn, World, skewed

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
