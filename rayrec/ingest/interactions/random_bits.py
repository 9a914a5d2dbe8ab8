"""Random bits as a function of a key and an index: no state, so any worker computes any part of any epoch.

The generator is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014), whose i-th
number is a hash of key + i * constant. int64 tensors hold its unsigned words: sums and products wrap alike, only the
right shift must be kept from copying the sign.
"""

from torch import Tensor

_WORD = 2**64
_GAMMA = 0x9E3779B97F4A7C15
_STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31


def derive_key(*words: int) -> int:
    """A key of 64 bits that depends on every word and on their order, such as (seed, use, epoch)."""
    key = 0
    for word in words:
        key = _mix((key + word + _GAMMA) % _WORD)
    return key


def random_bits(key: int, index: Tensor) -> Tensor:
    """Numbers `index` (int64, from 0) of the generator seeded with `key`: int64 words of 64 random bits."""
    bits = index * _signed(_GAMMA)
    bits += _signed((key + _GAMMA) % _WORD)
    for shift, factor in _STEPS:
        bits ^= _shifted(bits, shift)
        bits *= _signed(factor)
    bits ^= _shifted(bits, _LAST_SHIFT)
    return bits


def uniform_below(bits: Tensor, bound: Tensor | int) -> Tensor:
    """floor(u * bound) of the fraction u in [0, 1) that the upper 62 of the 64 bits are; `bound` from 1 to 2^31 - 1.

    Any set of results has its share within 2^-62 * (its number of runs of neighbours) of the exact one: a single
    value's probability differs from 1 / bound by less than 2^-62, so relatively by less than 2^-31.
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
    """The logical right shift."""
    shifted = words >> by
    shifted &= 2 ** (64 - by) - 1
    return shifted


def _signed(word: int) -> int:
    """The same 64 bits as torch's int64 takes them."""
    return word - _WORD if word >= _WORD // 2 else word


def _mix(word: int) -> int:
    for shift, factor in _STEPS:
        word = (word ^ (word >> shift)) * factor % _WORD
    return word ^ (word >> _LAST_SHIFT)
