"""Histories of users cut into splits, and sorted rows cut at whole users."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rayrec.preprocessing.sorted_rows import group_starts, whole_groups
from rayrec.sources.interactions.config import InteractionFilesSplitConfig, LeaveOneOutSplitConfig
from rayrec.sources.interactions.histories import EARLIER, LISTED, TEST, TRAIN, VALIDATION, HistoryCounts, cut_histories

CODES = {"-": TRAIN, "v": VALIDATION, "t": TEST, "l": LISTED, "e": EARLIER}


def rows(text: str) -> pa.RecordBatch:
    """`u:abc|d|e`: user u chose a, b, c in this order, d is the positive of its list, and e was dropped before."""
    columns: dict[str, list[Any]] = {"user": [], "split": [], "item": []}
    for history in text.split():
        user, items = history.split(":")
        for code, of_code in zip((TRAIN, LISTED, EARLIER), items.split("|"), strict=False):
            for item in of_code:
                columns["user"].append(user)
                columns["item"].append(item)
                columns["split"].append(code)
    return pa.RecordBatch.from_pydict(
        columns, pa.schema([("user", pa.string()), ("split", pa.int8()), ("item", pa.string())])
    )


LOO, FILES = LeaveOneOutSplitConfig, InteractionFilesSplitConfig
CASES: dict[str, tuple[Any, str, str, HistoryCounts]] = {
    # split; rows; what is left, with the splits; counts
    "the last one": (LOO(min_interactions=0), "u:abc w:ba", "u:abc w:ba --t -t", HistoryCounts(users=2, train=3)),
    "and the one before": (
        LOO(min_interactions=0, validation=True),
        "u:abcd w:cba",
        "u:abcd w:cba --vt -vt",
        HistoryCounts(users=2, train=3),
    ),
    "too short": (
        LOO(min_interactions=0, validation=True),
        "u:ab w:a x:abc",
        "u:ab w:a x:abc -- - -vt",
        HistoryCounts(users=3, train=4, short_users=2),
    ),
    "repeated: the first stays": (
        LOO(min_interactions=0),
        "u:abab w:aa",
        "u:ab w:a -t -",
        HistoryCounts(users=2, train=2, repeated=3, short_users=1),
    ),
    "least, repeated ones counted": (
        LOO(min_interactions=3),
        "u:aab v:ab w:abc",
        "u:ab w:abc -t --t",
        HistoryCounts(users=2, train=3, dropped_users=1, dropped_rows=2, repeated=1),
    ),
    "nobody": (LOO(min_interactions=9), "u:ab w:a", "", HistoryCounts(dropped_users=2, dropped_rows=3)),
    "files": (FILES(), "u:abc|d w:|a x:a", "u:abcd w:a x:a ---l l -", HistoryCounts(users=3, train=4)),
    "files, validation from train": (
        FILES(validation=True),
        "u:abc|d w:|a x:a|b y:ab",
        "u:abcd w:a x:ab y:ab --vl l -l -v",
        HistoryCounts(users=4, train=4, short_users=1),
    ),
    "files, the listed one is in train too": (
        FILES(),
        "u:ab|a",
        "u:ab --",
        HistoryCounts(users=1, train=2, repeated=1),
    ),
    "dropped before: known of who comes back": (
        LOO(min_interactions=0),
        "u:abc||ad w:||ab",
        "u:abcad --tee",
        HistoryCounts(users=1, train=2),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_splits(case: str) -> None:
    split, given, expected, counts = CASES[case]
    before = rows(given)
    history, dropped, found = cut_histories(before, split)
    words = expected.split()
    left, codes = words[: len(words) // 2], "".join(words[len(words) // 2 :])
    pairs = [(user, item) for word in left for user, items in [word.split(":")] for item in items]
    assert list(zip(history["user"].to_pylist(), history["item"].to_pylist(), strict=True)) == pairs
    assert history["split"].to_pylist() == [CODES[code] for code in codes]
    assert found == counts
    assert set(dropped["user"].to_pylist()) == set(before["user"].to_pylist()) - set(history["user"].to_pylist())


def test_no_rows() -> None:
    history, dropped, counts = cut_histories(rows("u:a").slice(0, 0), LOO())
    assert dropped.num_rows == 0
    assert history.num_rows == 0 and counts == HistoryCounts()


@pytest.mark.parametrize("enough", [1, 2, 5, 100])
@pytest.mark.parametrize("batch_rows", [1, 3, 50])
def test_whole_groups(enough: int, batch_rows: int) -> None:
    values = np.repeat(np.arange(9), [1, 4, 1, 20, 2, 2, 1, 1, 7])
    table = pa.table({"user": values, "row": np.arange(len(values))})
    found = list(whole_groups(table.to_batches(max_chunksize=batch_rows), "user", enough))
    assert pa.Table.from_batches(found).equals(table)
    users = [set(batch["user"].to_pylist()) for batch in found]
    assert all(not a & b for i, a in enumerate(users) for b in users[:i])
    if enough == 100:
        assert len(found) == 1
    elif batch_rows == 1:
        assert all(len(batch) < enough + 2 * 20 for batch in found)
    assert group_starts(table["user"].combine_chunks()).tolist() == [0, 1, 5, 6, 26, 28, 30, 31, 32]


def test_no_runs() -> None:
    assert list(whole_groups([], "user", 5)) == []
    assert group_starts(pa.array([], pa.string())).tolist() == []
