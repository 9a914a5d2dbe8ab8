"""A pseudo-random permutation of 0 ... n - 1 over torch, computed element by element instead of stored.

A Feistel network on pairs (left, right) with any number of left values (Black and Rogaway, "Ciphers with arbitrary
finite domains", 2002): right has 2^k values with 2^k about the square root of n, left ceil(n / 2^k), so the pairs are
hardly more than n. Each round adds a random function of one half to the other, which is undone by subtracting it. The
functions have so few arguments that they are tables. A pair beyond n (there are fewer than 2^k) is put through the
network again until it leads to an element ("cycle walking"). The ends of these walks are a table as well, so a look-up
never waits for the device.
"""

import torch
from torch import Tensor

from rayrec.random.splitmix64_torch import derive_key, random_bits, uniform_below

_ROUNDS = 8
"""Each half is changed four times; four rounds in all make a network pseudo-random (Luby and Rackoff, 1988). With fewer
than about ten elements, some orders are still slightly more frequent than others."""


class TablePermutation:
    """A permutation whose Feistel rounds are tables on the device, of about 10 * sqrt(size) numbers in all."""

    def __init__(self, size: int, key: int, device: torch.device) -> None:
        """Prepare a permutation; `size` from 1 to 2^60; `key` of 64 bits (see `derive_key`)."""
        assert 1 <= size <= 2**60, size
        self._size = size
        self._shift = (size - 1).bit_length() // 2
        self._lefts, self._rights = -(-size // 2**self._shift), 2**self._shift
        self._tables = [
            _table(derive_key(key, number), *self._shape(number), device) for number in range(_ROUNDS)
        ]  # fmt: skip
        self._landings = self._walk(device)

    def __call__(self, positions: Tensor) -> Tensor:
        """Return the elements at `positions` (1-d int64, 0 ... size - 1), int64; waits for no device."""
        elements = self._pass(positions)
        if len(self._landings):
            beyond = (elements - self._size).clamp_(min=0)
            elements = torch.where(elements < self._size, elements, self._landings.index_select(0, beyond))
        return elements

    def _shape(self, number: int) -> tuple[int, int]:
        """Return (arguments, values) of a round's function: even ones change left by right, odd ones right by left."""
        return (self._lefts, self._rights) if number % 2 else (self._rights, self._lefts)

    def _pass(self, pairs: Tensor) -> Tensor:
        """Return the pairs after one pass through the network: a bijection of all pairs, including those beyond
        `size`.
        """
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


def _table(key: int, arguments: int, values: int, device: torch.device) -> Tensor:
    """Return (arguments,) int32: a random function into 0 ... values - 1."""
    return uniform_below(random_bits(key, torch.arange(arguments, device=device)), values).int()
