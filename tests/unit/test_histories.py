"""Histories of users cut into splits, and sorted rows cut at whole users."""

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rayrec.preprocessing.segments import cut_row_groups, group_starts
from rayrec.sources.interactions.config import InteractionFilesSplitConfig, LeaveOneOutSplitConfig
from rayrec.sources.interactions.histories import (
    EARLIER,
    GATHERED,
    LISTED,
    NO_CHOICE,
    TEST,
    TRAIN,
    VALIDATION,
    cut_histories,
)

CODES = {"-": TRAIN, "v": VALIDATION, "t": TEST, "l": LISTED, "e": EARLIER}


Row = tuple[str, str, int, int | None, int]
"""User, item, kind, time and position of an interaction."""


def table(rows: list[Row]) -> pa.Table:
    return pa.table(list(zip(*rows, strict=True)) or [[]] * 5, names=GATHERED.names).cast(GATHERED)


def rows(text: str) -> pa.Table:
    """`u:abc|d|e`: user u chose a, b, c in this order, d is the positive of its list, and e was dropped before."""
    found: list[Row] = []
    for history in text.split():
        user, items = history.split(":")
        for code, of_code in zip((TRAIN, LISTED, EARLIER), items.split("|"), strict=False):
            found += [(user, item, code, None, len(found) + place) for place, item in enumerate(of_code)]
    return table(found[::-1])


LOO, FILES = LeaveOneOutSplitConfig, InteractionFilesSplitConfig
CASES: dict[str, tuple[Any, str, str, dict[str, int]]] = {
    # split; rows; what is left, with the splits; counts
    "the last one": (LOO(min_interactions=0), "u:abc w:ba", "u:abc w:ba --t -t", {"users": 2, "train": 3}),
    "and the one before": (
        LOO(min_interactions=0, validation=True),
        "u:abcd w:cba",
        "u:abcd w:cba --vt -vt",
        {"users": 2, "train": 3},
    ),
    "too short": (
        LOO(min_interactions=0, validation=True),
        "u:ab w:a x:abc",
        "u:ab w:a x:abc -- - -vt",
        {"users": 3, "train": 4, "short_users": 2},
    ),
    "repeated: the first stays": (
        LOO(min_interactions=0),
        "u:abab w:aa",
        "u:ab w:a -t -",
        {"users": 2, "train": 2, "repeated": 3, "short_users": 1},
    ),
    "least, repeated ones counted": (
        LOO(min_interactions=3),
        "u:aab v:ab w:abc",
        "u:ab w:abc -t --t",
        {"users": 2, "train": 3, "dropped_users": 1, "dropped_rows": 2, "repeated": 1},
    ),
    "nobody": (LOO(min_interactions=9), "u:ab w:a", "", {"dropped_users": 2, "dropped_rows": 3}),
    "files": (FILES(), "u:abc|d w:|a x:a", "u:abcd w:a x:a ---l l -", {"users": 3, "train": 4}),
    "files, validation from train": (
        FILES(validation=True),
        "u:abc|d w:|a x:a|b y:ab",
        "u:abcd w:a x:ab y:ab --vl l -l -v",
        {"users": 4, "train": 4, "short_users": 1},
    ),
    "files, the listed one is in train too": (FILES(), "u:ab|a", "u:ab --", {"users": 1, "train": 2, "repeated": 1}),
    "dropped before: known of who comes back": (
        LOO(min_interactions=0),
        "u:abc||ad w:||ab",
        "u:adabc ee--t",
        {"users": 1, "train": 2},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_splits(case: str) -> None:
    split, given, expected, counts = CASES[case]
    before = rows(given)
    history, dropped, found = cut_histories(before, split, {})
    words = expected.split()
    left, codes = words[: len(words) // 2], "".join(words[len(words) // 2 :])
    pairs = [(user, item) for word in left for user, items in [word.split(":")] for item in items]
    assert list(zip(history["user"].to_pylist(), history["item"].to_pylist(), strict=True)) == pairs
    assert history["split"].to_pylist() == [CODES[code] for code in codes]
    assert {name: number for name, number in found.items() if number} == counts
    assert set(dropped["user"].to_pylist()) == set(before["user"].to_pylist()) - set(history["user"].to_pylist())


def test_no_rows() -> None:
    history, dropped, counts = cut_histories(rows(""), LOO(), {})
    assert dropped.num_rows == 0
    assert history.num_rows == 0 and not any(counts.values())


def cut_by_hand(rows: list[Row], least: int, held_out: list[int]) -> tuple[list[Any], list[Any], dict[str, int]]:
    """Return the histories, the dropped rows and some numbers, one user and one row at a time."""
    histories: list[Any] = []
    dropped: list[Any] = []
    counts = dict.fromkeys(("users", "dropped_users", "repeated", "train", "short_users"), 0)
    for user in sorted({user for user, *_ in rows}, key=str.encode):
        own = sorted((row for row in rows if row[0] == user), key=lambda row: (row[2] != EARLIER, *row[2:]))
        counted = [row for row in own if row[2] in (TRAIN, LISTED)]
        if len(counted) < max(least, 1):
            dropped += [(user, item, kind) for _, item, kind, *_ in own]
            counts["dropped_users"] += bool(counted)
            continue
        kept: dict[tuple[str, bool], int] = {}
        for _, item, kind, *_ in own:
            counts["repeated"] += kind < EARLIER and (item, False) in kept
            kept.setdefault((item, kind >= EARLIER), kind)
        train = [pair for pair, kind in kept.items() if kind == TRAIN]
        if len(train) > len(held_out):
            kept |= zip(train[::-1], held_out, strict=False)
        elif train and held_out:
            counts["short_users"] += 1
        histories += [(user, item, kind) for (item, _), kind in kept.items()]
        counts["users"] += 1
        counts["train"] += list(kept.values()).count(TRAIN)
    return histories, dropped, counts


@pytest.mark.parametrize("seed", range(30))
def test_any_rows_are_cut_as_by_hand(seed: int) -> None:
    random.seed(seed)
    users, items = random.randint(1, 9), random.randint(1, 12)
    kinds = [TRAIN] * random.randint(1, 9) + [LISTED, EARLIER, NO_CHOICE]
    given: list[Row] = [
        (f"ü{random.randrange(users)}", str(random.randrange(items)), kind, random.randrange(5), position)
        for position, kind in enumerate(random.choices(kinds, k=random.randint(1, 120)))
    ]
    split = LOO(min_interactions=random.randrange(12), validation=seed % 2 == 0, test=seed % 3 != 0)
    held_out = [*([TEST] if split.test else []), *([VALIDATION] if split.validation else [])]
    history, dropped, counts = cut_histories(table(given), split, {})
    expected, expected_dropped, numbers = cut_by_hand(given, split.min_interactions, held_out)
    assert [tuple(row.values()) for row in history.to_pylist()] == expected
    assert [tuple(row.values()) for row in dropped.to_pylist()] == expected_dropped
    assert {name: counts[name] or 0 for name in numbers} == numbers


@pytest.mark.parametrize("enough", [1, 2, 5, 100])
@pytest.mark.parametrize("batch_rows", [1, 3, 50])
def test_whole_groups(enough: int, batch_rows: int) -> None:
    values = np.repeat(np.arange(9), [1, 4, 1, 20, 2, 2, 1, 1, 7])
    table = pa.table({"user": values, "row": np.arange(len(values))})
    found = list(cut_row_groups(table.to_batches(max_chunksize=batch_rows), enough, "user"))
    assert pa.concat_tables(found).equals(table)
    users = [set(group["user"].to_pylist()) for group in found]
    assert all(not a & b for i, a in enumerate(users) for b in users[:i])
    assert all(len(group) >= enough for group in found[:-1])
    if enough == 100:
        assert len(found) == 1
    else:
        assert all(len(group) < enough + 20 for group in found)
    assert group_starts(table["user"].combine_chunks()).tolist() == [0, 1, 5, 6, 26, 28, 30, 31, 32]


def test_no_runs() -> None:
    assert list(cut_row_groups([], 5, "user")) == []
    assert group_starts(pa.array([], pa.string())).tolist() == []
