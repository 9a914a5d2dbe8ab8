"""Cosines of sparse vectors over the values of an aspect; NaN if missing. See docs/outbrain.md."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rayrec.features.table_parts import Lists, Ranges, search_ranges
from rayrec.sources.outbrain.features.ad_rows import AdRows, RateEstimate
from rayrec.sources.outbrain.statistics import Aspect


@dataclass(frozen=True)
class _Vectors:
    """A sparse vector for each of n rows."""

    parts: Iterable[Ranges]
    """Values, ascending in each row, and weights, wherever they lie."""
    sizes: NDArray[np.int64]
    """(n,) number of values."""
    norms: NDArray[np.float64]
    """(n,)"""


def landing_similarity(rows: AdRows, aspect: Aspect) -> NDArray[np.float64]:
    """Return the cosines of the landing document with the ad document, (n,)."""
    landing, ad = (_documents(rows.lists(aspect, document)) for document in ("landing", "ad_document"))
    return _cosine(len(rows), landing, ad)[0]


def user_similarity(rows: AdRows, aspect: Aspect) -> NDArray[np.float64]:
    """Return the cosines of the user's profile with the ad document, (n,)."""
    return compute_user_similarity(rows, aspect).value


def user_similarity_confidence(rows: AdRows, aspect: Aspect) -> NDArray[np.float64]:
    """Return the confidences of these cosines, (n,)."""
    return compute_user_similarity(rows, aspect).confidence


def compute_user_similarity(rows: AdRows, aspect: Aspect) -> RateEstimate:
    """Compare the user's profile with the ad document, once for these rows."""
    return rows.once(lambda: _user_similarity(rows, aspect), "user similarity", aspect)


def _user_similarity(rows: AdRows, aspect: Aspect) -> RateEstimate:
    profiles, user = rows.found("user")
    sizes = np.zeros(len(rows), np.int64)
    parts = list(profiles.ranges(aspect, user))
    for part in parts:
        sizes[part.asked] = part.stop - part.start
    left = _Vectors(parts, sizes, profiles.numbers(f"{aspect}_norm", user).values)
    right = _documents(rows.lists(aspect, "ad_document"))
    similarity, common = _cosine(len(rows), left, right)
    chance = sizes * right.sizes / max(rows.statistics.constants.values[aspect], 1) ** 2
    confidence = np.where(common > 0, 1.0 - chance**common, chance)
    return RateEstimate(similarity, np.where((sizes > 0) & (right.sizes > 0), confidence, np.nan))


def _documents(lists: Lists) -> _Vectors:
    """Return the vectors of documents."""
    weights, stops = lists.field("weight", np.float64), np.cumsum(lists.lengths)
    fields = {"value": lists.field("value"), "weight": weights}
    whole = Ranges(np.arange(len(stops)), stops - lists.lengths, stops, fields)
    return _Vectors((whole,), lists.lengths, np.sqrt(np.bincount(lists.owner, weights**2, len(stops))))


def _cosine(count: int, left: _Vectors, right: _Vectors) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return cosines, and the number of values that both sides have, (count,). `right` lies in one part."""
    (searched,) = right.parts
    owner = np.repeat(np.arange(count), right.sizes)
    dot, common = np.zeros(count), np.zeros(count, np.int64)
    for part in left.parts:
        position = np.full(count, -1)
        position[part.asked] = np.arange(len(part.asked))
        wanted = np.flatnonzero(position[owner] >= 0)
        of_part = position[owner[wanted]]
        found, is_found = search_ranges(
            part.fields["value"], part.start[of_part], part.stop[of_part], searched.fields["value"][wanted]
        )
        found, wanted = found[is_found], wanted[is_found]
        products = part.fields["weight"][found] * searched.fields["weight"][wanted]
        dot += np.bincount(owner[wanted], products, count)
        common += np.bincount(owner[wanted], minlength=count)
    norms = left.norms * right.norms
    similarity = np.divide(dot, norms, out=np.zeros(count), where=norms > 0.0)
    return np.where((left.sizes > 0) & (right.sizes > 0), similarity, np.nan), common
