"""Permutations that a shuffle is computed from."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from rayrec.random.arrays import BlockwisePermutation, HashPermutation, permute_each


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 31, 32, 33, 1000, 4097, 100_003])
def test_is_a_bijection(size: int) -> None:
    for seed in (0, 1, -1, 2**63):
        assert np.array_equal(np.sort(HashPermutation(size, seed)(np.arange(size))), np.arange(size))


def test_a_row_alone_gets_the_position_that_it_gets_among_all() -> None:
    size = 10**9
    rows = np.array([0, 17, 999_999_999, 5])
    together = HashPermutation(size, 3)(rows)
    assert [int(HashPermutation(size, 3)(rows[i : i + 1])[0]) for i in range(4)] == together.tolist()
    assert together.min() >= 0 and together.max() < size


def test_seeds_give_unrelated_orders() -> None:
    size = 20_000
    orders = [HashPermutation(size, seed)(np.arange(size)) for seed in range(4)]
    for i, first in enumerate(orders):
        assert abs(np.corrcoef(first, np.arange(size))[0, 1]) < 0.03
        assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 0.03
        for second in orders[:i]:
            assert abs(np.corrcoef(first, second)[0, 1]) < 0.03
            assert (first == second).sum() < 10


def test_every_order_of_few_rows_occurs_about_as_often() -> None:
    seeds = np.arange(4800, dtype=np.uint64).repeat(4)
    orders = permute_each(np.tile(np.arange(4), 4800), np.full(4 * 4800, 4), seeds).reshape(4800, 4)
    for seed in range(0, 4800, 100):
        assert np.array_equal(orders[seed], HashPermutation(4, seed)(np.arange(4)))
    counts = Counter(tuple(order) for order in orders.tolist())
    assert len(counts) == 24
    assert max(counts.values()) < 260 and min(counts.values()) > 140


def test_blocks_keep_their_places() -> None:
    sizes = [50, 0, 1, 200]
    permuted = BlockwisePermutation(sizes, 5)(np.arange(251))
    bounds = np.cumsum([0, *sizes])
    for low, high in pairwise(bounds):
        assert np.array_equal(np.sort(permuted[low:high]), np.arange(low, high))
    assert not np.array_equal(permuted[:50], np.arange(50))
    assert not np.array_equal(permuted[:50], permuted[51:101] - 51)
