"""Displays and page views of a block of users, each block drawn from a random stream of its own."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rayrec.sources.outbrain.layout import DAY_MILLISECONDS, FIRST_MILLISECOND
from rayrec.sources.outbrain.places import DEFAULT_OFFSET
from rayrec.sources.outbrain.synthetic.preferences import FAMILIES, Preferences, Profiles, ShownAds
from rayrec.sources.outbrain.synthetic.users import BLOCK_USERS, DAYS, Users, Visits
from rayrec.sources.outbrain.synthetic.world import ASPECTS, World, repeated

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
        """The first ones, with other sizes (n,)."""
        kept = slice(count)
        return Displays(
            self.landings.take(kept),
            self.is_test[kept],
            size[kept],
            self.ads[kept],
            self.utility[:, kept],
            self.noise[kept],
        )


@dataclass(frozen=True)
class Block:
    """Some users, numbered from 0 in all blocks together."""

    displays: Displays
    page_views: Visits
    """Sorted by user and time."""


def draw_block(world: World, preferences: Preferences, seed: int, number: int) -> Block:
    """Block `number` (from 0) of the users of a seed."""
    rng = np.random.default_rng([seed, number])
    users = Users(world, rng, number)
    landings = users.landings()
    n = len(landings)
    is_test = (landings.timestamp // DAY_MILLISECONDS >= FIRST_TEST_DAY) | (rng.random(n) < _TEST_SHARE)
    is_logged = rng.random(n) < _LOGGED
    first = np.full(BLOCK_USERS, DAYS * DAY_MILLISECONDS)
    np.minimum.at(first, landings.user, landings.timestamp)
    again = users.echoes(landings, landings.document, _AGAIN, (-_AGAIN_WITHIN, _AGAIN_WITHIN))
    views = Visits.by_user_and_time(users.browsing(first), landings.take(is_logged), again)

    ads, distinct = _distinct_first(users.ads(landings))
    ads = ads[:, : MOST_ADS + 1]
    size = np.minimum(rng.choice(_SIZES, n, p=_SIZE_SHARES), distinct - 1)
    assert size.min() >= _SIZES[0]
    viewed = views.take(views.timestamp < first[views.user])
    shown = _shown(world, landings, is_logged, ads, viewed)
    utility = preferences.utilities(shown, _profiles(world, viewed)).reshape(len(FAMILIES), *ads.shape)
    displays = Displays(landings, is_test, size, ads, utility, rng.gumbel(size=ads.shape))

    clicked = ads[np.arange(n), displays.clicked()]
    views = Visits.by_user_and_time(
        views, users.echoes(landings, world.ad_document(clicked), _FOLLOWED, _FOLLOWED_AFTER)
    )
    own = number * BLOCK_USERS
    landings, views = (replace(visits, user=visits.user + own) for visits in (landings, views))
    return Block(replace(displays, landings=landings), views)


def _profiles(world: World, viewed: Visits) -> dict[str, Profiles]:
    user, document = np.unique(np.stack([viewed.user, viewed.document]), axis=1)
    return {aspect: Profiles.of(BLOCK_USERS, user, world.aspect(aspect, document)) for aspect in ASPECTS}


def _shown(
    world: World, landings: Visits, is_logged: NDArray[np.bool_], ads: NDArray[np.int64], viewed: Visits
) -> ShownAds:
    """The ads (n, k) of landings (n,), a row each."""
    place = landings.place
    minute = (landings.timestamp + FIRST_MILLISECOND) // 60_000
    minute += np.where(place < 0, DEFAULT_OFFSET, world.place_offsets[place])
    # The source of the traffic is found by the page view of the landing, and nulls match nothing.
    is_matched = is_logged & (landings.platform > 0) & (place >= 0)
    context = {
        "platform": landings.platform - 1,
        "country": np.where(place < 0, -1, _country_states(world)[place]),
        "hour": _HOUR_BINS[minute // 60 % 24],
        "traffic": np.where(is_matched, landings.traffic - 1, -1),
    }
    k = ads.shape[1]
    user, document = np.repeat(landings.user, k), world.ad_document(ads.ravel())
    has_viewed = np.isin(_pairs(user, document), _pairs(viewed.user, viewed.document))
    return ShownAds(
        ads.ravel(),
        user,
        np.repeat(landings.document, k),
        has_viewed,
        {kind: np.repeat(state, k) for kind, state in context.items()},
    )


def _pairs(user: NDArray[np.int64], document: NDArray[np.int64]) -> NDArray[np.int64]:
    """One number for both."""
    return document * BLOCK_USERS + user


def _country_states(world: World) -> NDArray[np.int64]:
    """The state of the country of each place."""
    return np.array([_COUNTRIES.index(p[:2]) if p[:2] in _COUNTRIES else len(_COUNTRIES) for p in world.places])


def _distinct_first(ads: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows with their distinct ads first, in order, and how many these are."""
    is_repeated = repeated(ads)
    order = np.argsort(is_repeated, axis=1, kind="stable")
    return np.take_along_axis(ads, order, axis=1), (~is_repeated).sum(axis=1)
