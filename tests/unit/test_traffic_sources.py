"""The page view nearest in time to an event, against a search row by row."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rayrec.preprocessing.sql import query
from rayrec.sources.outbrain.display_job import WITH_TRAFFIC

View = tuple[int, int, int]
"""Group, time, source."""


def by_hand(event: tuple[int, int], views: list[View]) -> int | None:
    group, time = event
    own = sorted(((t, s) for g, t, s in views if g == group), key=lambda view: (abs(view[0] - time), *view))
    return own[0][1] if own else None


def nearest(events: list[tuple[int, int]], views: list[View]) -> list[int | None]:
    shown = [{**page(group), "timestamp": time, "split": 0, "position": n} for n, (group, time) in enumerate(events)]
    viewed = [{**page(group), "timestamp": time, "traffic_source": source} for group, time, source in views]
    # In any order, as engines hand rows over.
    tables = {"shown": table(shown[::-1], ("split", "position")), "views": table(viewed[::-1], ("traffic_source",))}
    found = [row for batch in query(WITH_TRAFFIC, **tables) for row in batch.to_pylist()]
    return [row["traffic_source"] for row in sorted(found, key=lambda row: row["position"])]


def page(group: int) -> dict[str, Any]:
    """Return what a view has in common with an event; groups differ in one of these, and group -1 lacks one."""
    return {
        "user_row": None if group == -1 else group % 2,
        "document_id": group // 2 % 2,
        "day": group // 4 % 2,
        "platform": group // 8 % 2,
        "geo_location": "US" if group < 16 else "CA",
    }


def table(rows: list[dict[str, Any]], others: tuple[str, ...]) -> pa.Table:
    names = ("user_row", "document_id", "day", "platform", "timestamp", *others)
    return pa.Table.from_pylist(rows, pa.schema([*((n, pa.int64()) for n in names), ("geo_location", pa.string())]))


CASES: dict[str, tuple[list[tuple[int, int]], list[View]]] = {
    "no views": ([(0, 5)], []),
    "no events": ([], [(0, 1, 1)]),
    "of another key": ([(1, 5)], [(0, 5, 1), (2, 5, 2)]),
    "earlier of two as near": ([(0, 5)], [(0, 7, 1), (0, 3, 3)]),
    "at the same time the smaller": ([(0, 5)], [(0, 5, 3), (0, 5, 2), (0, 4, 1)]),
    "before, at the same time the smaller": ([(0, 5)], [(0, 4, 3), (0, 4, 2)]),
    "no such page, and none": ([(9, 5), (-1, 5), (0, -4)], [(0, 5, 1), (0, -5, 2), (8, 5, 1)]),
    "at the very time": ([(0, 5)], [(0, 5, 2), (0, 4, 1), (0, 6, 1)]),
}


@pytest.mark.parametrize("case", CASES)
def test_cases(case: str) -> None:
    events, views = CASES[case]
    assert nearest(events, views) == [by_hand(event, views) for event in events]


def test_random_rows() -> None:
    rng = np.random.default_rng(2)
    for _ in range(50):
        events = [(int(g), int(t)) for g, t in rng.integers(0, [20, 12], (rng.integers(0, 30), 2))]
        views = [(int(g), int(t), int(s)) for g, t, s in rng.integers(0, [18, 12, 4], (rng.integers(0, 60), 3))]
        assert nearest(events, views) == [by_hand(event, views) for event in events]
