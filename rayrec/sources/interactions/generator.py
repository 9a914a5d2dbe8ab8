"""Ratings in MovieLens' layout, any number of them in constant memory, with preferences that can be learnt.

Users are drawn one after the other, blocks of them from random streams of their own, so a user depends on the seed and
its number alone: more rows repeat the rows that fewer rows had (but for the last user, who is cut short).

By day, users come, stay for some days and go; new items appear, older ones become less popular, and what items are like
drifts, so that the tastes of all users do. Which items a user meets on which day is a function of the three, so that a
day's ratings are found without those of the days before, and no user rates an item twice.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.common.progress import Progress, SilentProgress
from rayrec.random.splitmix64 import StatelessRandom
from rayrec.sources.generated_text import csv_file, rows_by_file
from rayrec.store.folders import new_folder

FILE = "ratings.csv"
NUM_ITEMS = 2_000
LEAST_INTERACTIONS = 20
"""Least interactions of a user, as in MovieLens; by day those of a user on each day."""
_MOST_INTERACTIONS = NUM_ITEMS // 4
_ACTIVITY_EXPONENT = 1.1
"""Tail of the number of interactions of a user beyond the least: Pareto."""
_ACTIVITY_SCALE = 40.0
_POPULARITY_EXPONENT = 0.8
"""The item of rank r is chosen in proportion to r^-exponent, preferences aside."""
_LATENT_DIM = 4
_PREFERENCE = 2.0
"""Standard deviation of a user's preferences, in nats: exp(2) between an item one deviation up and an average one."""
_BLOCK_USERS, _BLOCK_USERS_OF_A_DAY = 256, 32
_FIRST_TIME, _TIME_SPAN, _SESSION_SPAN = 800_000_000, 700_000_000, 30 * 86_400

DAYS_OF_A_USER = 7
USERS_OF_A_DAY = 10**9
"""Users who begin on day d have numbers above d times this."""
_BITS_OF_AN_ITEM = 20
_FIRST_DAY, _SECONDS_OF_A_DAY = 9_260, 86_400
"""Day 0, in days since 1970: 10 May 1995."""
_NEW_ITEMS = 20
"""Items that a day adds at a drift of 1."""
_LOSS_OF_POPULARITY = 0.02
"""What an item loses against new ones in a day at a drift of 1, in nats."""
_ITEM_STEP = 0.1
"""At a drift of 1, what an item is like correlates with the day before by sqrt(1 - step^2)."""
_RATINGS = pa.array([f"{half / 2:.1f}" for half in range(1, 11)])
_SCHEMA = pa.schema(
    [("userId", pa.int64()), ("movieId", pa.int64()), ("rating", pa.string()), ("timestamp", pa.int64())]
)


@dataclass(frozen=True)
class Catalogue:
    """Items that users choose from."""

    log_popularity: NDArray[np.float64]
    """(items,) in nats."""
    vectors: NDArray[np.float64]
    """(items, _LATENT_DIM), each number with mean 0 and standard deviation 1."""

    @classmethod
    def draw(cls, seed: np.uint32) -> Self:
        rng = np.random.default_rng(seed)
        ranks = rng.permutation(NUM_ITEMS) + 1
        return cls(-_POPULARITY_EXPONENT * np.log(ranks), rng.standard_normal((NUM_ITEMS, _LATENT_DIM)))

    def next_day(self, rng: np.random.Generator, drift: float) -> Self:
        """Return the catalogue of the next day, in which the items of this day are first."""
        step = _ITEM_STEP * drift
        vectors = np.sqrt(1.0 - step**2) * self.vectors + step * rng.standard_normal(self.vectors.shape)
        new = round(_NEW_ITEMS * drift)
        popularity = -_POPULARITY_EXPONENT * np.log(rng.integers(1, NUM_ITEMS + 1, new))
        return type(self)(
            np.concatenate([self.log_popularity - _LOSS_OF_POPULARITY * drift, popularity]),
            np.concatenate([vectors, rng.standard_normal((new, _LATENT_DIM))]),
        )


class RatingsGenerator:
    """An endless sequence of users that depends on the seed alone."""

    def __init__(self, seed: int = 0) -> None:
        items_seed, self._users_seed = np.random.SeedSequence(seed).generate_state(2)
        self._catalogue = Catalogue.draw(items_seed)

    def blocks(self) -> Iterator[pa.RecordBatch]:
        """Yield the ratings of the users 1, 2, ..., by user and within a user by item; a few hundred whole
        users each.
        """
        for number in count():
            rng = np.random.default_rng([self._users_seed, number])
            yield self._block(rng, first_user=1 + number * _BLOCK_USERS)

    def _block(self, rng: np.random.Generator, first_user: int) -> pa.RecordBatch:
        counts = np.minimum(LEAST_INTERACTIONS + _draw_activity(rng, _BLOCK_USERS), _MOST_INTERACTIONS).astype(np.int64)
        user_vectors = rng.standard_normal((_BLOCK_USERS, _LATENT_DIM))
        # Without BLAS, whose order of summation depends on the machine's threads.
        affinity = np.einsum("ud,id->ui", user_vectors, self._catalogue.vectors) / np.sqrt(_LATENT_DIM)
        # The items with the highest utility plus Gumbel noise are a sample without replacement (Plackett-Luce).
        noise = rng.gumbel(size=affinity.shape)
        order = np.argsort(-(self._catalogue.log_popularity + _PREFERENCE * affinity + noise), axis=1)
        is_chosen = np.arange(NUM_ITEMS) < counts[:, None]
        user = np.repeat(np.arange(_BLOCK_USERS), counts)
        item = order[is_chosen]
        item = item[np.lexsort((item, user))]
        rating = _draw_ratings(rng, affinity[user, item])
        start = _FIRST_TIME + rng.integers(_TIME_SPAN, size=_BLOCK_USERS)
        # Times are drawn apart from preferences: a user's last item is like any other.
        time = start[user] + rng.integers(_SESSION_SPAN, size=len(item))
        return _batch(first_user + user, item, rating, time)


class DayGenerator:
    """An endless sequence of the ratings of a day, which depends on the seed, the drift and the day alone."""

    def __init__(self, seed: int, drift: float) -> None:
        """The generator of day 0. `drift`: how much items and tastes change from day to day, 0 to 10."""
        items_seed, self._users_seed, meetings_seed, self._drift_seed = np.random.SeedSequence(seed).generate_state(4)
        self._meetings = StatelessRandom(int(meetings_seed))
        self._drift = drift
        self._day = 0
        self.catalogue = Catalogue.draw(items_seed)

    def next_day(self) -> "DayGenerator":
        """Return the generator of the next day."""
        other = copy.copy(self)
        other._day += 1
        rng = np.random.default_rng([self._drift_seed, other._day])
        other.catalogue = self.catalogue.next_day(rng, self._drift)
        return other

    def blocks(self) -> Iterator[pa.RecordBatch]:
        """Yield the day's ratings, by user and within a user by item; a few dozen whole users each."""
        day = self._day
        for number in count():
            for cohort in range(day, max(0, day - DAYS_OF_A_USER), -1):
                yield self._block(cohort, number)
            # Among the users of day 0, as among those of any day, as many began on each of the last days.
            if day < DAYS_OF_A_USER:
                for of_day_0 in range(number * DAYS_OF_A_USER, (number + 1) * DAYS_OF_A_USER):
                    yield self._block(0, of_day_0)

    def _block(self, cohort: int, number: int) -> pa.RecordBatch:
        """Return the day's ratings of a block of those users whom no day before `cohort` had."""
        rng = np.random.default_rng([self._users_seed, number, cohort])
        activity = np.minimum(_draw_activity(rng, _BLOCK_USERS_OF_A_DAY), _MOST_INTERACTIONS) / DAYS_OF_A_USER
        vectors = rng.standard_normal((_BLOCK_USERS_OF_A_DAY, _LATENT_DIM))
        # Users of day 0 may have begun on a day before, those of a later day begin on it.
        age = self._day - cohort + rng.integers(DAYS_OF_A_USER if cohort == 0 else 1, size=_BLOCK_USERS_OF_A_DAY)
        here = np.flatnonzero(age < DAYS_OF_A_USER)
        counts = LEAST_INTERACTIONS + activity[here].astype(np.int64)
        number_of = cohort * USERS_OF_A_DAY + 1 + number * _BLOCK_USERS_OF_A_DAY + here
        user, item = np.nonzero(self._day_of_meeting(number_of) == age[here, None])
        affinity = np.einsum("ij,ij->i", vectors[here[user]], self.catalogue.vectors[item]) / np.sqrt(_LATENT_DIM)

        rng = np.random.default_rng([self._users_seed, number, cohort, 1 + self._day])
        utility = self.catalogue.log_popularity[item] + _PREFERENCE * affinity + rng.gumbel(size=len(item))
        order = np.lexsort((-utility, user))
        place = np.empty_like(order)
        place[order] = np.arange(len(order)) - np.searchsorted(user, user)
        chosen = np.flatnonzero(place < counts[user])
        rating = _draw_ratings(rng, affinity[chosen])
        time = (_FIRST_DAY + self._day) * _SECONDS_OF_A_DAY + rng.integers(_SECONDS_OF_A_DAY, size=len(chosen))
        return _batch(number_of[user[chosen]], item[chosen], rating, time)

    def _day_of_meeting(self, users: NDArray[np.int64]) -> NDArray[np.int64]:
        """(users, items) the one of a user's days, from 0, on which it may choose an item."""
        items = np.arange(len(self.catalogue.log_popularity))
        pairs = (users[:, None] << _BITS_OF_AN_ITEM) + items
        return self._meetings.choice("day", pairs.ravel(), DAYS_OF_A_USER).reshape(pairs.shape)


def _draw_activity(rng: np.random.Generator, users: int) -> NDArray[np.float64]:
    """(users,) whole numbers: the interactions of each beyond the least."""
    return np.floor(_ACTIVITY_SCALE * rng.pareto(_ACTIVITY_EXPONENT, users))


def _draw_ratings(rng: np.random.Generator, affinity: NDArray[np.float64]) -> pa.Array:
    """(n,) the stars that a user gives to an item, as text, given the affinity of the two (n,)."""
    stars = 3.5 + affinity + 0.5 * rng.standard_normal(len(affinity))
    return _RATINGS.take(pa.array(np.clip(np.round(2 * stars), 1, 10).astype(np.int64) - 1))


def _batch(
    user: NDArray[np.int64], item: NDArray[np.int64], rating: pa.Array, time: NDArray[np.int64]
) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(user), pa.array(item + 1), rating, pa.array(time)], schema=_SCHEMA)


def generate(
    output: Path,
    rows: int,
    *,
    seed: int = 0,
    days: int | None = None,
    drift: float = 0.0,
    compress: bool = False,
    progress: Progress | None = None,
) -> dict[str, int]:
    """Write ratings (userId, movieId, rating, timestamp; with `compress` gzip) into the new folder `output`.

    One file `ratings.csv`, or with `days` the files `day_0.csv` ... with equal shares of the rows, whose times are on
    that day. No user rates an item twice; all but the last user of a file have at least LEAST_INTERACTIONS ratings in
    it. `drift`: how much items and tastes change from day to day, 0 to 10; users come and go at any. Return the number
    of `items` in the catalogue, chosen or not, and without `days` that of `users`. Raises UserError on arguments out of
    range or an existing output.
    """
    rows_of_files = rows_by_file(rows, days)
    progress = progress or SilentProgress()
    with new_folder(output) as folder:
        progress.stage("generate", rows)

        def write_file(name: str, blocks: Iterator[pa.RecordBatch], left: int) -> pa.RecordBatch:
            """Write so many of the rows; return the last of them."""
            with csv_file(folder / (f"{name}.gz" if compress else name), _SCHEMA) as write:
                while True:
                    batch = next(blocks).slice(0, left)
                    write(batch)
                    progress.advance(batch.num_rows)
                    left -= batch.num_rows
                    if left == 0:
                        return batch

        if days is None:
            last = write_file(FILE, RatingsGenerator(seed).blocks(), rows)
            return {"users": last["userId"][-1].as_py(), "items": NUM_ITEMS}
        generator = DayGenerator(seed, drift)
        for day, rows_of_file in enumerate(rows_of_files):
            generator = generator.next_day() if day else generator
            write_file(f"day_{day}.csv", generator.blocks(), rows_of_file)
    return {"items": len(generator.catalogue.log_popularity)}
