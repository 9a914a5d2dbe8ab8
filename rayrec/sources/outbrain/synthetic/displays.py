"""Displays and page views of a block of users, each block drawn from a random stream of its own."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rayrec.sources.outbrain.outbrain_tables import DAY_MILLISECONDS, FIRST_MILLISECOND
from rayrec.sources.outbrain.places import DEFAULT_OFFSET
from rayrec.sources.outbrain.synthetic.preferences import FAMILIES, Preferences, Profiles, ShownAds
from rayrec.sources.outbrain.synthetic.world import ASPECTS, TOPICS, World, repeated

BLOCK_USERS = 512
DAYS = 15
_LAST_MILLISECOND = DAYS * DAY_MILLISECONDS - 1
_DAY_SHARES = np.array([1.0] * 13 + [0.25] * 2)
_HOUR_SHARES = np.array([3, 2, 1, 1, 1, 2, 4, 6, 8, 8, 8, 8, 9, 9, 8, 8, 8, 8, 8, 9, 10, 10, 8, 5], float)
_PLATFORM_SHARES, _TRAFFIC_SHARES = (0.4, 0.47, 0.13), (0.6, 0.25, 0.15)
_NULL_PLATFORM, _NULL_PLACE = 0.003, 0.005
_CANDIDATES = 20
"""Number of ads drawn for a display; the first distinct ones are shown."""
MOST_ADS = 12
_SIZES = np.arange(2, MOST_ADS + 1)
_SIZE_SHARES = np.array([0.08, 0.14, 0.19, 0.16, 0.23, 0.05, 0.06, 0.04, 0.02, 0.02, 0.01])
FIRST_TEST_DAY = 13
_TEST_SHARE = 0.02
"""Share of the displays of the days before that go to clicks_test, too."""
_LOGGED = 0.92
"""Share of landings that are among the page views."""
_AGAIN, _AGAIN_WITHIN = 0.1, 3_600_000
"""Share of landings whose page is viewed once more, within so many milliseconds."""
_FOLLOWED, _FOLLOWED_AFTER = 0.3, (5_000, 60_000)
"""Share of clicks after which the ad's document is among the page views."""
_COUNTRIES = ("US", "CA", "GB", "AU")
"""Countries with effects of their own; all others share one."""
_HOUR_BINS = np.repeat([5, 0, 1, 2, 3, 4, 5], [5, 3, 3, 3, 5, 3, 2])
"""The bin of each local hour."""


class Visits(NamedTuple):
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

    def take(self, rows: NDArray[np.bool_] | NDArray[np.int64] | slice) -> "Visits":
        return Visits(*(column[rows] for column in self))

    @classmethod
    def by_user_and_time(cls, *parts: "Visits") -> "Visits":
        """Return all of them, sorted."""
        visits = cls(*map(np.concatenate, zip(*parts, strict=True)))
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
        """Return one or more of every user, in any order of time, so that few of them, too, are of all days."""
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
        """Return the views of users before and after their first displays, whose times are `first` (users,)."""
        rng, counts = self.rng, np.concatenate([self._views_before, self._views_after])
        user = np.repeat(np.tile(np.arange(BLOCK_USERS), 2), counts)
        is_before = np.arange(len(user)) < self._views_before.sum()
        start, end = np.where(is_before, 0, first[user]), np.where(is_before, first[user], _LAST_MILLISECOND)
        timestamp = start + (rng.random(len(user)) * (end - start)).astype(np.int64)
        promoted = self._of_interest(self._world.draw_promoted, user)
        document = np.where(rng.random(len(user)) < 0.08, promoted, self._pages(user, 0.8))
        traffic = self._traffic(len(user))
        return Visits(user, document, timestamp, self._platforms(user), self._place[user], traffic)

    def echoes(self, landings: Visits, document: NDArray[np.int64], share: float, delay: tuple[int, int]) -> Visits:
        """Return the views of documents (n,) some milliseconds after (or before) a share of the n landings."""
        chosen = np.flatnonzero(self.rng.random(len(document)) < share)
        time = landings.timestamp[chosen] + self.rng.integers(*delay, len(chosen))
        return landings.take(chosen)._replace(
            document=document[chosen], timestamp=np.clip(time, 0, _LAST_MILLISECOND), traffic=self._traffic(len(chosen))
        )

    def ads(self, landings: Visits) -> NDArray[np.int64]:
        """(n, _CANDIDATES) ads for displays: by the user's interests, by the page, or popular ones."""
        rng, world, shape = self.rng, self._world, (len(landings.user), _CANDIDATES)
        kind = rng.random(shape)
        of_user = self._interest(np.repeat(landings.user, _CANDIDATES)).reshape(shape)
        topic = np.where(kind < 0.15, of_user, world.main_topic(landings.document)[:, None])
        topic = world.related_topic(topic, rng.random(shape))
        related = world.draw_promoted(self._promoted, rng.random(shape), topic)
        popular = world.draw_promoted(self._promoted, rng.random(shape))
        return world.draw_ad(np.where(kind < 0.3, related, popular), rng.random(shape))

    def _interest(self, user: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return one of the two topics that a user cares for, mostly the first."""
        return self._topics[user, (self.rng.random(len(user)) < 0.35).astype(np.int64)]

    def _of_interest(
        self, draw: Callable[[int, NDArray[np.float64], NDArray[np.int64]], NDArray[np.int64]], user: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the documents of a topic that each user cares for, as `draw` of the world gives them."""
        topic = self._interest(user)
        return draw(self._promoted, self.rng.random(len(user)), topic)

    def _pages(self, user: NDArray[np.int64], share: float) -> NDArray[np.int64]:
        """Return the pages that users read: a share of the users' interests, the others popular ones."""
        n, rng = len(user), self.rng
        of_interest = self._of_interest(self._world.draw_page, user)
        popular = self._world.draw_page(self._promoted, rng.random(n))
        return np.where(rng.random(n) < share, of_interest, popular)

    def _platforms(self, user: NDArray[np.int64]) -> NDArray[np.int64]:
        """Draw platforms, mostly the user's own."""
        other = self.rng.choice(3, len(user), p=_PLATFORM_SHARES) + 1
        return np.where(self.rng.random(len(user)) < 0.8, self._platform[user], other)

    def _traffic(self, n: int) -> NDArray[np.int64]:
        return self.rng.choice(3, n, p=_TRAFFIC_SHARES) + 1


@dataclass(frozen=True)
class Displays:
    """n displays."""

    landings: Visits
    is_test: NDArray[np.bool_]
    """(n,)"""
    size: NDArray[np.int64]
    """(n,) 2 to MOST_ADS."""
    ads: NDArray[np.int64]
    """(n, MOST_ADS + 1), the first `size` shown; one more than that are distinct."""
    utility: NDArray[np.float64]
    """(families, n, MOST_ADS + 1)"""
    noise: NDArray[np.float64]
    """(n, MOST_ADS + 1)"""

    @property
    def is_shown(self) -> NDArray[np.bool_]:
        """(n, MOST_ADS + 1)"""
        return np.arange(self.ads.shape[1]) < self.size[:, None]

    def clicked(self) -> NDArray[np.int64]:
        """(n,) the position of the clicked ad among those shown."""
        return np.where(self.is_shown, self.utility.sum(axis=0) + self.noise, -np.inf).argmax(axis=1)

    def first(self, count: int, size: NDArray[np.int64]) -> "Displays":
        """Return the first ones, with other sizes (n,)."""
        kept = slice(count)
        return Displays(
            self.landings.take(kept),
            self.is_test[kept],
            size[kept],
            self.ads[kept],
            self.utility[:, kept],
            self.noise[kept],
        )


def draw_block(world: World, preferences: Preferences, seed: int, number: int) -> tuple[Displays, Visits]:
    """Return the displays and page views of block `number` (from 0) of a seed, its users numbered over all blocks."""
    rng = np.random.default_rng([seed, number])
    users = Users(world, rng, number)
    landings = users.landings()
    n = len(landings.user)
    is_test = (landings.timestamp // DAY_MILLISECONDS >= FIRST_TEST_DAY) | (rng.random(n) < _TEST_SHARE)
    is_logged = rng.random(n) < _LOGGED
    first = np.full(BLOCK_USERS, DAYS * DAY_MILLISECONDS)
    np.minimum.at(first, landings.user, landings.timestamp)
    again = users.echoes(landings, landings.document, _AGAIN, (-_AGAIN_WITHIN, _AGAIN_WITHIN))
    views = Visits.by_user_and_time(users.browsing(first), landings.take(is_logged), again)

    ads = users.ads(landings)
    is_repeated = repeated(ads)
    distinct_first = np.argsort(is_repeated, axis=1, kind="stable")
    ads = np.take_along_axis(ads, distinct_first, axis=1)[:, : MOST_ADS + 1]
    size = np.minimum(rng.choice(_SIZES, n, p=_SIZE_SHARES), (~is_repeated).sum(axis=1) - 1)
    assert size.min() >= _SIZES[0]
    viewed = views.take(views.timestamp < first[views.user])
    shown = _shown(world, landings, is_logged, ads, viewed)
    user, document = np.unique(np.stack([viewed.user, viewed.document]), axis=1)
    profiles = {aspect: Profiles.of(BLOCK_USERS, user, world.aspect(aspect, document)) for aspect in ASPECTS}
    utility = preferences.utilities(shown, profiles).reshape(len(FAMILIES), *ads.shape)
    displays = Displays(landings, is_test, size, ads, utility, rng.gumbel(size=ads.shape))

    clicked = ads[np.arange(n), displays.clicked()]
    followed = users.echoes(landings, world.ad_document(clicked), _FOLLOWED, _FOLLOWED_AFTER)
    views = Visits.by_user_and_time(views, followed)
    own = number * BLOCK_USERS
    landings, views = (visits._replace(user=visits.user + own) for visits in (landings, views))
    return replace(displays, landings=landings), views


def _shown(
    world: World, landings: Visits, is_logged: NDArray[np.bool_], ads: NDArray[np.int64], viewed: Visits
) -> ShownAds:
    """Return the ads (n, k) of landings (n,), a row each."""
    place = landings.place
    minute = (landings.timestamp + FIRST_MILLISECOND) // 60_000
    minute += np.where(place < 0, DEFAULT_OFFSET, world.place_offsets[place])
    # The source of the traffic is found by the page view of the landing, and nulls match nothing.
    is_matched = is_logged & (landings.platform > 0) & (place >= 0)
    codes = [p[:2] for p in world.places]
    countries = np.array([_COUNTRIES.index(c) if c in _COUNTRIES else len(_COUNTRIES) for c in codes])
    context = {
        "platform": landings.platform - 1,
        "country": np.where(place < 0, -1, countries[place]),
        "hour": _HOUR_BINS[minute // 60 % 24],
        "traffic": np.where(is_matched, landings.traffic - 1, -1),
    }
    k = ads.shape[1]
    user = np.repeat(landings.user, k)
    # One number for a document and a user.
    pairs = world.ad_document(ads.ravel()) * BLOCK_USERS + user
    has_viewed = np.isin(pairs, viewed.document * BLOCK_USERS + viewed.user)
    repeated_context = {kind: np.repeat(state, k) for kind, state in context.items()}
    return ShownAds(ads.ravel(), user, np.repeat(landings.document, k), has_viewed, repeated_context)
