"""A block of users: their interests, their visits and the pages that they view."""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from rayrec.sources.outbrain.layout import DAY_MILLISECONDS, FIRST_MILLISECOND
from rayrec.sources.outbrain.synthetic.world import TOPICS, World

BLOCK_USERS = 512
DAYS = 15
_LAST_MILLISECOND = DAYS * DAY_MILLISECONDS - 1
_DAY_SHARES = np.array([1.0] * 13 + [0.25] * 2)
_HOUR_SHARES = np.array([3, 2, 1, 1, 1, 2, 4, 6, 8, 8, 8, 8, 9, 9, 8, 8, 8, 8, 8, 9, 10, 10, 8, 5], float)
_PLATFORM_SHARES, _TRAFFIC_SHARES = (0.4, 0.47, 0.13), (0.6, 0.25, 0.15)
_NULL_PLATFORM, _NULL_PLACE = 0.003, 0.005
_CANDIDATES = 20
"""Number of ads drawn for a display; the first distinct ones are shown."""


@dataclass(frozen=True)
class Visits:
    """n views of documents; (n,) each."""

    user: NDArray[np.int64]
    document: NDArray[np.int64]
    timestamp: NDArray[np.int64]
    """Milliseconds, as the tables count."""
    platform: NDArray[np.int64]
    """1 to 3; 0 where null."""
    place: NDArray[np.int64]
    """-1 where null."""
    traffic: NDArray[np.int64]
    """Source: 1 to 3."""

    def __len__(self) -> int:
        return len(self.user)

    def take(self, rows: NDArray[np.bool_] | NDArray[np.int64] | slice) -> "Visits":
        return Visits(*(getattr(self, field.name)[rows] for field in fields(Visits)))

    @classmethod
    def by_user_and_time(cls, *parts: "Visits") -> "Visits":
        """All of them, sorted."""
        visits = cls(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(cls)))
        return visits.take(np.lexsort((visits.timestamp, visits.user)))


class Users:
    """The users of a block, numbered from 0; later blocks find more documents and ads."""

    def __init__(self, world: World, rng: np.random.Generator, block: int) -> None:
        n = BLOCK_USERS
        self._world, self.rng = world, rng
        self._promoted = world.promoted_documents(block * n)
        # What few write about, many read.
        by_demand = world.random.uniform("demand", np.arange(TOPICS))[:, 0].argsort()
        self._topics = by_demand[(TOPICS * rng.random((n, 2)) ** 1.5).astype(np.int64)]
        self._place = (len(world.places) * rng.random(n) ** 2).astype(np.int64)
        self._platform = rng.choice(3, n, p=_PLATFORM_SHARES) + 1
        # Users come back more often the longer the log is.
        often = 0.5 + 0.08 * np.log2(1 + block)
        self._returns = np.minimum(rng.exponential(often, n) * rng.exponential(1.0, n), 50).astype(np.int64)
        before = np.where(rng.random(n) < 0.12, 0, 4 + np.minimum(rng.exponential(11.0, n), 60))
        self._views_before = before.astype(np.int64)
        self._views_after = np.minimum(rng.exponential(6.0, n), 60).astype(np.int64)

    def landings(self) -> Visits:
        """One or more of every user, in any order of time, so that few of them, too, are of all days."""
        rng = self.rng
        user = rng.permutation(np.repeat(np.arange(BLOCK_USERS), 1 + self._returns))
        n = len(user)
        hour = rng.choice(24, n, p=_HOUR_SHARES / _HOUR_SHARES.sum())
        local = ((hour + rng.random(n)) * 3_600_000).astype(np.int64)
        utc = local - self._world.place_offsets[self._place[user]] * 60_000
        day = rng.choice(DAYS, n, p=_DAY_SHARES / _DAY_SHARES.sum())
        return Visits(
            user,
            self._pages(user, 0.6),
            day * DAY_MILLISECONDS + (utc - FIRST_MILLISECOND) % DAY_MILLISECONDS,
            np.where(rng.random(n) < _NULL_PLATFORM, 0, self._platforms(user)),
            np.where(rng.random(n) < _NULL_PLACE, -1, self._place[user]),
            self._traffic(n),
        )

    def browsing(self, first: NDArray[np.int64]) -> Visits:
        """The views of users before and after their first displays, whose times are `first` (users,)."""
        rng, counts = self.rng, np.concatenate([self._views_before, self._views_after])
        user = np.repeat(np.tile(np.arange(BLOCK_USERS), 2), counts)
        is_before = np.arange(len(user)) < self._views_before.sum()
        start, end = np.where(is_before, 0, first[user]), np.where(is_before, first[user], _LAST_MILLISECOND)
        timestamp = start + (rng.random(len(user)) * (end - start)).astype(np.int64)
        promoted = self._world.draw_promoted_of(self._promoted, self._interest(user), rng.random(len(user)))
        document = np.where(rng.random(len(user)) < 0.08, promoted, self._pages(user, 0.8))
        traffic = self._traffic(len(user))
        return Visits(user, document, timestamp, self._platforms(user), self._place[user], traffic)

    def echoes(self, landings: Visits, document: NDArray[np.int64], share: float, delay: tuple[int, int]) -> Visits:
        """Views of documents (n,) some milliseconds after (or before) a share of the n landings."""
        chosen = np.flatnonzero(self.rng.random(len(landings)) < share)
        time = landings.timestamp[chosen] + self.rng.integers(*delay, len(chosen))
        return Visits(
            landings.user[chosen],
            document[chosen],
            np.clip(time, 0, _LAST_MILLISECOND),
            landings.platform[chosen],
            landings.place[chosen],
            self._traffic(len(chosen)),
        )

    def ads(self, landings: Visits) -> NDArray[np.int64]:
        """(n, _CANDIDATES) ads for displays: by the user's interests, by the page, or popular ones."""
        rng, world, shape = self.rng, self._world, (len(landings), _CANDIDATES)
        kind = rng.random(shape)
        of_user = self._interest(np.repeat(landings.user, _CANDIDATES)).reshape(shape)
        topic = np.where(kind < 0.15, of_user, world.main_topic(landings.document)[:, None])
        topic = world.related_topic(topic, rng.random(shape))
        related = world.draw_promoted_of(self._promoted, topic, rng.random(shape))
        popular = world.draw_promoted(self._promoted, rng.random(shape))
        return world.draw_ad(np.where(kind < 0.3, related, popular), rng.random(shape))

    def _interest(self, user: NDArray[np.int64]) -> NDArray[np.int64]:
        """One of the two topics that a user cares for, mostly the first."""
        return self._topics[user, (self.rng.random(len(user)) < 0.35).astype(np.int64)]

    def _pages(self, user: NDArray[np.int64], share: float) -> NDArray[np.int64]:
        """Pages that users read: a share of the users' interests, the others popular ones."""
        n, rng = len(user), self.rng
        of_interest = self._world.draw_page_of(self._promoted, self._interest(user), rng.random(n))
        popular = self._world.draw_page(self._promoted, rng.random(n))
        return np.where(rng.random(n) < share, of_interest, popular)

    def _platforms(self, user: NDArray[np.int64]) -> NDArray[np.int64]:
        """Mostly the user's own."""
        other = self.rng.choice(3, len(user), p=_PLATFORM_SHARES) + 1
        return np.where(self.rng.random(len(user)) < 0.8, self._platform[user], other)

    def _traffic(self, n: int) -> NDArray[np.int64]:
        return self.rng.choice(3, n, p=_TRAFFIC_SHARES) + 1
