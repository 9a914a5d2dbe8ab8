"""Ratings of people who come and go, whose interests change, and of whom the newest events tell what they choose next.

Items belong to hidden groups, in each of which they have an order, such as films of a kind. A person has a few
interests at a time, goes on in one of them with the next items of its group, or looks at anything. The person likes
what is like what they liked before, however few of these events there are among the others:

    P(rating >= 4) = sigmoid(_BIAS + _MATCH (1 - exp(-n)) + quality of the item)

where n counts the newest `LAST_LIKED` liked items of the person, before this one, that are of the item's group. So mean
pooling of a history blurs what attention finds. At a drift of 1 an interest lasts for about a hundred events, groups
come into and out of fashion in a year, and items are added all the time.
"""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.common.progress import Progress
from rayrec.sources.generated_files import TRUTH_FILE, GeneratedTruth, GeneratorOptions, TruthAccumulator, rows_file
from rayrec.sources.interactions.generator import FILE
from rayrec.sources.synthetic import World
from rayrec.store.files import write_json
from rayrec.store.folders import new_folder

CHANCES_FILE = "chances.parquet"
"""The true probability of each row that its rating is at least 4; no person rates an item twice."""

LAST_LIKED = 20
"""Newest liked items of a person that say what is liked next."""
DAYS, _FIRST_DAY, _DAY = 365, 19_723, 86_400
"""The ratings are of 2024."""
_GROUPS, _FIRST_ITEMS, _NEW_ITEMS = 50, 2_000, 500
"""Items of the first day, and those that a drift of 1 adds in a year."""
_INTERESTS, _CHANGE = 6, 0.06
"""Interests of a person, and the chance at a drift of 1 that one of them is replaced at an event."""
_IN_INTEREST, _STAYS, _SKIP = 0.7, 0.5, 0.6
"""Chance that an item is of an interest and not any; that the interest is the one before; that none is skipped."""
_TRIES = 4
"""Items that are looked at to find one that is new to the person."""
_LEAST, _MOST, _ACTIVITY, _ACTIVITY_SCALE = 20, 240, 1.5, 30.0
"""Events of a person: the least, the most, and tail (Pareto) and scale of those beyond the least."""
_SESSION, _AWAY = 10, 4.0
"""Mean number of events in a sitting, and of days between two."""
_BIAS, _MATCH, _QUALITY = -2.2, 4.8, 0.4
_FASHION = 0.7
"""Standard deviation of the logarithm of a group's popularity."""
_USERS = 128
_RATINGS = pa.array([f"{half / 2:.1f}" for half in range(1, 11)])


class Block(NamedTuple):
    """The ratings of some people, by person and time."""

    rows: pa.RecordBatch
    """userId, movieId, rating, timestamp."""
    likes: NDArray[np.bool_]
    """(n,) whether the rating is at least 4."""
    chance: NDArray[np.float64]
    """(n,) the true probability of that."""
    matches: NDArray[np.int64]
    """(n,) how many of the newest liked items before are of the item's group."""


class People:
    """An endless sequence of people; more of them begin with those that fewer of them are."""

    def __init__(self, seed: int, drift: float) -> None:
        """`drift`: how fast interests, fashions and the catalogue change, above 0."""
        self._seed, self._drift, random = seed, drift, World(seed).random
        items = np.arange(_FIRST_ITEMS + round(_NEW_ITEMS * drift))
        self.items = len(items)
        group = random.choice("group", items, _GROUPS)
        self._quality = _QUALITY * random.normal("quality", items)
        # The items of each group in their order, and how many of them there are on each day.
        self._series, self._first = np.argsort(group, kind="stable"), np.searchsorted(np.sort(group), range(_GROUPS))
        enters = np.maximum(items - _FIRST_ITEMS + 1, 0) * DAYS // (self.items - _FIRST_ITEMS + 1)
        added = np.zeros((DAYS, _GROUPS), np.int64)
        np.add.at(added, (enters, group), 1)
        self._there = added.cumsum(axis=0)
        # A fashion turns into its opposite in a year at a drift of 1.
        turn = np.pi * drift * np.arange(DAYS)[:, None] / DAYS
        now, later = (random.normal(f"fashion {k}", np.arange(_GROUPS)) for k in (0, 1))
        popularity = np.exp(_FASHION * (np.cos(turn) * now + np.sin(turn) * later)) * (self._there > 0)
        self._popularity = popularity.cumsum(axis=1) / popularity.sum(axis=1, keepdims=True)

    def blocks(self) -> Iterator[Block]:
        """Yield the people in the order of their numbers, some at a time."""
        for number in count():
            yield self._block(number)

    def _block(self, number: int) -> Block:
        rng, everyone = np.random.default_rng([self._seed, number]), np.arange(_USERS)
        events = np.minimum(_LEAST + (_ACTIVITY_SCALE * rng.pareto(_ACTIVITY, _USERS)).astype(np.int64), _MOST)
        seconds = rng.integers(0, DAYS * _DAY, _USERS)
        interests = self._any_group(rng, seconds // _DAY, _INTERESTS)
        places = rng.integers(0, 1_000, interests.shape)
        current = np.zeros(_USERS, np.int64)
        seen = np.zeros((_USERS, self.items), np.bool_)
        liked, likes = np.full((_USERS, LAST_LIKED), -1), np.zeros(_USERS, np.int64)
        parts = []
        for event in range(events.max()):
            away = rng.random(_USERS) < 1 / _SESSION
            seconds = (
                seconds
                + 20
                + np.where(away, _AWAY * _DAY * rng.exponential(size=_USERS), rng.integers(0, 600, _USERS)).astype(
                    np.int64
                )
            )
            day = np.minimum(seconds // _DAY, DAYS - 1)

            changed, which = rng.random(_USERS) < self._drift * _CHANGE, rng.integers(0, _INTERESTS, _USERS)
            others = self._any_group(rng, day, 1)[:, 0]
            interests[changed, which[changed]] = others[changed]
            places[changed, which[changed]] = rng.integers(0, 1_000, _USERS)[changed]

            in_interest = rng.random(_USERS) < _IN_INTEREST
            current = np.where(rng.random(_USERS) < _STAYS, current, rng.integers(0, _INTERESTS, _USERS))
            group = np.where(in_interest, interests[everyone, current], self._any_group(rng, day, 1)[:, 0])
            there = self._there[day, group][:, None]
            after = places[everyone, current][:, None] + rng.geometric(_SKIP, (_USERS, _TRIES)).cumsum(axis=1)
            # Of anything, what came early is known best: a long tail.
            anything = (there * rng.random((_USERS, _TRIES)) ** 3).astype(np.int64)
            place = np.where(in_interest[:, None], after % np.maximum(there, 1), anything)
            item = self._series[np.minimum(self._first[group][:, None] + place, self.items - 1)]
            is_new = ~seen[everyone[:, None], item]
            chosen = is_new.argmax(axis=1)
            item, place, is_new = item[everyone, chosen], place[everyone, chosen], is_new[everyone, chosen]
            is_new &= there[:, 0] > 0
            moves = np.flatnonzero(in_interest & is_new)
            places[moves, current[moves]] = place[moves]

            matches = (liked == group[:, None]).sum(axis=1)
            chance = 1 / (1 + np.exp(-(_BIAS + _MATCH * (1 - np.exp(-matches)) + self._quality[item])))
            likes_it = rng.random(_USERS) < chance
            happens = is_new & (event < events) & (seconds < DAYS * _DAY)
            seen[everyone[happens], item[happens]] = True
            new = np.flatnonzero(happens & likes_it)
            liked[new, likes[new] % LAST_LIKED] = group[new]
            likes[new] += 1
            half_stars = np.where(likes_it, rng.integers(8, 11, _USERS), rng.integers(2, 8, _USERS))
            parts.append(
                [column[happens] for column in (everyone, item, half_stars, seconds, likes_it, chance, matches)]
            )
        user, item, half_stars, seconds, likes_it, chance, matches = map(np.concatenate, zip(*parts, strict=True))
        order = np.argsort(user, kind="stable")
        rows = pa.RecordBatch.from_pydict({
            "userId": user[order] + 1 + number * _USERS,
            "movieId": item[order] + 1,
            "rating": _RATINGS.take(pa.array(half_stars[order] - 1)),
            "timestamp": _FIRST_DAY * _DAY + seconds[order],
        })  # fmt: skip
        return Block(rows, likes_it[order], chance[order], matches[order])

    def _any_group(self, rng: np.random.Generator, day: NDArray[np.int64], size: int) -> NDArray[np.int64]:
        """Return (users, size) groups by their popularity on a day of each user (users,)."""
        drawn = rng.random((len(day), size, 1))
        return np.minimum((self._popularity[day][:, None, :] < drawn).sum(axis=2), _GROUPS - 1)


class PeopleTruth(GeneratedTruth):
    """The content of `truth.json`: of whether a rating is at least 4."""

    drift: float
    items: int
    """Items of the catalogue, chosen or not."""
    users: int


def generate_people(output: Path, options: GeneratorOptions, progress: Progress) -> dict[str, Any]:
    """Write the ratings of people, by person and time, into the new folder `output`, with their truth.

    `chances.parquet` has the true probability of each row (userId, movieId, probability). Return what `truth.json`
    says. Raises UserError on an existing output.
    """
    people, truth, left = People(options.seed, options.drift), TruthAccumulator(), options.rows
    blocks = people.blocks()
    with new_folder(output) as folder:
        progress.stage("generate", options.rows)
        with (
            rows_file(folder / (FILE + ".gz" * options.compress)) as write,
            rows_file(folder / CHANCES_FILE) as chances,
        ):
            while left:
                rows, likes, chance, _ = next(blocks)
                rows, likes, chance = rows[:left], likes[:left], chance[:left]
                write(rows)
                chances(rows.select(["userId", "movieId"]).append_column("probability", pa.array(chance)))
                truth.add(chance, likes)
                progress.advance(len(likes))
                left -= len(likes)
        result = PeopleTruth(
            source="interactions",
            seed=options.seed,
            drift=options.drift,
            items=people.items,
            users=rows["userId"][-1].as_py(),
            **truth.result().model_dump(),
        )
        write_json(folder / TRUTH_FILE, result.model_dump(mode="json"))
    return {"truth": result.model_dump(mode="json", exclude={"method"})}
