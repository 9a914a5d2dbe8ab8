"""Ratings in MovieLens' layout, any number of them in constant memory, with preferences that can be learnt.

Users are drawn one after the other, blocks of them from random streams of their own, so a user depends on the seed and
its number alone: more rows repeat the rows that fewer rows had (but for the last user, who is cut short).
"""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa

from rayrec.common.files import new_folder
from rayrec.common.progress import Progress, SilentProgress
from rayrec.sources.generated_text import csv_file

FILE = "ratings.csv"
NUM_ITEMS = 2_000
LEAST_INTERACTIONS = 20
"""Least interactions of a user, as in MovieLens."""
_MOST_INTERACTIONS = NUM_ITEMS // 4
_ACTIVITY_EXPONENT = 1.1
"""Tail of the number of interactions of a user beyond the least: Pareto."""
_ACTIVITY_SCALE = 40.0
_POPULARITY_EXPONENT = 0.8
"""The item of rank r is chosen in proportion to r^-exponent, preferences aside."""
_LATENT_DIM = 4
_PREFERENCE = 2.0
"""Standard deviation of a user's preferences, in nats: exp(2) between an item one deviation up and an average one."""
_BLOCK_USERS = 256
_FIRST_TIME, _TIME_SPAN, _SESSION_SPAN = 800_000_000, 700_000_000, 30 * 86_400
_RATINGS = pa.array([f"{half / 2:.1f}" for half in range(1, 11)])
_SCHEMA = pa.schema(
    [("userId", pa.int64()), ("movieId", pa.int64()), ("rating", pa.string()), ("timestamp", pa.int64())]
)


class RatingsGenerator:
    """An endless sequence of users that depends on the seed alone."""

    def __init__(self, seed: int = 0) -> None:
        items_seed, self._users_seed = np.random.SeedSequence(seed).generate_state(2)
        rng = np.random.default_rng(items_seed)
        ranks = rng.permutation(NUM_ITEMS) + 1
        self._log_popularity = -_POPULARITY_EXPONENT * np.log(ranks)
        self._item_vectors = rng.standard_normal((NUM_ITEMS, _LATENT_DIM))

    def blocks(self) -> Iterator[pa.RecordBatch]:
        """The ratings of the users 1, 2, ..., by user and within a user by item; a few hundred whole users each."""
        for number in count():
            rng = np.random.default_rng([self._users_seed, number])
            yield self._block(rng, first_user=1 + number * _BLOCK_USERS)

    def _block(self, rng: np.random.Generator, first_user: int) -> pa.RecordBatch:
        extra = np.floor(_ACTIVITY_SCALE * rng.pareto(_ACTIVITY_EXPONENT, _BLOCK_USERS))
        counts = np.minimum(LEAST_INTERACTIONS + extra, _MOST_INTERACTIONS).astype(np.int64)
        user_vectors = rng.standard_normal((_BLOCK_USERS, _LATENT_DIM))
        # Without BLAS, whose order of summation depends on the machine's threads.
        affinity = np.einsum("ud,id->ui", user_vectors, self._item_vectors) / np.sqrt(_LATENT_DIM)
        # The items with the highest utility plus Gumbel noise are a sample without replacement (Plackett-Luce).
        noise = rng.gumbel(size=affinity.shape)
        order = np.argsort(-(self._log_popularity + _PREFERENCE * affinity + noise), axis=1)
        is_chosen = np.arange(NUM_ITEMS) < counts[:, None]
        user = np.repeat(np.arange(_BLOCK_USERS), counts)
        item = order[is_chosen]
        item = item[np.lexsort((item, user))]

        stars = 3.5 + affinity[user, item] + 0.5 * rng.standard_normal(len(item))
        start = _FIRST_TIME + rng.integers(_TIME_SPAN, size=_BLOCK_USERS)
        # Times are drawn apart from preferences: a user's last item is like any other.
        time = start[user] + rng.integers(_SESSION_SPAN, size=len(item))
        rating = _RATINGS.take(pa.array(np.clip(np.round(2 * stars), 1, 10).astype(np.int64) - 1))
        return pa.RecordBatch.from_arrays(
            [pa.array(first_user + user), pa.array(item + 1), rating, pa.array(time)], schema=_SCHEMA
        )


def generate(
    output: Path, rows: int, *, seed: int = 0, compress: bool = False, progress: Progress | None = None
) -> dict[str, int]:
    """Write `ratings.csv` (userId, movieId, rating, timestamp; with `compress` gzip) into the new folder `output`.

    No user rates an item twice, and all but the last user have at least LEAST_INTERACTIONS ratings. Returns the number
    of `users`, and of `items` in the catalogue, chosen or not. Raises UserError on an existing output.
    """
    progress = progress or SilentProgress()
    with new_folder(output) as folder:
        progress.stage("generate", rows)
        path = folder / (f"{FILE}.gz" if compress else FILE)
        last_user = 0
        with csv_file(path, _SCHEMA) as write:
            left = rows
            for block in RatingsGenerator(seed).blocks():
                batch = block.slice(0, left)
                write(batch)
                progress.advance(batch.num_rows)
                last_user = batch["userId"][-1].as_py()
                left -= batch.num_rows
                if left == 0:
                    break
    return {"users": last_user, "items": NUM_ITEMS}
