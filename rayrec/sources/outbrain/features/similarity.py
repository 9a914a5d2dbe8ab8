"""Cosines of sparse vectors over the values of an aspect; NaN where missing. See docs/outbrain.md."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rayrec.features.mapped_columns import Lists, Ranges, search_ranges
from rayrec.sources.outbrain.features.rows import Rows
from rayrec.sources.outbrain.statistics import Aspect


@dataclass(frozen=True)
class _Side:
    """A vector for each of n rows."""

    parts: Iterable[Ranges]
    """Values, ascending in each row, and weights, wherever they lie."""
    sizes: NDArray[np.int64]
    """(n,) values of each."""
    norms: NDArray[np.float64]


@dataclass(frozen=True)
class UserSimilarity:
    """Of n rows."""

    similarity: NDArray[np.float64]
    confidence: NDArray[np.float64]


def landing_similarity(rows: Rows, aspect: Aspect) -> NDArray[np.float64]:
    """(n,) cosines of the landing document with the ad document."""
    similarity, _ = _cosine(rows, _documents(rows.landing_values(aspect)), _documents(rows.ad_values(aspect)))
    return similarity


def user_similarity(rows: Rows, aspect: Aspect) -> UserSimilarity:
    """Of the user's profile with the ad document."""
    return rows.once(f"user similarity {aspect}", lambda: _user_similarity(rows, aspect))


def _user_similarity(rows: Rows, aspect: Aspect) -> UserSimilarity:
    profiles, user = rows.statistics.profiles, rows.user
    sizes = np.zeros(len(rows), np.int64)
    parts = list(profiles.ranges(aspect, user))
    for part in parts:
        sizes[part.asked] = part.stop - part.start
    left = _Side(parts, sizes, profiles.numbers(f"{aspect}_norm", user).values)
    right = _documents(rows.ad_values(aspect))
    similarity, common = _cosine(rows, left, right)
    chance = sizes * right.sizes / max(rows.constants.values[aspect], 1) ** 2
    confidence = np.where(common > 0, 1.0 - chance**common, chance)
    return UserSimilarity(similarity, np.where((sizes > 0) & (right.sizes > 0), confidence, np.nan))


def _documents(lists: Lists) -> _Side:
    """Documents' vectors, without the values that have no weight."""
    owner, count = lists.owner, len(lists.lengths)
    weights = lists.field("weight", np.float64)
    is_kept = ~np.isnan(weights)
    owner, weights = owner[is_kept], weights[is_kept]
    sizes = np.bincount(owner, minlength=count)
    stops = np.cumsum(sizes)
    values = lists.field("value")[is_kept]
    whole = Ranges(np.arange(count), stops - sizes, stops, {"value": values, "weight": weights})
    return _Side((whole,), sizes, np.sqrt(np.bincount(owner, weights**2, count)))


def _cosine(rows: Rows, left: _Side, right: _Side) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Cosines, and the number of values that both sides have. `right` lies in one part."""
    count = len(rows)
    (searched,) = right.parts
    owner = np.repeat(np.arange(count), right.sizes)
    dot, common = np.zeros(count), np.zeros(count, np.int64)
    for part in left.parts:
        place = np.full(count, -1)
        place[part.asked] = np.arange(len(part.asked))
        wanted = np.flatnonzero(place[owner] >= 0)
        of_part = place[owner[wanted]]
        found, is_there = search_ranges(
            part.fields["value"], part.start[of_part], part.stop[of_part], searched.fields["value"][wanted]
        )
        found, wanted = found[is_there], wanted[is_there]
        products = part.fields["weight"][found] * searched.fields["weight"][wanted]
        dot += np.bincount(owner[wanted], products, count)
        common += np.bincount(owner[wanted], minlength=count)
    norms = left.norms * right.norms
    without_norm = np.nan if rows.constants.is_original_full else 0.0
    similarity = np.divide(dot, norms, out=np.full(count, without_norm), where=norms > 0.0)
    return np.where((left.sizes > 0) & (right.sizes > 0), similarity, np.nan), common
