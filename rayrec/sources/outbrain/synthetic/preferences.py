"""The known truth behind generated clicks: how much a user wants each ad of a display.

Of the ads of a display the one is clicked whose utility plus standard Gumbel noise is largest, so ad a is clicked with
probability exp(u_a) / sum_b exp(u_b) (multinomial logit; McFadden 1974). A utility, in nats, is the sum of four
families, all functions of what the tables hold:

- `quality` of the ad, its campaign and advertiser, and its document's source, publisher and age;
- `user_similarity`: cosines of the documents that the user viewed before their first display with the ad's document in
  the three aspects, and whether the user viewed that document itself;
- `landing_similarity`: cosines of the landing page with the ad's document;
- `context`: platform, country and traffic source, each with a trait of the advertiser, and the hour with one of the
  category.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rayrec.random.splitmix64 import StatelessRandom
from rayrec.sources.outbrain.synthetic.world import ASPECTS, CATEGORIES, Slots, World

FAMILIES = ("quality", "user_similarity", "landing_similarity", "context")
_QUALITY = {"advertiser": 0.6, "campaign": 0.1, "publisher": 0.4, "source": 0.05, "ad": 0.05}
"""Standard deviations."""
_FRESHNESS, _FRESH_DAYS = 0.6, 100.0
_USER = {"categories": 1.0, "topics": 1.0, "entities": 0.6}
_LANDING = {"categories": 0.9, "topics": 0.9, "entities": 0.6}
"""Utilities of a cosine of _ENOUGH or more."""
_ENOUGH = 0.3
_VIEWED = 0.8
CONTEXT_STATES = {"platform": 3, "country": 5, "hour": 6, "traffic": 3}
_CONTEXT = {"platform": 0.5, "country": 0.3, "hour": 0.3, "traffic": 0.2}
"""Standard deviations over the pairs of a state and a trait."""
_TRAITS = 2
_OF_CATEGORY = {"hour", "traffic"}
"""Kinds of context that act on a trait of the category; the others on one of the advertiser."""
_VALUES = 2**40
"""More values than an aspect has: keys are owner * _VALUES + value."""


@dataclass(frozen=True)
class Profiles:
    """Users' interests in one aspect: the confidences in each value, added up over the documents that a user viewed."""

    keys: NDArray[np.int64]
    """Ascending owner * _VALUES + value."""
    weights: NDArray[np.float64]
    """The sums, with a 0 at the end for keys that are absent."""
    norms: NDArray[np.float64]
    """(users,)"""

    @classmethod
    def of(cls, users: int, owner: NDArray[np.int64], viewed: Slots) -> "Profiles":
        """Return the profiles of users 0 ... users - 1; `owner`: the user (n,) of each document viewed, none of them
        twice.
        """
        present = viewed.confidence > 0.0
        keys = (owner[:, None] * _VALUES + viewed.values)[present]
        unique, inverse = np.unique(keys, return_inverse=True)
        weights = np.bincount(inverse, viewed.confidence[present], minlength=len(unique))
        norms = np.sqrt(np.bincount(unique // _VALUES, weights**2, minlength=users))
        return cls(unique, np.append(weights, 0.0), norms)

    def cosine(self, owner: NDArray[np.int64], documents: Slots) -> NDArray[np.float64]:
        """(n,) cosines of users with documents; 0 if one has no values."""
        keys = owner[:, None] * _VALUES + documents.values
        found = np.searchsorted(self.keys, keys)
        is_there = np.append(self.keys, -1)[found] == keys
        weights = self.weights[np.where(is_there, found, -1)]
        return _cosine((weights * documents.confidence).sum(axis=1), self.norms[owner], _norm(documents))


@dataclass(frozen=True)
class ShownAds:
    """n ads in displays."""

    ad: NDArray[np.int64]
    user: NDArray[np.int64]
    """Number in the profiles."""
    landing: NDArray[np.int64]
    """Document."""
    has_viewed: NDArray[np.bool_]
    """Whether the user viewed the ad's document before their first display."""
    context: dict[str, NDArray[np.int64]]
    """`platform`, `country`, `hour`, `traffic`, each with as many states as CONTEXT_STATES says; -1: unknown, without
    effect."""


class Preferences:
    """A click model drawn from a seed."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._random = StatelessRandom(seed)
        self._context = {kind: self._effects(kind) for kind in _CONTEXT}

    def utilities(self, shown: ShownAds, profiles: dict[str, Profiles]) -> NDArray[np.float64]:
        """(4, n) utilities of the shown ads by family, in the order of FAMILIES."""
        document = self._world.ad_document(shown.ad)
        slots = {aspect: self._world.aspect(aspect, document) for aspect in ASPECTS}
        landing = {aspect: self._world.aspect(aspect, shown.landing) for aspect in ASPECTS}
        user = sum(_USER[a] * _liking(profiles[a].cosine(shown.user, slots[a])) for a in ASPECTS)
        page = sum(_LANDING[a] * _liking(document_cosine(landing[a], slots[a])) for a in ASPECTS)
        return np.stack([
            self.quality(shown.ad),
            user + _VIEWED * shown.has_viewed,
            np.asarray(page),
            self._context_effects(shown, slots["categories"]),
        ])  # fmt: skip

    def quality(self, ad: NDArray[np.int64]) -> NDArray[np.float64]:
        """(n,) utilities of ads that are the same in every display."""
        world, document = self._world, self._world.ad_document(ad)
        meta = world.meta(document)
        numbers = {
            "advertiser": world.advertiser(ad),
            "campaign": world.campaign(ad),
            "publisher": meta.publisher,
            "source": meta.source,
            "ad": ad,
        }
        total = np.zeros(len(ad))
        for name, deviation in _QUALITY.items():
            effect = deviation * self._random.normal(name, numbers[name])
            total += np.where(numbers[name] >= 0, effect, 0.0)
        days = np.maximum(meta.age, 0) / 86_400
        return total + np.where(meta.has_time, _FRESHNESS * np.exp(-days / _FRESH_DAYS), 0.0)

    def _context_effects(self, shown: ShownAds, categories: Slots) -> NDArray[np.float64]:
        advertiser = self._world.advertiser(shown.ad)
        main = np.where(categories.confidence[:, 0] > 0.0, categories.values[:, 0], CATEGORIES)
        total = np.zeros(len(shown.ad))
        for kind, state in shown.context.items():
            trait = self._random.choice(f"trait {kind}", main if kind in _OF_CATEGORY else advertiser, _TRAITS)
            total += np.where(state >= 0, self._context[kind][state, trait], 0.0)
        return total

    def _effects(self, kind: str) -> NDArray[np.float64]:
        """(states, traits) effects with mean 0 for each trait, since what all states share is quality."""
        shape = CONTEXT_STATES[kind], _TRAITS
        effects = self._random.normal(f"effects {kind}", np.arange(shape[0] * shape[1])).reshape(shape)
        effects -= effects.mean(axis=0)
        return effects * (_CONTEXT[kind] / effects.std())


def _liking(cosine: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the match, from 0 to 1, which is reached at a cosine of _ENOUGH."""
    return np.minimum(cosine / _ENOUGH, 1.0)


def document_cosine(first: Slots, second: Slots) -> NDArray[np.float64]:
    """(n,) cosines of documents with documents; 0 if one has no values."""
    same = first.values[:, :, None] == second.values[:, None, :]
    dot = (same * first.confidence[:, :, None] * second.confidence[:, None, :]).sum(axis=(1, 2))
    return _cosine(dot, _norm(first), _norm(second))


def _norm(slots: Slots) -> NDArray[np.float64]:
    return np.sqrt((slots.confidence**2).sum(axis=1))


def _cosine(dot: NDArray[np.float64], first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    norms = first * second
    return np.divide(dot, norms, out=np.zeros_like(dot), where=norms > 0.0)
