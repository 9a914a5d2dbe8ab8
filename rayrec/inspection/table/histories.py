"""Finds the keys whose past says more of the label than the columns of a row do, for `source.histories`.

What is taken of the past is computed from the sample by the code of preprocessing, and measured on the rows that the
recipe holds out, beside what a regression on all columns, fitted to the rows of `train`, says of them. So a key counts
as it does later: an id that `train` has seen is known already, and the past tells of the others, or of what changes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.config.preprocess import SECONDS
from rayrec.config.table import HistoryConfig
from rayrec.features.lookups import joined_keys
from rayrec.inspection.table.columns import ColumnProfile
from rayrec.inspection.table.decisions import LEAST_REPEATED, Decision, Pair, evidence_of, regression_inputs
from rayrec.inspection.table.evidence import LEAST_GAIN, auc_of, fit_logistic, number_inputs
from rayrec.inspection.table.roles import Label, Roles
from rayrec.preprocessing.histories import history_of_rows
from rayrec.preprocessing.history_plan import plan_history

_LEAST_VALUES = 20
"""A column of fewer values is no key of people or items: their embeddings know them."""
_MOST_EVENTS, _MOST_KEYS, _MOST_FOUND = 400_000, 6, 4
"""Rows times keys that are tried, which take about 0.5 s; keys; and histories of a recipe."""
_MOST_MEASURED, _LEAST_OF_A_KIND = 10_000, 50
"""Held-out rows that are measured: these are enough; and rows of either label, of which fewer say nothing."""
_FOLDS, _BLOCKS = 5, 20
"""The held-out rows are cut by time: into folds, which are scored by what the others say, and into blocks, by which
the error of a gain is told, as rows near each other are often of one person."""
_CLEAR = 2.0
"""Standard errors by which the log loss must fall: scored by what other rows say, it rises where there is nothing."""
_FARTHEST = 9e12
"""Seconds whose microseconds are integers of 64 bits."""
_OPS = ("count", "rate", "age")
_Take = str | dict[str, Any]
_MOST_LATE = 0.99
"""Share of the rows with a time after their own by which their labels are taken to be known."""
_UNITS = tuple((unit, SECONDS[unit]) for unit in "dhms")


@dataclass(frozen=True)
class FoundHistory:
    """A key whose past says more of the label."""

    name: str
    by: tuple[str, ...]
    take: tuple[_Take, ...]
    """As `HistoryConfig.take` has it."""
    auc: float
    """AUC on held-out rows of a logistic regression on all columns, with this history and those before it."""
    without: float
    """The same without this one."""


@dataclass(frozen=True)
class FoundPast:
    """What the past of rows is worth."""

    histories: Sequence[FoundHistory] = ()
    """The one that gains most comes first."""
    delay: str | None = None
    """How long after a row its label is known, as `HistoryConfig.delay` has it."""
    delay_reason: str = ""


@dataclass(frozen=True)
class _Measured:
    """How well held-out rows are foretold."""

    losses: NDArray[np.float64]
    """(blocks,) the mean log loss of each block."""
    auc: float

    @property
    def loss(self) -> float:
        return float(self.losses.mean())

    def is_better_than(self, other: "_Measured") -> bool:
        """Tell whether rows are ranked better, and the loss is less by more than what chance explains."""
        gain = other.losses - self.losses
        error = float(gain.std(ddof=1)) / len(gain) ** 0.5
        return self.auc - other.auc >= LEAST_GAIN and bool(gain.mean() > _CLEAR * error)


class _HeldOut:
    """Held-out rows in order of time, with what the columns foretell of their labels."""

    def __init__(self, label: NDArray[np.float64], odds: NDArray[np.float64]) -> None:
        """`label`: (m,) 0 or 1; `odds`: (m,) the log odds by a regression on all columns."""
        self._label, self._odds = label, odds
        self._fold = np.arange(len(label)) * _FOLDS // len(label)
        self._blocks = np.arange(len(label)) * _BLOCKS // len(label)

    def measure(self, columns: Sequence[NDArray[np.float64]]) -> _Measured:
        """Score each fold by a regression on the log odds and columns (m, inputs), fitted to the others."""
        inputs = np.concatenate([np.stack([np.ones(len(self._odds)), self._odds], axis=1), *columns], axis=1)
        scores = np.empty(len(inputs))
        for fold in range(_FOLDS):
            is_other = self._fold != fold
            scores[~is_other] = inputs[~is_other] @ fit_logistic(inputs[is_other], self._label[is_other])
        losses = np.logaddexp(0.0, np.where(self._label == 1, -scores, scores))
        by_block = np.bincount(self._blocks, losses) / np.bincount(self._blocks)
        return _Measured(by_block, auc_of(scores, self._label))


def find_past(
    columns: Mapping[str, ColumnProfile],
    label: Label,
    roles: Roles,
    decisions: Sequence[Decision],
    pairs: Sequence[Pair],
    held_out: NDArray[np.int64],
    seed: int = 0,
) -> FoundPast:
    """Return the histories that gain.

    `pairs`: those whose values together may say more; `held_out`: (m,) the rows of the sample that the recipe holds
    out.
    """
    if roles.time is None:
        return FoundPast()
    seconds = columns[roles.time].row_seconds
    delay, delay_reason = _delay(decisions, seconds)
    is_event = np.isfinite(label.values) & np.isfinite(seconds)
    is_train = is_event.copy()
    is_train[held_out] = False
    held_out = held_out[is_event[held_out]]
    held_out = held_out[np.argsort(seconds[held_out], kind="stable")]
    held_out = held_out[:: max(-(-len(held_out) // _MOST_MEASURED), 1)]
    takes = _tried(decisions, pairs, int(is_event.sum()))
    if not takes or min((label.values[held_out] == side).sum() for side in (0, 1)) < _LEAST_OF_A_KIND:
        return FoundPast()
    evidence = evidence_of(columns, label, roles, seed)
    odds = evidence.regressed(*regression_inputs(decisions), is_train) if evidence.is_possible else None
    if odds is None:
        return FoundPast()
    moments = np.round(np.clip(np.where(is_event, seconds, 0.0), -_FARTHEST, _FARTHEST) * 1e6).astype(np.int64)
    times, labels = pa.array(moments, pa.timestamp("us", "UTC")), pa.array(label.values, mask=~is_event)
    left = {}
    for by, take in takes.items():
        numbered = {str(number): _texts(columns[key]) for number, key in enumerate(by)}
        config = HistoryConfig.model_validate({"by": tuple(numbered), "take": take, "delay": delay})
        history = plan_history("", config, "time")
        rows = pa.RecordBatch.from_pydict({**numbered, "time": times, "label": labels})
        keys = joined_keys([rows[key] for key in numbered]).take(pa.array(held_out))
        table = history_of_rows(history, rows.filter(pa.array(is_event)), "label")
        taken = table.complete(history, history.columns, keys, moments[held_out])
        inputs = [number_inputs(taken[column].to_numpy(zero_copy_only=False)) for column in history.columns]
        left[by] = [some[:, some.any(axis=0)] for some in inputs]  # counts are never missing
    named, used = [], {*columns, *(rule["name"] for d in decisions for rule in d.rules if "name" in rule)}
    for found in _choose(_HeldOut(label.values[held_out], odds[held_out]), takes, left):
        name = found.name.replace(".", "_")
        while used & {f"{name}_{op}" for op in _OPS}:
            name += "_"
        used |= {f"{name}_{op}" for op in _OPS}
        named.append(replace(found, name=name))
    return FoundPast(named, delay, delay_reason)


def _tried(decisions: Sequence[Decision], pairs: Sequence[Pair], rows: int) -> dict[tuple[str, ...], list[_Take]]:
    """Return the keys whose past is tried, each with what is taken of it."""
    # People and items have the most values of all columns, and each of them several rows.
    able = [d.column for d in decisions if d.kind == "categorical" and d.column.repeated_share >= LEAST_REPEATED]
    able = sorted((c for c in able if c.distinct >= _LEAST_VALUES), key=lambda column: -column.distinct)
    most = min(_MOST_KEYS, max(_MOST_EVENTS // max(rows, 1), 2))
    takes: dict[tuple[str, ...], list[_Take]] = {(column.name,): list(_OPS) for column in able[:most]}
    of_pair = {pair.keys: [{"op": "rate", "smoothing": pair.smoothing}] for pair in pairs}
    return takes | {keys: ["count", *rate, "age"] for keys, rate in of_pair.items()}


def _choose(
    rest: _HeldOut, takes: Mapping[tuple[str, ...], list[_Take]], left: dict[tuple[str, ...], list[NDArray[np.float64]]]
) -> list[FoundHistory]:
    """Return the keys that gain, named as they are, each beside those before it; `left` loses these.

    `left`: by key (m, inputs) what is taken of the past of the held-out rows.
    """
    chosen: list[NDArray[np.float64]] = []
    best, found = rest.measure([]), list[FoundHistory]()
    while left and len(found) < _MOST_FOUND:
        measured = {by: rest.measure([*chosen, *taken]) for by, taken in left.items()}
        by = min(measured, key=lambda by: measured[by].loss)
        # Of what is taken, each must help beside the others.
        now, kept = measured[by], list(zip(takes[by], left.pop(by), strict=True))
        for one in list(kept):
            fewer = [other for other in kept if other is not one]
            if fewer and (without := rest.measure([*chosen, *(inputs for _, inputs in fewer)])).loss <= now.loss:
                kept, now = fewer, without
        if not now.is_better_than(best):
            break
        chosen += [inputs for _, inputs in kept]
        # How much a rate is worth depends on the count, as a network learns and a regression does not.
        count, rate, _ = takes[by]
        take = [given for given, _ in kept]
        take = [count, *take] if rate in take and count not in take else take
        found.append(FoundHistory("_".join(by), by, tuple(take), now.auc, best.auc))
        best = now
    return found


def _delay(decisions: Sequence[Decision], seconds: NDArray[np.float64]) -> tuple[str | None, str]:
    """Return how long after a row its label is known, and why: a time that comes with the label says it."""
    for column in [d.column for d in decisions if d.warning is not None and d.column.form == "time"]:
        later = column.row_seconds - seconds
        later = later[later > 0]
        if len(later):
            most = float(np.quantile(later, _MOST_LATE))
            unit, size = next(((unit, size) for unit, size in _UNITS if most > 2 * size), _UNITS[-1])
            delay = f"{math.ceil(most / size)}{unit}"
            return delay, f"a label is known {delay} later: '{column.name}' is in {_MOST_LATE:.0%} of the rows with it"
    return None, "labels count at once: say `delay: 1d` if they are known a day later"


def _texts(column: ColumnProfile) -> pa.Array:
    """Return (n,) the texts of a column's rows."""
    return pa.array(column.texts, pa.string()).take(pa.array(column.codes, mask=column.codes < 0))
