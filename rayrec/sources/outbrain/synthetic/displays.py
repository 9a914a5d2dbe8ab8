"""Displays and page views of a block of users, and the known truth behind clicks: how much a user wants each ad.

Of the ads of a display the one is clicked whose utility plus standard Gumbel noise is largest, so ad a is clicked with
probability exp(u_a) / sum_b exp(u_b) (multinomial logit; McFadden 1974). A utility, in nats, is the sum of four
families, all functions of the tables' columns:

- `quality` of the ad, its campaign and advertiser, and its document's source, publisher and age;
- `user_similarity`: cosines of the documents that the user viewed before their first display with the ad's document in
  the three aspects, and whether the user viewed that document itself;
- `landing_similarity`: cosines of the landing page with the ad's document;
- `context`: platform, country and traffic source, each with a trait of the advertiser or of the category, and the hour.
"""

import numpy as np
from numpy.typing import NDArray

from rayrec.sources.outbrain.features.time import bins_of_hours
from rayrec.sources.outbrain.outbrain_tables import DAY_MILLISECONDS, FIRST_MILLISECOND
from rayrec.sources.outbrain.places import DEFAULT_OFFSET
from rayrec.sources.outbrain.synthetic.catalogue import (
    ADS_A_GROUP,
    ASPECTS,
    CATEGORIES,
    GROUP,
    TOPICS,
    Catalogue,
    Slots,
    repeated,
)
from rayrec.sources.synthetic import World

BLOCK_USERS = 512
DAYS = 15
_LAST_MILLISECOND = DAYS * DAY_MILLISECONDS - 1
_DAY_SHARES = np.array([1.0] * 13 + [0.25] * 2)
_HOUR_SHARES = np.array([3, 2, 1, 1, 1, 2, 4, 6, 8, 8, 8, 8, 9, 9, 8, 8, 8, 8, 8, 9, 10, 10, 8, 5], float)
_PLATFORM_SHARES, _TRAFFIC_SHARES = (0.4, 0.47, 0.13), (0.6, 0.25, 0.15)
_NULL_PLATFORM, _NULL_PLACE = 0.003, 0.005
_CANDIDATES = 20
"""Number of ads drawn for a display; the first distinct ones are shown."""
LEAST_ADS, MOST_ADS = 2, 12
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

FAMILIES = ("quality", "user_similarity", "landing_similarity", "context")
_QUALITY = {"advertiser": 0.6, "campaign": 0.1, "publisher": 0.4, "source": 0.05, "ad": 0.05}
"""Standard deviations."""
_FRESHNESS, _FRESH_DAYS = 0.6, 100.0
_USER = {"categories": 1.2, "topics": 1.2, "entities": 0.7}
_LANDING = {"categories": 0.9, "topics": 0.9, "entities": 0.6}
"""Utilities of a cosine of _ENOUGH or more."""
_ENOUGH = 0.3
_VIEWED = 0.8
_CONTEXT = {"platform": 0.4, "country": 0.25, "hour": 0.25, "traffic": 0.2}
"""Standard deviations over the states."""
_OF_CATEGORY = {"hour", "traffic"}
"""Kinds of context that act on a trait of the category; the others on one of the advertiser."""
_COUNTRIES = ("US", "CA", "GB", "AU")
"""Countries with effects of their own; all others share one."""
_VALUES = 2**40
"""More values than an aspect has: keys are owner * _VALUES + value."""

VISIT = np.dtype([(n, np.int64) for n in ("user", "document", "timestamp", "platform", "place", "traffic")])
"""A view of a document, at milliseconds as the tables count; platform and traffic source are 1 to 3, platform 0 where
null, place -1 where null.
"""
DISPLAY = np.dtype([
    ("landing", VISIT),
    ("is_test", np.bool_),
    ("size", np.int64),
    ("ads", np.int64, MOST_ADS + 1),
    ("utility", np.float64, (len(FAMILIES), MOST_ADS + 1)),
    ("noise", np.float64, MOST_ADS + 1),
])  # fmt: skip
"""A display, which shows the first `size` of its ads; one more than the most are distinct."""
Records = NDArray[np.void]


def is_shown(displays: Records) -> NDArray[np.bool_]:
    """Return whether an ad of a display is shown, (n, MOST_ADS + 1)."""
    return np.arange(MOST_ADS + 1) < displays["size"][:, None]


def clicked_ads(displays: Records) -> NDArray[np.int64]:
    """Return the position of the clicked ad among those shown, (n,)."""
    wanted = displays["utility"].sum(axis=1) + displays["noise"]
    return np.where(is_shown(displays), wanted, -np.inf).argmax(axis=1)


class Users:
    """The users of a block, numbered from 0; later blocks find more documents and ads."""

    def __init__(self, world: World, catalogue: Catalogue, block: int) -> None:
        self._catalogue, self.rng = catalogue, world.rng("block", block)
        n, rng = BLOCK_USERS, self.rng
        self._groups = catalogue.groups(block * n)
        # What few write about, many read.
        by_demand = world.random.uniform("demand", np.arange(TOPICS))[:, 0].argsort()
        self._topics = by_demand[(TOPICS * rng.random((n, 2)) ** 1.5).astype(np.int64)]
        self._place = (len(catalogue.places) * rng.random(n) ** 2).astype(np.int64)
        self._platform = rng.choice(3, n, p=_PLATFORM_SHARES) + 1
        # Users come back more often the longer the log is.
        often = 0.5 + 0.08 * np.log2(1 + block)
        self._returns = np.minimum(rng.exponential(often, n) * rng.exponential(1.0, n), 50).astype(np.int64)
        self._views = np.where(rng.random(n) < 0.12, 0, 8 + np.minimum(rng.exponential(12.0, n), 100)).astype(np.int64)

    def landings(self) -> Records:
        """Return one or more of every user, in any order of time, so that few of them, too, are of all days."""
        rng = self.rng
        user = rng.permutation(np.repeat(np.arange(BLOCK_USERS), 1 + self._returns))
        n = len(user)
        hour = rng.choice(24, n, p=_HOUR_SHARES / _HOUR_SHARES.sum())
        local = ((hour + rng.random(n)) * 3_600_000).astype(np.int64)
        utc = local - self._catalogue.place_offsets[self._place[user]] * 60_000
        day = rng.choice(DAYS, n, p=_DAY_SHARES / _DAY_SHARES.sum())
        time = day * DAY_MILLISECONDS + (utc - FIRST_MILLISECOND) % DAY_MILLISECONDS
        visits = self._visits(user, self._pages(user, 0.6), time)
        visits["platform"][rng.random(n) < _NULL_PLATFORM] = 0
        visits["place"][rng.random(n) < _NULL_PLACE] = -1
        return visits

    def browsing(self) -> Records:
        """Return the views of users at any time."""
        user = np.repeat(np.arange(BLOCK_USERS), self._views)
        time = self.rng.integers(_LAST_MILLISECOND, size=len(user))
        # Now and then a promoted document, which is the first of its group.
        document = self._pages(user, 0.8)
        document -= np.where(self.rng.random(len(user)) < 0.08, document % GROUP, 0)
        return self._visits(user, document, time)

    def echoes(self, landings: Records, document: NDArray[np.int64], share: float, delay: tuple[int, int]) -> Records:
        """Return the views of documents (n,) some milliseconds after (or before) a share of the n landings."""
        chosen = np.flatnonzero(self.rng.random(len(document)) < share)
        visits = landings[chosen]
        visits["document"] = document[chosen]
        time = visits["timestamp"] + self.rng.integers(*delay, len(chosen))
        visits["timestamp"] = np.clip(time, 0, _LAST_MILLISECOND)
        visits["traffic"] = self._traffic(len(chosen))
        return visits

    def ads(self, landings: Records) -> NDArray[np.int64]:
        """Return ads for displays, (n, _CANDIDATES): by the user's interests, by the page, or popular ones."""
        rng, catalogue, shape = self.rng, self._catalogue, (len(landings), _CANDIDATES)
        kind = rng.random(shape)
        of_user = self._interest(np.repeat(landings["user"], _CANDIDATES)).reshape(shape)
        topic = np.where(kind < 0.15, of_user, catalogue.main_topic(landings["document"])[:, None])
        # Or another topic of the same category.
        step = np.where(rng.random(shape) < 0.6, 0, rng.integers(1, TOPICS // CATEGORIES, shape))
        topic = (topic + CATEGORIES * step) % TOPICS
        related = catalogue.draw(self._groups, rng.random(shape), topic)
        popular = catalogue.draw(self._groups, rng.random(shape))
        # Of the ads of a group mostly the first.
        return np.where(kind < 0.3, related, popular) * ADS_A_GROUP + (rng.random(shape) > 0.6)

    def _visits(self, user: NDArray[np.int64], document: NDArray[np.int64], timestamp: NDArray[np.int64]) -> Records:
        """Return visits (n,), mostly on the users' own platforms."""
        visits = np.empty(len(user), VISIT)
        visits["user"], visits["document"], visits["timestamp"] = user, document, timestamp
        other = self.rng.choice(3, len(user), p=_PLATFORM_SHARES) + 1
        visits["platform"] = np.where(self.rng.random(len(user)) < 0.8, self._platform[user], other)
        visits["place"], visits["traffic"] = self._place[user], self._traffic(len(user))
        return visits

    def _interest(self, user: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return one of the two topics that a user cares for, mostly the first."""
        return self._topics[user, (self.rng.random(len(user)) < 0.35).astype(np.int64)]

    def _pages(self, user: NDArray[np.int64], share: float) -> NDArray[np.int64]:
        """Return the pages that users read: a share of the users' interests, the others popular ones."""
        rng, n = self.rng, len(user)
        of_interest = self._catalogue.draw(self._groups, rng.random(n), self._interest(user))
        popular = self._catalogue.draw(self._groups, rng.random(n))
        return np.where(rng.random(n) < share, of_interest, popular) * GROUP + rng.integers(1, GROUP, n)

    def _traffic(self, n: int) -> NDArray[np.int64]:
        return self.rng.choice(3, n, p=_TRAFFIC_SHARES) + 1


def draw_block(world: World, catalogue: Catalogue, number: int) -> tuple[Records, Records]:
    """Return the displays and page views of block `number` (from 0), its users numbered over all blocks."""
    users = Users(world, catalogue, number)
    rng, landings = users.rng, users.landings()
    n = len(landings)
    displays = np.empty(n, DISPLAY)
    displays["landing"] = landings
    is_late = landings["timestamp"] >= FIRST_TEST_DAY * DAY_MILLISECONDS
    displays["is_test"] = is_late | (rng.random(n) < _TEST_SHARE)

    # The first distinct ads of those drawn, and a size that leaves one more.
    ads = users.ads(landings)
    is_repeated = repeated(ads)
    distinct_first = np.argsort(is_repeated, axis=1, kind="stable")
    displays["ads"] = np.take_along_axis(ads, distinct_first, axis=1)[:, : MOST_ADS + 1]
    size = rng.choice(np.arange(LEAST_ADS, MOST_ADS + 1), n, p=_SIZE_SHARES)
    displays["size"] = np.minimum(size, (~is_repeated).sum(axis=1) - 1)
    assert displays["size"].min() >= LEAST_ADS

    # What users viewed before their first display says what they like.
    first = np.full(BLOCK_USERS, DAYS * DAY_MILLISECONDS)
    np.minimum.at(first, landings["user"], landings["timestamp"])
    is_logged = rng.random(n) < _LOGGED
    again = users.echoes(landings, landings["document"], _AGAIN, (-_AGAIN_WITHIN, _AGAIN_WITHIN))
    views = np.concatenate([users.browsing(), landings[is_logged], again])
    viewed = views[views["timestamp"] < first[views["user"]]]
    displays["utility"] = _utilities(world, catalogue, displays, is_logged, viewed)
    displays["noise"] = rng.gumbel(size=displays["noise"].shape)

    clicked = displays["ads"][np.arange(n), clicked_ads(displays)]
    followed = users.echoes(landings, catalogue.ad_document(clicked), _FOLLOWED, _FOLLOWED_AFTER)
    views = np.concatenate([views, followed])
    views = views[np.lexsort((views["timestamp"], views["user"]))]
    for visits in (displays["landing"], views):
        visits["user"] += number * BLOCK_USERS
    return displays, views


def _utilities(
    world: World, catalogue: Catalogue, displays: Records, is_logged: NDArray[np.bool_], viewed: Records
) -> NDArray[np.float64]:
    """Return the utility of each ad of displays to users with views, (n, families, MOST_ADS + 1)."""
    shape = displays["ads"].shape
    ad, landing = displays["ads"].ravel(), displays["landing"]
    document, row = catalogue.ad_document(ad), np.repeat(np.arange(shape[0]), shape[1])
    user = landing["user"][row]
    slots = {aspect: catalogue.aspect(aspect, document) for aspect in ASPECTS}

    # Quality: the same in all displays.
    source, age = catalogue.source(document), catalogue.age(document)
    things = {
        "advertiser": catalogue.advertiser(ad),
        "campaign": catalogue.campaign(ad),
        "publisher": catalogue.publisher(source),
        "source": source,
        "ad": ad,
    }
    quality = np.nan_to_num(_FRESHNESS * np.exp(-np.maximum(age, 0.0) / 86_400 / _FRESH_DAYS))
    for name, deviation in _QUALITY.items():
        quality += np.where(things[name] >= 0, deviation * world.effects(f"quality {name}", things[name]), 0.0)

    # Similarity: a match counts in full from a cosine of _ENOUGH on.
    pair = viewed["document"] * BLOCK_USERS + viewed["user"]
    by_user = np.where(np.isin(document * BLOCK_USERS + user, pair), _VIEWED, 0.0)
    by_landing = np.zeros(len(ad))
    viewed_document, viewer = np.divmod(np.unique(pair), BLOCK_USERS)
    for aspect in ASPECTS:
        profile = viewer, catalogue.aspect(aspect, viewed_document)
        by_user += _USER[aspect] * _liking(*profile, user, slots[aspect])
        page = np.arange(len(landing)), catalogue.aspect(aspect, landing["document"])
        by_landing += _LANDING[aspect] * _liking(*page, row, slots[aspect])

    # Context: unknown states have no effect. The source of the traffic is found by the page view of the landing, and
    # nulls match nothing.
    place, platform = landing["place"], landing["platform"]
    minute = (landing["timestamp"] + FIRST_MILLISECOND) // 60_000
    minute += np.where(place < 0, DEFAULT_OFFSET, catalogue.place_offsets[place])
    codes = [_COUNTRIES.index(p[:2]) if p[:2] in _COUNTRIES else len(_COUNTRIES) for p in catalogue.places.tolist()]
    states = {
        "platform": platform - 1,
        "country": np.where(place < 0, -1, np.array(codes)[place]),
        "hour": bins_of_hours(minute // 60 % 24),
        "traffic": np.where(is_logged & (platform > 0) & (place >= 0), landing["traffic"] - 1, -1),
    }
    category = np.where(slots["categories"].confidence[:, 0] > 0.0, slots["categories"].values[:, 0], -1)
    context = np.zeros(len(ad))
    for kind, deviation in _CONTEXT.items():
        trait = world.random.choice(f"trait {kind}", category if kind in _OF_CATEGORY else things["advertiser"], 2)
        # Other signs for other traits, as what all ads of a display share changes nothing.
        effect = np.where(states[kind] >= 0, deviation * world.effects(f"context {kind}", states[kind]), 0.0)
        context += effect[row] * np.where(trait, 1.0, -1.0)
    return np.stack([part.reshape(shape) for part in (quality, by_user, by_landing, context)], axis=1)


def _liking(owner: NDArray[np.int64], owned: Slots, asked: NDArray[np.int64], documents: Slots) -> NDArray[np.float64]:
    """Return how much the owners (n,) asked for match documents (n,), 0 to 1: by the cosine of the document with the
    sum of all those that an owner (m,) has.
    """
    present = owned.confidence > 0.0
    keys, inverse = np.unique((owner[:, None] * _VALUES + owned.values)[present], return_inverse=True)
    weights = np.bincount(inverse, owned.confidence[present])
    norms = np.sqrt(np.bincount(keys // _VALUES, weights**2, int(asked.max()) + 1))
    wanted = asked[:, None] * _VALUES + documents.values
    found = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    dot = (np.where(keys[found] == wanted, weights[found], 0.0) * documents.confidence).sum(axis=1)
    norm = norms[asked] * np.sqrt((documents.confidence**2).sum(axis=1))
    cosine = np.divide(dot, norm, out=np.zeros_like(dot), where=norm > 0.0)
    return np.minimum(cosine / _ENOUGH, 1.0)
