"""Documents, ads and places of generated Outbrain data: each a function of the seed and its number alone.

No attribute is stored, so memory does not depend on how many there are. Documents are numbered from 0; every fourth is
*promoted* (an ad leads to it), the others are *pages*. The n-th promoted document and the n-th page have the main topic
n mod TOPICS, so that documents and ads of a topic can be drawn at once. Ids in the tables are numbers plus 1.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rayrec.random.splitmix64 import StatelessRandom
from rayrec.sources.outbrain.places import DEFAULT_OFFSET, OFFSET_BY_COUNTRY, OFFSET_BY_STATE

TOPICS = 200
CATEGORIES = 40
"""Topic t belongs to category t mod CATEGORIES."""
PROMOTED_EVERY = 4
ADS_A_DOCUMENT = 2
_DOCUMENTS_A_CAMPAIGN = 4
_POPULARITY_POWER = 3.0
"""The thing at n u^power of n is drawn: early ones most often, with shares that fall as number^(-2/3)."""
_LEAST_PROMOTED = 300
_PROMOTED_GROWTH, _PROMOTED_EXPONENT = 0.8, 0.7
"""Promoted documents grow with the users as growth * users^exponent."""

ASPECTS = ("categories", "topics", "entities")
_WITHOUT = {"categories": 0.06, "topics": 0.08, "entities": 0.2}
"""Share of documents without a value of the aspect."""
_NO_SOURCE, _NO_PUBLISHER, _NO_PUBLISH_TIME, _ODD_PUBLISH_TIME = 0.03, 0.05, 0.25, 0.005
_MEAN_AGE_DAYS = 200.0
_COUNTRIES = ("GB", "AU", "IN", "DE", "FR", "NL", "BR", "MX", "ZA", "SG", "NZ", "IE", "PH", "IT", "ES", "NP", "VE",
              "XX")  # fmt: skip
_NUM_PLACES = 300


@dataclass(frozen=True)
class Slots:
    """Values of an aspect of n documents."""

    values: NDArray[np.int64]
    """(n, k)"""
    confidence: NDArray[np.float64]
    """(n, k); 0 if there is no value. No value comes twice in a row."""


@dataclass(frozen=True)
class DocumentMeta:
    """(n,) each; -1 where null."""

    source: NDArray[np.int64]
    publisher: NDArray[np.int64]
    age: NDArray[np.int64]
    """Seconds from publication to the first day; below 0 for some of the odd times; see has_time for nulls."""
    has_time: NDArray[np.bool_]


class World:
    """The documents, ads, places and topics by number."""

    def __init__(self, seed: int) -> None:
        self.random = StatelessRandom(seed)
        self.places, self.place_offsets = _places(self.random)

    def promoted_documents(self, users: int) -> int:
        """Return how many promoted documents there are when so many users have come; grows slower than they do."""
        return _LEAST_PROMOTED + int(_PROMOTED_GROWTH * users**_PROMOTED_EXPONENT)

    # Drawing: `uniform` in [0, 1); the result has its shape. With `topic`, things with this main topic alone.

    def draw_promoted(
        self, promoted: int, uniform: NDArray[np.float64], topic: NDArray[np.int64] | None = None
    ) -> NDArray[np.int64]:
        """Draw popular promoted documents, as documents."""
        return _popular(promoted, uniform, topic) * PROMOTED_EVERY

    def draw_page(
        self, promoted: int, uniform: NDArray[np.float64], topic: NDArray[np.int64] | None = None
    ) -> NDArray[np.int64]:
        """Draw popular pages, as documents."""
        group, place = np.divmod(_popular(promoted * (PROMOTED_EVERY - 1), uniform, topic), PROMOTED_EVERY - 1)
        return group * PROMOTED_EVERY + 1 + place

    # Documents.

    def main_topic(self, document: NDArray[np.int64]) -> NDArray[np.int64]:
        group, place = np.divmod(document, PROMOTED_EVERY)
        return np.where(place == 0, group, group * (PROMOTED_EVERY - 1) + place - 1) % TOPICS

    def aspect(self, name: str, document: NDArray[np.int64]) -> Slots:
        """Return the values of an aspect of documents (n,)."""
        u = self.random.uniform(name, document, 16)
        topic = self.main_topic(document)
        match name:
            case "categories":
                values = np.stack([topic % CATEGORIES, (u[:, 1] * CATEGORIES).astype(np.int64)], axis=1)
                confidence = np.stack(
                    [0.6 + 0.35 * u[:, 2], np.where(u[:, 3] < 0.5, 0.03 + 0.25 * u[:, 4], 0.0)], axis=1
                )
            case "topics":
                others = (u[:, 1:3] * TOPICS).astype(np.int64)
                values = np.concatenate([topic[:, None], others], axis=1)
                weak = np.where(u[:, 3:5] < (0.5, 0.25), 0.01 + 0.25 * u[:, 5:7], 0.0)
                confidence = np.concatenate([0.4 + 0.55 * u[:, 7:8], weak], axis=1)
            case _:
                # The entities of a topic are more the more documents there are.
                pool = 20.0 + 0.2 * np.sqrt(document[:, None])
                values = (pool * u[:, 1:7] ** 2).astype(np.int64) * TOPICS + topic[:, None]
                confidence = np.where(u[:, 7:8] * 6.0 > np.arange(6) - 1.0, 0.2 + 0.75 * u[:, 8:14], 0.0)
        confidence[u[:, 0] < _WITHOUT[name]] = 0.0
        confidence[repeated(values)] = 0.0
        return Slots(values, np.round(confidence, 6))

    def meta(self, document: NDArray[np.int64]) -> DocumentMeta:
        u = self.random.uniform("meta", document, 5)
        source = ((20.0 + 4.0 * np.sqrt(document)) * u[:, 0] ** 2).astype(np.int64)
        publisher = np.where(self.random.uniform("publisher", source)[:, 0] < _NO_PUBLISHER, -1, source // 4)
        is_sourced = u[:, 1] >= _NO_SOURCE
        age = np.floor(-_MEAN_AGE_DAYS * 86_400 * np.log(1.0 - u[:, 2])).astype(np.int64)
        # Years ahead or decades ago, as in the real table.
        odd = np.where(u[:, 4] < 0.5, -20 * 365 * 86_400, 40 * 365 * 86_400)
        age = np.where(u[:, 3] > 1.0 - _ODD_PUBLISH_TIME, odd, age)
        return DocumentMeta(
            np.where(is_sourced, source, -1), np.where(is_sourced, publisher, -1), age, u[:, 3] >= _NO_PUBLISH_TIME
        )

    # Ads.

    def ad_document(self, ad: NDArray[np.int64]) -> NDArray[np.int64]:
        return ad // ADS_A_DOCUMENT * PROMOTED_EVERY

    def draw_ad(self, document: NDArray[np.int64], uniform: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return one of the ads that lead to promoted documents, mostly the first."""
        return document // PROMOTED_EVERY * ADS_A_DOCUMENT + (uniform > 0.6)

    def campaign(self, ad: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the campaign of each ad, which promotes documents of one topic."""
        turn, topic = np.divmod(ad // ADS_A_DOCUMENT, TOPICS)
        return turn // _DOCUMENTS_A_CAMPAIGN * TOPICS + topic

    def advertiser(self, ad: NDArray[np.int64]) -> NDArray[np.int64]:
        campaign = self.campaign(ad)
        return ((20.0 + 2.0 * np.sqrt(campaign)) * self.random.uniform("advertiser", campaign)[:, 0]).astype(np.int64)

    # Topics.

    def related_topic(self, topic: NDArray[np.int64], uniform: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the topic itself (6 of 10 times) or another of its category."""
        others = TOPICS // CATEGORIES - 1
        step = np.where(uniform < 0.6, 0, 1 + (uniform - 0.6) / 0.4 * others).astype(np.int64)
        return (topic + CATEGORIES * np.minimum(step, others)) % TOPICS


def _popular(size: int, uniform: NDArray[np.float64], topic: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """Draw popular ones of `size` things, or of those among them with a topic."""
    if topic is None:
        return (size * uniform**_POPULARITY_POWER).astype(np.int64)
    of_topic = (size - topic - 1) // TOPICS + 1
    return (of_topic * uniform**_POPULARITY_POWER).astype(np.int64) * TOPICS + topic


def repeated(values: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(n, k) whether a value stands further left in its row."""
    k = values.shape[1]
    earlier = np.tril(np.ones((k, k), bool), -1)
    return ((values[:, :, None] == values[:, None, :]) & earlier).any(axis=2)


def _places(random: StatelessRandom) -> tuple[list[str], NDArray[np.int64]]:
    """Return the places from the most frequent one on, and their offsets from UTC in minutes."""
    states = sorted(state for state in OFFSET_BY_STATE if state.startswith("US>"))
    provinces = sorted(state for state in OFFSET_BY_STATE if state.startswith("CA>"))
    u = random.uniform("place", np.arange(_NUM_PLACES), 3)
    places: dict[str, int] = {}
    for kind, which, detail in u.tolist():
        if kind < 0.75:
            state = states[int(which * len(states))]
            places.setdefault(f"{state}>{500 + int(detail * 380)}", OFFSET_BY_STATE[state])
        elif kind < 0.8:
            state = provinces[int(which * len(provinces))]
            places.setdefault(state, OFFSET_BY_STATE[state])
        else:
            country = _COUNTRIES[int(which * len(_COUNTRIES))]
            offset = OFFSET_BY_COUNTRY.get(country, DEFAULT_OFFSET)
            places.setdefault(country if detail < 0.3 else f"{country}>{int(detail * 30):02d}", offset)
    return list(places), np.array(list(places.values()), np.int64)
