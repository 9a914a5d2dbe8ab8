"""Stateless random numbers and permutations: their values, which may never change, and that they show no order."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch

from rayrec.random.arrays import (
    BlockwisePermutation,
    HashPermutation,
    StatelessRandom,
    finalize,
    finalize_array,
    hash_integers,
    mix,
    permute_each,
    uniform,
)
from rayrec.random.tensors import TablePermutation, derive_key, random_bits, uniform_below

CPU = torch.device("cpu")
LARGE = 10**12


def test_words() -> None:
    words = np.array([0, 1, 2**64 - 1], np.uint64)
    assert mix(words).tolist() == [0xE220A8397B1DCDAF, 0x910A2DEC89025CC1, 0xE4D971771B652C20]
    assert finalize_array(words).tolist() == [finalize(word) for word in words.tolist()]
    assert hash_integers(np.array([0, -1, 2**62])).tolist() == [
        0xE220A8397B1DCDAF,
        0xE4D971771B652C20,
        0xAA50EA8E0FA9EB,
    ]
    assert uniform(np.array([0, 7, -7]), 3).tolist() == [0.9708819781538285, 0.5829302930280781, 0.15940421119544657]


def test_words_of_torch() -> None:
    assert [derive_key(1, 2, 3), derive_key(3, 2, 1)] == [0x6AE515C1C0AC7E37, 0xD62A7F6E291FEF64]
    assert derive_key(-1) == derive_key(2**64 - 1)
    assert random_bits(derive_key(5), torch.tensor([0, 1, 2**40])).tolist() == [
        -371861127037631947,
        1952936728445087881,
        1901959172723610721,
    ]
    bits = random_bits(9, torch.arange(6))
    assert uniform_below(bits, 1000).tolist() == [682, 750, 265, 784, 262, 114]
    assert uniform_below(bits[:3], torch.tensor([1, 2**31 - 1, 10])).tolist() == [0, 1612105006, 2]


def test_torch_and_numpy_draw_the_same_words() -> None:
    seed, numbers = 1234567, np.arange(100)
    states = np.uint64(seed) + numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    assert random_bits(seed, torch.from_numpy(numbers)).numpy().view(np.uint64).tolist() == mix(states).tolist()


def test_permutations() -> None:
    ends = [0, 1, LARGE - 1]
    assert HashPermutation(10, 7)(np.arange(10)).tolist() == [0, 7, 4, 1, 9, 2, 3, 6, 5, 8]
    assert HashPermutation(LARGE, -1)(np.array(ends)).tolist() == [88678036109, 57267011797, 890007653990]
    assert TablePermutation(10, 7, CPU)(torch.arange(10)).tolist() == [2, 9, 0, 3, 5, 4, 8, 7, 6, 1]
    table = TablePermutation(LARGE, derive_key(1, 2), CPU)
    assert table(torch.tensor(ends)).tolist() == [256798019556, 761359012616, 142812548100]
    each = permute_each(np.arange(4), np.array([4, 5, 10**9, 2**40]), np.array([1, 2, 3, 4], np.uint64))
    assert each.tolist() == [1, 1, 247713151, 1072071052814]
    assert permute_each(np.arange(5), np.array([5]), np.array([9], np.uint64), 8).tolist() == [0, 1, 3, 4, 2]
    assert BlockwisePermutation([3, 0, 5], 4)(np.arange(8)).tolist() == [2, 0, 1, 4, 7, 6, 5, 3]


def test_numbers_by_purpose() -> None:
    random = StatelessRandom(11)
    assert random.uniform("topic", np.array([0, 5]), 2).tolist() == [
        [0.6850361832744767, 0.16848200163060734],
        [0.2843234914047653, 0.5157390423059903],
    ]
    assert random.normal("x", np.array([3])).tolist() == [-1.5339246001338471]
    assert random.choice("y", np.arange(6), 100).tolist() == [68, 47, 62, 58, 87, 2]


# --- permutations by NumPy


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 31, 32, 33, 1000, 4097, 100_003])
def test_a_permutation_is_a_bijection(size: int) -> None:
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


# --- permutations by torch


def elements(size: int, key: int) -> torch.Tensor:
    return TablePermutation(size, key, CPU)(torch.arange(size))


@pytest.mark.parametrize(
    "sizes", [range(1, 130), (255, 256, 257, 1_023, 1_025, 4_096, 4_099, 65_537), (100_003, 1_000_000)], ids=str
)
def test_a_permutation_of_a_table_is_a_bijection(sizes):
    for size in sizes:
        assert torch.equal(elements(size, derive_key(size)).sort().values, torch.arange(size)), size


def test_any_part_is_computed_alone_also_of_a_size_that_no_memory_holds():
    whole = elements(10_000, 7)
    assert torch.equal(TablePermutation(10_000, 7, CPU)(torch.tensor([9_999, 3, 3])), whole[[9_999, 3, 3]])
    huge = TablePermutation(10**10, 7, CPU)(torch.arange(1_000) * 9_999_999)
    assert len(huge.unique()) == 1_000 and 0 <= huge.min() < 10**9 < 9 * 10**9 < huge.max() < 10**10


def test_keys_give_unlike_orders():
    orders = [elements(10_000, derive_key(seed, epoch)) for seed in (1, 2) for epoch in (0, 1)]
    for index, one in enumerate(orders):
        for other in orders[:index]:
            assert (one == other).sum() < 10  # 1 on average


@pytest.mark.parametrize("size", [12, 100])
def test_every_element_comes_to_every_place_alike(size):
    keys = 500
    counts = torch.zeros(size, size)
    for number in range(keys):
        counts[torch.arange(size), elements(size, derive_key(11, number))] += 1
    chi_square = ((counts - keys / size) ** 2 / (keys / size)).sum()
    freedom = (size - 1) ** 2
    assert chi_square < freedom + 6 * (2 * freedom) ** 0.5


def test_neighbours_are_torn_apart():
    size = 200_000
    order = elements(size, derive_key(5)).double()
    middle = (size - 1) / 2
    for lag in (1, 2, 5, 256, 447):  # 447 * 447 is about the size, and 256 the right half's
        correlation = ((order[lag:] - middle) * (order[:-lag] - middle)).mean() / (size**2 / 12)
        assert abs(correlation) < 5 / size**0.5
    # Distances of neighbours, in 100 bins of those modulo the size: alike.
    counts = torch.bincount(((order.diff() % size) / size * 100).long(), minlength=100)
    assert ((counts - size / 100) ** 2 / (size / 100)).sum() < 99 + 6 * (2 * 99) ** 0.5
