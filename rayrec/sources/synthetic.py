"""The hidden world behind generated rows: what values do, how they come and go, and labels that follow from them.

Rows come in chunks of fixed size, and everything random is a function of a seed, a purpose and the number of a chunk or
a thing. So any chunk of any day is made alone, more rows begin with the rows that fewer rows had, and nothing is kept
of millions of values.

A label is drawn from a logistic model over terms, one of each column and one of each pair of columns:

    logit p = bias + sum_j w_j term_j + sum_(a,b) w_ab trait_a trait_b

Only frequent values have effects and traits of their own, so that what can be known about a row is
learnable from a sample in which rare values occur once or never. Days drift: weights and effects make a step of a
random walk from one to the next, and new values, with effects of their own, replace old ones.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.random.arrays import StatelessRandom

CHUNK_ROWS = 16_384
_SAMPLE = 2**31
"""The number of the chunk that is drawn to scale the logits; it is in no file."""
BASE_RATE = 0.25
LOGIT_SD = 1.4
"""Standard deviation of the logit; nearly normal logits of this width at this base rate give a best AUC near 0.80."""
EXPONENT = 1.45
"""The value of rank r has a share of about r^-EXPONENT of a column's rows; as in NVIDIA's synthetic Criteo data."""
HEAD = 100
"""Most frequent values of a column that have an effect of their own."""

DRIFT_STEP = 0.07
"""At a drift of 1, a weight or an effect correlates with that of the day before by sqrt(1 - DRIFT_STEP^2)."""
TURNOVER = 0.1
"""New values of a rank in a day at a drift of 1."""
_TAKEOVER = 0.2
"""Share of the time until the next new value that a new one takes to get all the rows of its rank."""
_FEWEST_VALUES = 1_000
"""Columns with fewer values keep them: those of a country or a kind of device, not of an item or a campaign."""
RANK_BITS = 24
"""A value is a number: its rank from 0, plus 2^RANK_BITS times the values that had this rank before it."""


@dataclass(frozen=True)
class World:
    """The hidden numbers of a seed, on a day."""

    seed: int
    day: int = 0
    drift: float = 0.0
    """How much values and preferences change from day to day, 0 to 10."""

    @cached_property
    def random(self) -> StatelessRandom:
        """What is the same on all days."""
        return StatelessRandom(int(np.random.SeedSequence(self.seed).generate_state(1, np.uint64)[0]))

    def rng(self, purpose: str, number: int) -> np.random.Generator:
        """Return the random stream of a chunk of the day for one purpose."""
        return np.random.default_rng([self.seed, zlib.crc32(purpose.encode()), number, self.day])

    def drifted(self, start: NDArray[np.float64], purpose: str, things: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return what numbers (n,) of day 0, of variance 1, are on this day: a random walk that stays as wide."""
        step = DRIFT_STEP * self.drift
        for day in range(1, self.day + 1 if self.drift else 0):
            start = np.sqrt(1.0 - step**2) * start + step * self.random.normal(f"{purpose} {day}", things)
        return start

    def effects(self, purpose: str, things: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return what things (n,) add on this day: mean 0, standard deviation 1."""
        return self.drifted(self.random.normal(purpose, things), purpose, things)


def skewed(rng: np.random.Generator, count: int, cardinality: int) -> NDArray[np.int64]:
    """Draw ranks from 0 on: the inverse of the cumulative distribution of a density x^-EXPONENT on [1, size + 1)."""
    power = 1.0 - EXPONENT
    drawn = (1.0 + rng.random(count) * ((cardinality + 1.0) ** power - 1.0)) ** (1.0 / power)
    return np.minimum(drawn.astype(np.int64), cardinality) - 1


class Drawn(NamedTuple):
    """A column's part in n rows."""

    written: dict[str, pa.Array]
    """(n,) values by the name of the file's column."""
    term: NDArray[np.float64]
    """(n,) what the logit is linear in; 0 for a column that says nothing."""
    trait: NDArray[np.float64] | None = None
    """(n,) -1 or 1, to be multiplied by that of another column; 0 for rare values."""
    is_new: NDArray[np.bool_] | None = None
    """(n,) whether no earlier day had the value."""


@dataclass(frozen=True)
class Column:
    """A column, or a few that are drawn together."""

    name: str
    draw: Callable[[np.random.Generator, NDArray[np.int64]], Drawn]
    """Returns the values of the rows with these numbers (n,)."""


class Category:
    """A column of values, low ranks being the frequent ones; if it has many, they come and go.

    On day 0 every rank has its first value. Afterwards new ones come at equal intervals, at other times for each rank,
    and take over more of its rows from day to day: the values before them fade.
    """

    def __init__(
        self,
        world: World,
        name: str,
        cardinality: int,
        spell: Callable[[NDArray[np.int64], NDArray[np.bool_]], pa.Array],
        missing: float = 0.0,
    ) -> None:
        """`spell`: returns the values (n,) of these numbers, null where missing; `missing`: share of the rows."""
        self.name, self.cardinality = name, cardinality
        self._world, self.spell, self._missing = world, spell, missing
        self._rate = TURNOVER * world.drift if world.day and cardinality >= _FEWEST_VALUES else 0.0
        # By place: the frequent ranks, all the others (with an effect of 0), "missing". Of the values that share a rank
        # on a day, one has an even number of predecessors and one an odd number.
        self._effects, self._traits = np.zeros((2, HEAD + 2, 2))
        ranks = np.arange(HEAD)
        newest = np.floor(self._age(ranks, world.day)).astype(np.int64)
        for generation in (newest, np.maximum(newest - 1, 0)):
            values = np.append(generation << RANK_BITS | ranks, -1)
            where = np.append(ranks, -1), np.append(generation % 2, 0)
            self._effects[where] = world.effects(name, values)
            self._traits[where] = np.sign(world.random.normal(f"{name} trait", values))

    def draw(self, rng: np.random.Generator, rows: NDArray[np.int64]) -> Drawn:
        ranks = skewed(rng, len(rows), self.cardinality)
        missing = rng.random(len(rows)) < self._missing
        generation, is_new = np.zeros_like(ranks), None
        if self._rate:
            age, before = self._age(ranks, self._world.day), self._age(ranks, self._world.day - 1)
            newest = np.floor(age)
            has_newest = rng.random(len(rows)) * _TAKEOVER < age - newest
            generation = np.maximum(newest - ~has_newest, 0.0).astype(np.int64)
            is_new = has_newest & (newest > np.floor(before)) & ~missing
        place = np.where(missing, HEAD + 1, np.minimum(ranks, HEAD)), generation % 2
        written = self.spell(generation << RANK_BITS | ranks, missing)
        return Drawn({self.name: written}, self._effects[place], self._traits[place], is_new)

    def effects_of(self, ranks: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return what the first values of ranks (n,) add."""
        return self._effects[np.minimum(ranks, HEAD), 0]

    def _age(self, ranks: NDArray[np.int64], day: int) -> NDArray[np.float64]:
        """Return (n,) how many values have replaced the first of each rank, with the share of the time to the next."""
        if not self._rate:
            return np.zeros(len(ranks))
        return self._world.random.uniform(self.name, ranks)[:, 0] + self._rate * day


@dataclass(frozen=True)
class Labelled:
    """Consecutive rows."""

    rows: pa.RecordBatch
    label: NDArray[np.bool_]
    probability: NDArray[np.float64]
    """(n,) the true probability of label 1."""
    new_values: int
    """Values that no earlier day had."""


@dataclass
class GeneratedRows:
    """An endless sequence of the rows of a day, drawn column by column, and the logistic model of their labels."""

    world: World
    columns: Sequence[Column | Category]
    write_label: Callable[[np.random.Generator, NDArray[np.bool_]], dict[str, pa.Array]]
    """Returns the column from which a label is read."""
    names: Sequence[str] | None = None
    """Those of the file's columns in order, if not as drawn; one that nothing fills is missing everywhere."""
    pairs: Sequence[tuple[str, str]] = ()
    """Columns whose traits act together."""
    sample: NDArray[np.int64] = field(default_factory=lambda: np.arange(CHUNK_ROWS))
    """Numbers of rows on which the model is scaled."""

    def __post_init__(self) -> None:
        terms = self.terms(self.draw(_SAMPLE, self.sample))
        # None is near 0, so that every term says something; their mean square is about 1.
        numbers = np.arange(terms.shape[1])
        weights = self.world.random.uniform("weight", numbers, 2)
        weights = np.where(weights[:, 0] < 0.5, -1.0, 1.0) * (0.45 + 1.05 * weights[:, 1])
        weights = self.world.drifted(weights, "weight", numbers)
        # A term that never varies says nothing about labels.
        spread = terms.std(axis=0)
        factors = np.divide(weights, spread, out=np.zeros_like(spread), where=spread > 0.0)
        self._factors = factors * LOGIT_SD / max(_weighted(terms, factors).std(), 1e-9)
        # The mean follows the bias less than one to one in logits, so these steps do not overshoot.
        logits, self._bias = _weighted(terms, self._factors), 0.0
        for _ in range(50):
            mean = _sigmoid(logits + self._bias).mean()
            self._bias += np.log(BASE_RATE / (1.0 - BASE_RATE)) - np.log(mean / (1.0 - mean))

    def draw(self, chunk: int, rows: NDArray[np.int64]) -> list[Drawn]:
        """Return the columns of the rows with these numbers (n,)."""
        return [column.draw(self.world.rng(column.name, chunk), rows) for column in self.columns]

    def terms(self, drawn: Sequence[Drawn]) -> NDArray[np.float64]:
        """Return what the logit is linear in, (n, columns + pairs)."""
        traits = {c.name: part.trait for c, part in zip(self.columns, drawn, strict=True) if part.trait is not None}
        return np.stack([*(part.term for part in drawn), *(traits[a] * traits[b] for a, b in self.pairs)], axis=1)

    def probability(self, drawn: Sequence[Drawn]) -> NDArray[np.float64]:
        """Return the probability of label 1, (n,)."""
        return _sigmoid(_weighted(self.terms(drawn), self._factors) + self._bias)

    def chunks(self, rows: int, *, first: int = 0) -> Iterator[Labelled]:
        """Yield `rows` rows, from the day's row `first` on, in chunks of at most CHUNK_ROWS."""
        for chunk in range(first // CHUNK_ROWS, -(-(first + rows) // CHUNK_ROWS)):
            start = chunk * CHUNK_ROWS
            drawn = self.draw(chunk, np.arange(start, start + CHUNK_ROWS))
            probability, rng = self.probability(drawn), self.world.rng("label", chunk)
            label = rng.random(CHUNK_ROWS) < probability
            written = {name: values for part in drawn for name, values in part.written.items()}
            written |= self.write_label(rng, label)
            if self.names is not None:
                nulls = pa.nulls(CHUNK_ROWS, pa.string())
                written = {name: written.get(name, nulls) for name in self.names}
            kept = slice(max(first - start, 0), min(first + rows - start, CHUNK_ROWS))
            new = sum(int(np.count_nonzero(part.is_new[kept])) for part in drawn if part.is_new is not None)
            yield Labelled(pa.RecordBatch.from_pydict(written)[kept], label[kept], probability[kept], new)


def _weighted(terms: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weighted sum of each row, without BLAS, whose order of summation depends on the machine's threads."""
    return np.einsum("ij,j->i", terms, weights)


def _sigmoid(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    return 0.5 * (1.0 + np.tanh(0.5 * logits))
