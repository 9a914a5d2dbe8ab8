"""Random bits and a permutation over torch tensors, computed on the device from a key and an index.

The bits are SplitMix64's (`arrays`). int64 tensors hold its unsigned words: sums and products wrap alike; only the
right shift must be kept from copying the sign.
"""

import torch
from torch import Tensor

from rayrec.random.arrays import FIRST_FACTOR, GAMMA, SECOND_FACTOR, finalize

_WORD = 2**64
_ROUNDS = 8
"""Each half is changed four times; four rounds in all make a network pseudo-random (Luby and Rackoff, 1988). With fewer
than about ten elements, some orders are still slightly more frequent than others."""


def derive_key(*words: int) -> int:
    """Return a key of 64 bits that depends on every word and on their order, such as (seed, purpose, epoch)."""
    key = 0
    for word in words:
        key = finalize((key + word + GAMMA) % _WORD)
    return key


def random_bits(key: int, index: Tensor) -> Tensor:
    """Return the numbers `index` (int64, from 0) of the generator seeded with `key`: int64 words of 64 random bits."""
    bits = index * _signed(GAMMA)
    bits += _signed((key + GAMMA) % _WORD)
    bits ^= _shifted(bits, 30)
    bits *= _signed(FIRST_FACTOR)
    bits ^= _shifted(bits, 27)
    bits *= _signed(SECOND_FACTOR)
    bits ^= _shifted(bits, 31)
    return bits


def uniform_below(bits: Tensor, bound: Tensor | int) -> Tensor:
    """Return floor(u * bound), where the upper 62 of 64 bits are the fraction u in [0, 1); `bound` from 1 to 2^31 - 1.

    The probability of any set of results is within 2^-62 * (its number of runs of neighbours) of the exact one: that of
    a single value differs from 1 / bound by less than 2^-62, so relatively by less than 2^-31.
    """
    # In two halves of 31 bits, whose products with the bound fit a word.
    low = _shifted(bits, 2)
    low &= 2**31 - 1
    low *= bound
    low >>= 31
    high = _shifted(bits, 33)
    high *= bound
    high += low
    high >>= 31
    return high


def _shifted(words: Tensor, by: int) -> Tensor:
    """Return the logical right shift."""
    shifted = words >> by
    shifted &= 2 ** (64 - by) - 1
    return shifted


def _signed(word: int) -> int:
    """Return the int64 that has the same 64 bits."""
    return word - _WORD if word >= _WORD // 2 else word


class TablePermutation:
    """A pseudo-random permutation of 0 ... size - 1, computed element by element instead of stored.

    A Feistel network on pairs (left, right) with any number of left values (Black and Rogaway, "Ciphers with arbitrary
    finite domains", 2002): right has 2^k values with 2^k about the square root of the size, left ceil(size / 2^k), so
    the pairs are hardly more than the size. Each round adds a random function of one half to the other, which is undone
    by subtracting it. The functions have so few arguments that they are tables on the device, of about 10 * sqrt(size)
    numbers in all. A pair beyond the size (there are fewer than 2^k) is put through the network again until it leads to
    an element ("cycle walking"). The ends of these walks are a table as well, so a look-up never waits for the device.
    """

    def __init__(self, size: int, key: int, device: torch.device) -> None:
        """Prepare a permutation; `size` from 1 to 2^60; `key` of 64 bits (see `derive_key`)."""
        assert 1 <= size <= 2**60, size
        self._size = size
        self._shift = (size - 1).bit_length() // 2
        self._lefts, self._rights = -(-size // 2**self._shift), 2**self._shift
        self._tables = []
        for number in range(_ROUNDS):
            # An even round changes left by a random function of right, an odd one right by one of left.
            arguments, values = (self._lefts, self._rights) if number % 2 else (self._rights, self._lefts)
            bits = random_bits(derive_key(key, number), torch.arange(arguments, device=device))
            self._tables.append(uniform_below(bits, values).int())
        self._landings = self._walk(device)

    def __call__(self, positions: Tensor) -> Tensor:
        """Return the elements at `positions` (1-d int64, 0 ... size - 1), int64; waits for no device."""
        elements = self._pass(positions)
        if len(self._landings):
            beyond = (elements - self._size).clamp_(min=0)
            elements = torch.where(elements < self._size, elements, self._landings.index_select(0, beyond))
        return elements

    def _pass(self, pairs: Tensor) -> Tensor:
        """Return the pairs after one pass through the network: a bijection of all pairs, also those beyond `size`."""
        left = (pairs >> self._shift).int()
        right = (pairs & (self._rights - 1)).int()
        for number, table in enumerate(self._tables):
            if number % 2:
                right ^= table.index_select(0, left)
            else:
                left += table.index_select(0, right)
                left %= self._lefts
        return (left.long() << self._shift).bitwise_or_(right)

    def _walk(self, device: torch.device) -> Tensor:
        """Return for each pair beyond `size`: the first element below `size` that it leads to.

        A walk that returns to its start meets no such element; for the same reason, no element leads into it.
        """
        starts = torch.arange(self._size, self._lefts * self._rights, device=device)
        landings = self._pass(starts)
        while len(walking := torch.nonzero((landings >= self._size) & (landings != starts)).view(-1)):
            landings[walking] = self._pass(landings[walking])
        return landings
