"""Negatives of held-out interactions: which items, how often, and what a draw depends on."""

import numpy as np
import pytest

from rayrec.sources.interactions.ranking_lists import NegativeSampler

ITEMS = 12


def draw(
    sampling: str, known: list[list[int]], users: list[int] | None = None, negatives: int = 5, seed: int = 0
) -> list[list[int]]:
    """Lists by user, out of ITEMS items."""
    sampler = NegativeSampler(ITEMS, negatives, sampling, seed)
    flat = np.array([item for items in known for item in items], np.int64)
    lengths = np.array([len(items) for items in known])
    ids, sizes = sampler.draw(np.array(users or range(1, len(known) + 1)), flat, lengths)
    assert ids.dtype == np.int64
    return [part.tolist() for part in np.split(ids, np.cumsum(sizes)[:-1])]


EVERYTHING = list(range(1, ITEMS + 1))
KNOWN: dict[str, list[int]] = {
    "nothing": [],
    "the first": [1],
    "the last": [ITEMS],
    "both ends": [1, 2, ITEMS - 1, ITEMS],
    "every second": EVERYTHING[::2],
    "all but five": EVERYTHING[:4] + EVERYTHING[9:],
    "all but two": EVERYTHING[:3] + EVERYTHING[5:],
    "all but the first": EVERYTHING[1:],
    "all but the last": EVERYTHING[:-1],
    "all": EVERYTHING,
}


@pytest.mark.parametrize("sampling", ["distinct", "with_replacement"])
def test_items_that_users_do_not_know(sampling: str) -> None:
    lists = draw(sampling, list(KNOWN.values()))
    for known, found in zip(KNOWN.values(), lists, strict=True):
        left = set(EVERYTHING) - set(known)
        assert set(found) <= left
        if sampling == "distinct":
            assert len(found) == len(set(found)) == min(5, len(left))
        else:
            assert len(found) == (5 if left else 0)


@pytest.mark.parametrize("sampling", ["distinct", "with_replacement"])
def test_a_draw_depends_on_seed_and_user_alone(sampling: str) -> None:
    known = list(KNOWN.values())
    together = draw(sampling, known, seed=3)
    for user, items in enumerate(known, start=1):
        assert draw(sampling, [items], [user], seed=3) == [together[user - 1]]
    same = [[2, 5]] * 200
    assert len({tuple(found) for found in draw(sampling, same, seed=3)}) > 190
    others = draw(sampling, same, seed=4)
    assert sum(a == b for a, b in zip(draw(sampling, same, seed=3), others, strict=True)) < 3


def test_more_negatives_begin_as_fewer_do() -> None:
    assert [found[:3] for found in draw("distinct", [[4], [5]], negatives=6)] == draw(
        "distinct", [[4], [5]], negatives=3
    )


@pytest.mark.parametrize("sampling", ["distinct", "with_replacement"])
@pytest.mark.parametrize("num_items", [7, 40, 1_000])
def test_uniform(sampling: str, num_items: int) -> None:
    """Over items, at every place of the list, and over pairs of neighbours in it."""
    users, negatives = 20_000, 4
    known = np.tile([2, 3], users)
    sampler = NegativeSampler(num_items, negatives, sampling, seed=11)
    ids, _ = sampler.draw(np.arange(users), known, np.full(users, 2))
    lists = ids.reshape(users, negatives)
    left = num_items - 2
    place = np.searchsorted(np.delete(np.arange(1, num_items + 1), [1, 2]), lists)
    for column in place.T:
        assert chi_square(np.bincount(column, minlength=left)) < bound(left - 1)
    if num_items == 40:
        pairs = np.bincount(place[:, 0] * left + place[:, 1], minlength=left * left).reshape(left, left)
        cells = pairs[~np.eye(left, dtype=bool)] if sampling == "distinct" else pairs.ravel()
        assert sampling != "distinct" or np.trace(pairs) == 0
        assert chi_square(cells) < bound(len(cells) - 1)


def chi_square(counts: np.ndarray) -> float:
    expected = counts.mean()
    return float(((counts - expected) ** 2 / expected).sum())


def bound(degrees: int) -> float:
    """Four standard deviations above the mean of a chi-square variable."""
    return degrees + 4.0 * float(np.sqrt(2.0 * degrees))
