"""Binary search of many values, each in a segment of its own."""

from torch import Tensor


def count_not_above(segments: Tensor, first: Tensor, length: Tensor, longest: int, values: Tensor) -> Tensor:
    """Entries of each segment that are <= its value.

    `segments`: sorted segments end to end, after one entry that is never counted; `first` and `length`: each value's
    segment, `first` not counting that entry; `longest`: at least every length. Returns counts of the type of `first`.

    As a search over all segments at once (torch.searchsorted on keys with an offset a segment), but with the steps and
    the memory that a segment needs: several times faster on a CPU. Works without waiting for the device.
    """
    start = first.clone()
    for _ in range(longest.bit_length()):
        # Where the last entry of the lower half counts, so does the whole half.
        rest = length >> 1
        half = length - rest
        half *= segments.index_select(0, start + half) <= values
        start += half
        length = rest
    start -= first
    return start
