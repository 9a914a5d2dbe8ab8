"""Ratings in MovieLens' layout, any number of them in constant memory, with preferences that can be learnt.

Users come in blocks, each of which is drawn from the seed and its number alone: more rows repeat the rows that fewer
rows had (but for the last user, who is cut short).

By day, users come, stay for some days and go; new items appear, older ones become less popular, and what items are like
drifts, so that the tastes of all users do. Which items a user meets on which day is a function of the three, so that a
day's ratings are found without those of the days before, and no user rates an item twice.
"""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa

from rayrec.common.progress import Progress
from rayrec.sources.generated_files import GeneratorOptions, rows_file
from rayrec.sources.synthetic import World
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
BLOCK_USERS = 64
"""Users that are drawn at once."""
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
_RATINGS = pa.array([f"{half / 2:.1f}" for half in range(1, 11)])


class Ratings:
    """An endless sequence of ratings, of a day or, if `days` is false, of users who come once."""

    def __init__(self, seed: int = 0, *, day: int = 0, drift: float = 0.0, days: bool = False) -> None:
        self._world, self._days = World(seed, day, drift), DAYS_OF_A_USER if days else 1
        # A day's blocks are smaller, so that also a short file has users of all days.
        self._users = BLOCK_USERS // self._days
        # The items in the order of their first day, each as popular in the beginning as one of the first.
        new = round(_NEW_ITEMS * drift)
        items = np.arange(NUM_ITEMS + new * day)
        age = day - np.maximum(items - NUM_ITEMS + new, 0) // max(new, 1)
        rank = self._world.random.uniform("popularity", items[:NUM_ITEMS])[:, 0].argsort().argsort() + 1
        self._popularity = -_POPULARITY_EXPONENT * np.log(rank)[items % NUM_ITEMS] - _LOSS_OF_POPULARITY * drift * age
        self._likeness = np.stack([self._world.effects(f"likeness {k}", items) for k in range(_LATENT_DIM)])

    @property
    def items(self) -> int:
        """Number of items in the catalogue, chosen or not."""
        return len(self._popularity)

    def blocks(self) -> Iterator[pa.RecordBatch]:
        """Yield the ratings by user and within a user by item, a few dozen whole users each."""
        day = self._world.day
        for number in count():
            if self._days == 1:
                yield self._block(0, number)
                continue
            for cohort in range(day, max(0, day - DAYS_OF_A_USER), -1):
                yield self._block(cohort, number)
            # Among the users of day 0, as among those of any day, as many began on each of the last days.
            if day < DAYS_OF_A_USER:
                for of_day_0 in range(number * DAYS_OF_A_USER, (number + 1) * DAYS_OF_A_USER):
                    yield self._block(0, of_day_0)

    def _block(self, cohort: int, number: int) -> pa.RecordBatch:
        """Return the ratings of a block of those users whom no day before `cohort` had."""
        # What is the same on all days of a user. Those of day 0 may have begun on a day before.
        rng = np.random.default_rng([self._world.seed, cohort, number])
        activity = np.floor(_ACTIVITY_SCALE * rng.pareto(_ACTIVITY_EXPONENT, self._users))
        tastes = rng.standard_normal((self._users, _LATENT_DIM))
        age = self._world.day - cohort + rng.integers(self._days if cohort == 0 else 1, size=self._users)
        here = np.flatnonzero(age < self._days)
        user = cohort * USERS_OF_A_DAY + 1 + number * self._users + here
        counts = LEAST_INTERACTIONS + np.minimum(activity[here], _MOST_INTERACTIONS) // self._days

        # Without BLAS, whose order of summation depends on the machine's threads.
        affinity = np.einsum("ud,di->ui", tastes[here], self._likeness) / np.sqrt(_LATENT_DIM)
        # The items with the highest utility plus Gumbel noise are a sample without replacement (Plackett-Luce).
        pairs = (user[:, None] << _BITS_OF_AN_ITEM) + np.arange(self.items)
        place = self._days * self._world.random.uniform("meeting", pairs.ravel())[:, 0].reshape(pairs.shape)
        first = np.floor(place)
        meets, noise = first == age[here, None], -np.log(-np.log(place - first))
        utility = np.where(meets, self._popularity + _PREFERENCE * affinity + noise, -np.inf)
        best = np.argsort(-utility, axis=1)
        of, item = np.nonzero(np.arange(counts.max(initial=0)) < counts[:, None])
        item = best[of, item]
        item = item[np.lexsort((item, of))]

        rng = self._world.rng(f"ratings {cohort}", number)
        stars = 3.5 + affinity[of, item] + 0.5 * rng.standard_normal(len(item))
        rating = _RATINGS.take(pa.array(np.clip(np.round(2 * stars), 1, 10).astype(np.int64) - 1))
        # Times are drawn apart from preferences: a user's last item is like any other.
        if self._days == 1:
            start = _FIRST_TIME + rng.integers(_TIME_SPAN, size=len(user))
            time = start[of] + rng.integers(_SESSION_SPAN, size=len(item))
        else:
            time = (_FIRST_DAY + self._world.day) * _SECONDS_OF_A_DAY + rng.integers(_SECONDS_OF_A_DAY, size=len(item))
        return pa.RecordBatch.from_pydict(
            {"userId": user[of], "movieId": item + 1, "rating": rating, "timestamp": time}
        )


def generate(output: Path, options: GeneratorOptions, progress: Progress) -> dict[str, int]:
    """Write ratings (userId, movieId, rating, timestamp) into the new folder `output`.

    One file `ratings.csv`, or by day the files `day_0.csv` ... with equal shares of the rows, whose times are on that
    day. No user rates an item twice; all but the last user of a file have at least LEAST_INTERACTIONS ratings in it.
    Items and tastes drift from day to day, and users come and go at any drift. Return the number of `items` in the
    catalogue, chosen or not, and without days that of `users`. Raises UserError on days without rows or an existing
    output.
    """
    files = options.files(FILE, "day_{}.csv")
    with new_folder(output) as folder:
        progress.stage("generate", options.rows)
        for day, (name, rows) in enumerate(files):
            ratings = Ratings(options.seed, day=day, drift=options.drift, days=options.days is not None)
            blocks, left = ratings.blocks(), rows
            with rows_file(folder / name) as write:
                while left:
                    last = next(blocks)[:left]
                    write(last)
                    progress.advance(len(last))
                    left -= len(last)
    made = {"items": ratings.items}
    return made if options.days is not None else {"users": last["userId"][-1].as_py(), **made}
