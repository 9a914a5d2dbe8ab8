"""The computed permutation: a bijection of any size, another one for every key, without visible order."""

import pytest
import torch

from rayrec.random.tensors import TablePermutation, derive_key

CPU = torch.device("cpu")


def elements(size: int, key: int) -> torch.Tensor:
    return TablePermutation(size, key, CPU)(torch.arange(size))


@pytest.mark.parametrize(
    "sizes", [range(1, 130), (255, 256, 257, 1_023, 1_025, 4_096, 4_099, 65_537), (100_003, 1_000_000)], ids=str
)
def test_is_a_bijection(sizes):
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
