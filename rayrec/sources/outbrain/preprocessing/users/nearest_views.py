"""Page views that events are matched with, by group and time."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Matches:
    """Sources of m events, one event's after the other."""

    lengths: NDArray[np.int64]
    """(m,)"""
    sources: NDArray[np.int8]


def match_views(
    event_group: NDArray[np.int64],
    event_time: NDArray[np.int64],
    view_group: NDArray[np.int64],
    view_time: NDArray[np.int64],
    view_source: NDArray[np.int8],
    *,
    nearest: bool,
) -> Matches:
    """The sources of the page views of each event's group: of that nearest in time, or of all in the order of time.

    Of equally near ones the earlier, of equal times the smaller source.
    """
    order = np.lexsort((view_source, view_time, view_group))
    group, time, source = view_group[order], view_time[order], view_source[order]
    if not nearest:
        start, stop = (np.searchsorted(group, event_group, side=side) for side in ("left", "right"))
        lengths = stop - start
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return Matches(lengths, source[np.repeat(start, lengths) + within])
    if not len(group):
        return Matches(np.zeros(len(event_group), np.int64), source)
    _, rank = np.unique(np.concatenate((time, event_time)), return_inverse=True)
    span = len(rank)
    key = group * span + rank[: len(group)]
    after = np.searchsorted(key, event_group * span + rank[len(group) :])
    # The first of the views at the last time before: it has the smallest source.
    before = np.searchsorted(key, key[np.maximum(after - 1, 0)])
    after_inside = np.minimum(after, len(group) - 1)
    has_after = (after < len(group)) & (group[after_inside] == event_group)
    has_before = (after > 0) & (group[before] == event_group)
    gap_after, gap_before = time[after_inside] - event_time, event_time - time[before]
    takes_before = has_before & (~has_after | (gap_before <= gap_after))
    chosen = np.where(takes_before, before, after_inside)
    is_matched = has_before | has_after
    return Matches(is_matched.astype(np.int64), source[chosen[is_matched]])
