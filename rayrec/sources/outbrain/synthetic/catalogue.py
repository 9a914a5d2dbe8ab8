"""Documents, ads and places of generated Outbrain data: each a function of the seed and its number alone.

No attribute is stored, so memory does not depend on how many there are. Documents come in groups of four with one main
topic, the first of which is *promoted* (ads lead to it) and the others are *pages*. Group g has the topic g mod TOPICS,
so that documents and ads of a topic can be drawn at once. Ids in the tables are numbers plus 1.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.sources.outbrain.places import OFFSET_BY_STATE, utc_offsets
from rayrec.sources.synthetic import World

TOPICS = 200
CATEGORIES = 40
"""Topic t belongs to category t mod CATEGORIES."""
GROUP = 4
"""Documents of a group."""
ADS_A_GROUP = 2
_GROUPS_A_CAMPAIGN = 4
_POPULARITY_POWER = 3.0
"""The thing at n u^power of n is drawn: early ones most often, with shares that fall as number^(-2/3)."""
_LEAST_GROUPS, _GROWTH, _GROWTH_EXPONENT = 300, 0.8, 0.7
"""Groups grow with the users as growth * users^exponent."""

ASPECTS = ("categories", "topics", "entities")
_OWN = {"categories": 1, "topics": 1, "entities": 6}
"""Most values of a document that belong to its main topic; they have high confidences."""
_OTHERS = {"categories": 1, "topics": 2, "entities": 0}
"""Most values of a document that are any; they have low confidences."""
_FILLED = 0.75
"""A document has a k-th value, from 0 on, with probability _FILLED^k."""
_WITHOUT = {"categories": 0.06, "topics": 0.08, "entities": 0.2}
"""Share of documents without a value of the aspect."""
_NO_SOURCE, _NO_PUBLISHER, _NO_PUBLISH_TIME, _ODD_PUBLISH_TIME = 0.03, 0.05, 0.25, 0.005
_MEAN_AGE = 200.0 * 86_400
_ODD_AGES = np.array([-20.0, 40.0]) * 365 * 86_400
"""Years ahead or decades ago, as in the real table."""
_COUNTRIES = ("CA>ON", "CA>QC", "CA>BC", "GB", "AU", "IN", "DE", "FR", "NL", "BR", "MX", "ZA", "SG", "NZ", "IE", "PH",
              "IT", "ES", "NP", "VE", "XX")  # fmt: skip


class Slots(NamedTuple):
    """Values of an aspect of n documents."""

    values: NDArray[np.int64]
    """(n, k)"""
    confidence: NDArray[np.float64]
    """(n, k); 0 if there is no value. No value comes twice in a row."""


class Catalogue:
    """The documents, ads, places and topics by number."""

    def __init__(self, world: World) -> None:
        self.random = world.random
        # Mostly of the US, in any order; the first ones are the most frequent.
        american = [f"{state}>{area}" for state in OFFSET_BY_STATE if state[:2] == "US" for area in range(501, 506)]
        others = [f"{country}>{region:02d}" for country in _COUNTRIES for region in range(3)]
        places = np.array(sorted({*american, *others}))
        self.places = places[self.random.uniform("place", np.arange(len(places)))[:, 0].argsort()]
        self.place_offsets = utc_offsets(pa.array(self.places))

    def groups(self, users: int) -> int:
        """Return how many groups there are when so many users have come; they grow slower than users do."""
        return _LEAST_GROUPS + int(_GROWTH * users**_GROWTH_EXPONENT)

    def draw(
        self, groups: int, uniform: NDArray[np.float64], topic: NDArray[np.int64] | None = None
    ) -> NDArray[np.int64]:
        """Draw popular groups, with `topic` of those with this one, by numbers in [0, 1)."""
        if topic is None:
            return (groups * uniform**_POPULARITY_POWER).astype(np.int64)
        of_topic = (groups - topic - 1) // TOPICS + 1
        return (of_topic * uniform**_POPULARITY_POWER).astype(np.int64) * TOPICS + topic

    def main_topic(self, document: NDArray[np.int64]) -> NDArray[np.int64]:
        return document // GROUP % TOPICS

    def aspect(self, name: str, document: NDArray[np.int64]) -> Slots:
        """Return the values of an aspect of documents."""
        own, slots, topic = _OWN[name], _OWN[name] + _OTHERS[name], self.main_topic(document)[:, None]
        u = self.random.uniform(name, document, 1 + 3 * slots)
        which, filled, strength = np.split(u[:, 1:], 3, axis=1)
        if name == "entities":
            # Those of a topic are more the more documents there are.
            pool = 20.0 + 0.2 * np.sqrt(document[:, None])
            values = (pool * which**2).astype(np.int64) * TOPICS + topic
        else:
            size = CATEGORIES if name == "categories" else TOPICS
            values = (which * size).astype(np.int64)
            values[:, :own] = topic % size
        slot = np.arange(slots)
        confidence: NDArray[np.float64] = np.where(slot < own, 0.4 + 0.55 * strength, 0.02 + 0.25 * strength)
        confidence[(filled >= _FILLED**slot) | (u[:, :1] < _WITHOUT[name]) | repeated(values)] = 0.0
        return Slots(values, np.round(confidence, 6))

    def source(self, document: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sources; -1 where null."""
        u = self.random.uniform("source", document, 2)
        source = ((20.0 + 4.0 * np.sqrt(document)) * u[:, 0] ** 2).astype(np.int64)
        return np.where(u[:, 1] < _NO_SOURCE, -1, source)

    def publisher(self, source: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the publishers of sources; -1 where null."""
        is_null = (source < 0) | (self.random.uniform("publisher", source)[:, 0] < _NO_PUBLISHER)
        return np.where(is_null, -1, source // 4)

    def age(self, document: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the whole seconds from publication to the first day, in a few cases far off; NaN where null."""
        u = self.random.uniform("age", document, 2)
        age = np.floor(-_MEAN_AGE * np.log(1.0 - u[:, 0]))
        age = np.where(u[:, 1] > 1.0 - _ODD_PUBLISH_TIME, _ODD_AGES[(u[:, 0] < 0.5).astype(np.int64)], age)
        return np.where(u[:, 1] < _NO_PUBLISH_TIME, np.nan, age)

    def ad_document(self, ad: NDArray[np.int64]) -> NDArray[np.int64]:
        return ad // ADS_A_GROUP * GROUP

    def campaign(self, ad: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the campaign of each ad, which promotes documents of one topic."""
        turn, topic = np.divmod(ad // ADS_A_GROUP, TOPICS)
        return turn // _GROUPS_A_CAMPAIGN * TOPICS + topic

    def advertiser(self, ad: NDArray[np.int64]) -> NDArray[np.int64]:
        campaign = self.campaign(ad)
        return ((20.0 + 2.0 * np.sqrt(campaign)) * self.random.uniform("advertiser", campaign)[:, 0]).astype(np.int64)


def repeated(values: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return whether a value stands further left in its row, (n, k)."""
    k = values.shape[1]
    earlier = np.tril(np.ones((k, k), bool), -1)
    return ((values[:, :, None] == values[:, None, :]) & earlier).any(axis=2)
