"""SplitMix64 over torch tensors: random bits as a function of a key and an index.

int64 tensors hold the unsigned words of the generator: sums and products wrap alike; only the right shift must be kept
from copying the sign.
"""

from torch import Tensor

from rayrec.random.splitmix64 import FIRST_FACTOR, GAMMA, SECOND_FACTOR, finalize

_WORD = 2**64


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
