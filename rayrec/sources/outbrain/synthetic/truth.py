"""MAP@12 of rankings that know the users' utilities, or some of their families."""

import numpy as np
from numpy.typing import NDArray

from rayrec.config import Config
from rayrec.sources.outbrain.synthetic.displays import FAMILIES, MOST_ADS, Records, clicked_ads, is_shown

TRUTH_FILE = "truth.json"
HELD_OUT_FROM_DAY = 11
_HARMONIC = np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, MOST_ADS + 2))])
"""The sums 1 + 1/2 + ... + 1/n, at position n."""


class RankingTruth(Config):
    """MAP@12 of rankings of some displays with a known click.

    A display has at most 12 ads and one click, so its average precision is 1 / rank of the clicked ad; among ads of the
    same score it is what a random order gives on average.
    """

    displays: int
    best: float
    """MAP@12 by the true utilities: on average no model ranks better."""
    expected_best: float
    """The same over all clicks that could have been drawn: sum over ads of probability / rank."""
    random: float
    """The expected MAP@12 of a random order."""
    without: dict[str, float]
    """MAP@12 by the true utilities without one family: the best that a model reaches without its features."""
    quality_alone: float
    """MAP@12 by the quality of the ads, the best order that is the same in all displays."""


class OutbrainTruth(Config):
    """`truth.json`, beside generated tables."""

    source: str
    seed: int
    rows: int
    """Lines of clicks_train."""
    displays: int
    """Number of displays in clicks_train and clicks_test."""
    users: int
    documents: int
    ads: int
    page_views: int
    all: RankingTruth
    """Displays of clicks_train."""
    held_out: RankingTruth | None
    """Displays of clicks_train from day 11 on; None if there are none."""
    method: str = (
        "Clicks are drawn from a known multinomial logit over the ads of each display. MAP@12 of rankings by the true "
        "utilities against the clicks that were drawn; exact."
    )


class RankingAccumulator:
    """Sums over displays that `RankingTruth` follows from."""

    def __init__(self) -> None:
        self._displays = 0
        self._sums = np.zeros(4 + len(FAMILIES))

    def add(self, displays: Records) -> None:
        """Count n displays."""
        utility, shown, size = displays["utility"], is_shown(displays), displays["size"]
        without = [np.delete(utility, family, axis=1).sum(axis=1) for family in range(len(FAMILIES))]
        scores = [np.where(shown, score, -np.inf) for score in (utility.sum(axis=1), utility[:, 0], *without)]
        clicked = clicked_ads(displays)[:, None]
        weights = np.where(shown, np.exp(scores[0]), 0.0)
        chances = weights / weights.sum(axis=1, keepdims=True)
        positions = np.broadcast_to(np.arange(shown.shape[1]), shown.shape)
        expected = (chances * _precision(scores[0], positions)).sum()
        self._displays += len(displays)
        self._sums += [expected, (_HARMONIC[size] / size).sum(), *(_precision(s, clicked).sum() for s in scores)]

    def result(self) -> RankingTruth | None:
        """Return the truth of the displays so far; None if there are none."""
        if not self._displays:
            return None
        expected, random, best, quality, *without = (self._sums / self._displays).tolist()
        return RankingTruth(
            displays=self._displays,
            best=best,
            expected_best=expected,
            random=random,
            without=dict(zip(FAMILIES, without, strict=True)),
            quality_alone=quality,
        )


def _precision(score: NDArray[np.float64], position: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the expected 1 / rank (n, m) of positions (n, m) in rows of scores (n, k), ties in any order."""
    own = np.take_along_axis(score, position, axis=1)[:, :, None]
    better, equal = (score[:, None, :] > own).sum(axis=2), (score[:, None, :] == own).sum(axis=2)
    return (_HARMONIC[better + equal] - _HARMONIC[better]) / equal
