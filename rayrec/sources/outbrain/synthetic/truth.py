"""MAP@12 of rankings that know the users' utilities, or some of their families."""

import numpy as np
from numpy.typing import NDArray

from rayrec.config import Config
from rayrec.sources.outbrain.synthetic.displays import MOST_ADS, Displays
from rayrec.sources.outbrain.synthetic.preferences import FAMILIES

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

    def add(self, displays: Displays, clicked: NDArray[np.int64], chosen: NDArray[np.bool_]) -> None:
        """Count the chosen ones of n displays, whose clicked ads stand at positions (n,)."""
        utility, size, clicked = displays.utility[:, chosen], displays.size[chosen], clicked[chosen]
        is_shown = displays.is_shown[chosen]
        total = np.where(is_shown, utility.sum(axis=0), -np.inf)
        weights = np.exp(total - total.max(axis=1, keepdims=True))
        chances = weights / weights.sum(axis=1, keepdims=True)
        positions = np.broadcast_to(np.arange(utility.shape[2]), total.shape)
        expected = (chances * _precision(total, positions)).sum(axis=1)
        random = _HARMONIC[size] / size
        without = [np.delete(utility, family, axis=0).sum(axis=0) for family in range(len(FAMILIES))]
        rankings = [np.where(is_shown, score, -np.inf) for score in (total, utility[0], *without)]
        precisions = [_precision(ranking, clicked[:, None]) for ranking in rankings]
        self._displays += len(size)
        self._sums += [expected.sum(), random.sum(), *(p.sum() for p in precisions)]

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
    """(n, m) 1 / rank of positions (n, m) in rows of scores (n, k), expected where equal scores stand in any order."""
    own = np.take_along_axis(score, position, axis=1)[:, :, None]
    better, equal = (score[:, None, :] > own).sum(axis=2), (score[:, None, :] == own).sum(axis=2)
    return (_HARMONIC[better + equal] - _HARMONIC[better]) / equal
