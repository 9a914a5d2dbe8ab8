"""What is taken of events is what plain Python finds by going through all of them, for any small log."""

import math
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from rayrec.common.progress import SilentProgress
from rayrec.config.table import LabelCondition
from rayrec.features.histories import HistoryTable
from rayrec.features.lookups import joined_keys
from rayrec.features.raw_columns import History, Taken
from rayrec.preprocessing.engine import EmbeddedEngine
from rayrec.preprocessing.histories import Events, write_history
from rayrec.preprocessing.segments import Piece, Segment
from rayrec.preprocessing.workspace import Workspace

SECOND = 1_000_000
MINUTE, DAY = 60 * SECOND, 86_400 * SECOND
TAKES = (
    Taken(column="count", op="count"),
    Taken(column="age", op="age"),
    Taken(column="rate", op="rate", smoothing=3.0),
    Taken(column="rate_x", op="rate", of="x", smoothing=0.5),
    Taken(column="mean", op="mean", of="x"),
    Taken(column="sum", op="sum", of="x"),
    Taken(column="last", op="last", of="item", length=3),
    Taken(column="all", op="last", of="item", length=1_000),
)


class Event(NamedTuple):
    """An event of the log, which is also a row that asks for its past."""

    time: int
    """Microseconds."""
    key: str | None
    other: float | None
    label: float
    x: float | None
    item: str | None


@dataclass(frozen=True)
class Asked:
    """How a history is taken."""

    keys: tuple[str, ...]
    delay: int
    window: int | None
    known: int | None
    where: LabelCondition | None

    @property
    def history(self) -> History:
        return History(
            name="past",
            keys=self.keys,
            time="time",
            delay=self.delay,
            window=self.window,
            known=self.known,
            takes=TAKES,
            where=self.where,
        )


# Few moments, many of them equal: around 1970, where minutes and days begin, and further than float64 counts.
TIMES = st.one_of(
    st.integers(-4, 4).map(lambda n: n * 20 * SECOND),
    st.integers(-3, 3).map(lambda n: n * DAY // 2 + n),
    st.sampled_from([MINUTE, MINUTE - 1, MINUTE + 1, DAY, DAY - 1, -MINUTE, -MINUTE - 1, 2**53 + 1, -(2**53) - 1]),
)
NUMBERS = st.one_of(
    st.none(),
    st.integers(-8, 8).map(lambda n: n / 4),
    st.sampled_from([math.nan, math.inf, -0.0, 1e6, 1.5e308, -1.6e308]),
)
EVENTS = st.lists(
    st.builds(
        Event,
        time=TIMES,
        key=st.sampled_from(["a", "a", "a", "b", "7", "007", "7.0", "", None]),
        other=st.sampled_from([0.0, -0.0, 1.5, -2.0, None]),
        label=st.sampled_from([0.0, 1.0]),
        x=NUMBERS,
        item=st.sampled_from(["i", "j", "007", "7.0", "", None]),
    ),
    max_size=30,
)
ASKED = st.builds(
    Asked,
    keys=st.sampled_from([("key",), ("other",), ("key", "other")]),
    delay=st.sampled_from([0, 1, 20 * SECOND, MINUTE, DAY]),
    window=st.sampled_from([None, 1, 20 * SECOND, 2 * MINUTE, DAY, 2**62]),
    known=st.sampled_from([None, MINUTE, DAY]),
    where=st.sampled_from(
        [
            None,
            LabelCondition(column="label", equals=("1",)),
            LabelCondition(column="x", at_least=0.5),
            LabelCondition(column="x", at_least=0.5, missing=1),
            LabelCondition(column="item", equals=("i", "007")),
        ]
    ),
)


def batch_of(events: Sequence[Event]) -> pa.RecordBatch:
    """Return events as rows of a log."""
    kinds = [pa.timestamp("us", "UTC"), pa.string(), pa.float64(), pa.float32(), pa.float64(), pa.string()]
    columns = zip(*events, strict=True) if events else [()] * len(kinds)
    arrays = [pa.array(column, kind, from_pandas=False) for column, kind in zip(columns, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=list(Event._fields))


def completed(
    asked: Asked, events: Sequence[Event], rows: Sequence[Event], pieces: int = 2, workers: int = 2
) -> dict[str, pa.Array]:
    """Write a table of events, which lie in some segments, and return what is taken of it for rows."""
    batches = [batch_of(events[number::pieces]) for number in range(pieces)]

    def read(segment: Segment, columns: Sequence[str], dictionaries: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
        yield batches[segment.index].select(columns)

    segments = [Segment(n, Piece(Path(), 0, batch.num_rows), 0) for n, batch in enumerate(batches)]
    types = dict(zip(batches[0].schema.names, batches[0].schema.types, strict=True))
    folder = Path(tempfile.mkdtemp())
    try:
        workspace = Workspace(EmbeddedEngine(workers), folder, folder / "scratch", SilentProgress())
        (folder / "scratch").mkdir()
        table = folder / "past"
        table.mkdir()
        log = Events(segments, read, "time", "label", types, {})
        write_history(workspace, asked.history, log, table)
        batch = batch_of(rows)
        keys = joined_keys([batch[key] for key in asked.keys])
        moments = np.array([row.time for row in rows], np.int64)
        history = asked.history
        return HistoryTable.of_history(table, history).complete(history, history.columns, keys, moments)
    finally:
        shutil.rmtree(folder)


def counts(asked: Asked, event: Event) -> bool:
    """Tell whether a condition lets an event count."""
    where = asked.where
    if where is None:
        return True
    value: Any = getattr(event, where.column)
    if value in (None, "") or (where.at_least is not None and math.isnan(value)):
        return where.missing == 1
    if where.at_least is not None:
        return value >= where.at_least
    return (f"{value:g}" if isinstance(value, float) else value) in (where.equals or ())


def by_hand(asked: Asked, events: Sequence[Event], row: Event) -> dict[str, Any]:
    """Go through all events for one row."""
    until = (row.time if asked.known is None else row.time // asked.known * asked.known) - asked.delay
    since = -math.inf if asked.window is None else until - asked.window
    events = [event for event in events if counts(asked, event)]
    key = [getattr(row, name) for name in asked.keys]
    past = [
        event
        for event in events
        if None not in key and [getattr(event, name) for name in asked.keys] == key and since <= event.time < until
    ]
    # Events of one moment are in the order of their values, those without one last.
    past.sort(key=lambda e: (e.time, e.label, numbers_first(e.x), e.item is None, (e.item or "").encode()))
    numbers = [event.x for event in past if is_number(event.x)]
    minute = until // MINUTE * MINUTE
    earlier = [event for event in events if event.time < minute and None not in [getattr(event, n) for n in asked.keys]]
    items = [event.item for event in past]
    return {
        "count": float(len(past)),
        "age": float(row.time - past[-1].time) / DAY if past else None,
        "rate": smoothed([e.label for e in past], [e.label for e in earlier], 3.0),
        "rate_x": smoothed(numbers, [e.x for e in earlier if is_number(e.x)], 0.5),
        "mean": sum(numbers) / len(numbers) if numbers else None,
        "sum": sum(numbers, 0.0),
        "last": items[-3:],
        "all": items,
    }


def is_number(value: float | None) -> bool:
    return value is not None and abs(value) < 1e100  # sums of larger ones might be infinite


def numbers_first(value: float | None) -> tuple[bool, float]:
    return (False, value) if value is not None and is_number(value) else (True, 0.0)


def smoothed(values: Sequence[float], of_all: Sequence[float], smoothing: float) -> float | None:
    total, rows = sum(values), float(len(values))
    if of_all:
        total, rows = total + smoothing * (sum(of_all) / len(of_all)), rows + smoothing
    return total / rows if rows else None


@given(EVENTS, ASKED)
@settings(max_examples=40)
def test_each_column_is_what_plain_python_finds(events: list[Event], asked: Asked) -> None:
    found = completed(asked, events, events)
    expected = [by_hand(asked, events, event) for event in events]
    for taken in TAKES:
        # The same bits: all sums are exact.
        assert found[taken.column].to_pylist() == [row[taken.column] for row in expected], taken.column


@given(EVENTS, EVENTS, ASKED, st.randoms())
@settings(max_examples=20)
def test_later_events_and_the_order_of_events_change_no_bit(
    events: list[Event], more: list[Event], asked: Asked, random: Any
) -> None:
    first = max((event.time for event in events), default=0)
    later = [event._replace(time=first + abs(event.time)) for event in more]  # some at the same moment
    mixed = [*events, *later]
    random.shuffle(mixed)
    before = completed(asked, events, events, pieces=1, workers=1)
    after = completed(asked, mixed, events, pieces=3)
    for name, values in before.items():
        kind = pa.list_(pa.string()) if pa.types.is_list(values.type) else values.type  # empty lists have no type
        assert values.cast(kind).equals(after[name].cast(kind)), name
