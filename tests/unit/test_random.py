"""Stateless random numbers: the values that datasets and models are made of, which may never change."""

import numpy as np
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
