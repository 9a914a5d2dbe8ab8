"""The page view nearest in time to an event, against a search row by row."""

import numpy as np
import pytest

from rayrec.features.lookup_table import UNKNOWN
from rayrec.sources.outbrain.preprocessing.users.traffic import nearest_views

View = tuple[int, int, int]
"""Group, time, source."""


def by_hand(event: tuple[int, int], views: list[View]) -> int | None:
    group, time = event
    own = sorted(((t, s) for g, t, s in views if g == group), key=lambda view: (abs(view[0] - time), *view))
    return own[0][1] if own else None


def nearest(events: list[tuple[int, int]], views: list[View]) -> list[int | None]:
    e = np.array(events, np.int64).reshape(-1, 2)
    v = np.array(views, np.int64).reshape(-1, 3)
    found = nearest_views(e[:, 0], e[:, 1], v[:, 0], v[:, 1], v[:, 2].astype(np.int8))
    return [None if view == UNKNOWN else views[view][2] for view in found.tolist()]


CASES: dict[str, tuple[list[tuple[int, int]], list[View]]] = {
    "no views": ([(0, 5)], []),
    "no events": ([], [(0, 1, 1)]),
    "of another key": ([(1, 5)], [(0, 5, 1), (2, 5, 2)]),
    "earlier of two as near": ([(0, 5)], [(0, 7, 1), (0, 3, 3)]),
    "at the same time the smaller": ([(0, 5)], [(0, 5, 3), (0, 5, 2), (0, 4, 1)]),
    "before, at the same time the smaller": ([(0, 5)], [(0, 4, 3), (0, 4, 2)]),
    "first and last key": ([(-1, 5), (9, 5), (0, -4)], [(0, 5, 1), (0, -5, 2), (8, 5, 1)]),
}


@pytest.mark.parametrize("case", CASES)
def test_cases(case: str) -> None:
    events, views = CASES[case]
    assert nearest(events, views) == [by_hand(event, views) for event in events]


def test_random_rows() -> None:
    rng = np.random.default_rng(2)
    for _ in range(50):
        events = [(int(g), int(t)) for g, t in rng.integers(0, 12, (rng.integers(0, 30), 2))]
        views = [(int(g), int(t), int(s)) for g, t, s in rng.integers(0, [8, 12, 4], (rng.integers(0, 60), 3))]
        assert nearest(events, views) == [by_hand(event, views) for event in events]
