"""The past of rows: what is taken of the events with their key that happened before them.

A table of events (`rayrec.features.lookup_table`) has a row for each key, with lists of one element per event, in order
of time:

- `events`: structs of `time` (microseconds since 1970) and, for each column of numbers, how many values there were
  up to this event (`rows:COLUMN`), and their sum (`sum:COLUMN`), so that what is taken of events in a row is the
  difference of two of them;
- `value:COLUMN` for each column whose last values are taken;
- `before`: how many events, the oldest of the key, are left out of the lists. A dataset's table has all; a model folder
  has those that a row can ask for whose horizon is `History.since` or later (`write_recent`).

A file beside it has the same numbers of the events of all keys by minute, for the mean that rates tend to.

Preprocessing and the server call `HistoryTable.complete` alike, so a request is completed as a training row was.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, starmap
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.features.events import OwnEvents, listed, summed
from rayrec.features.lookup_table import (
    HASH,
    UNKNOWN,
    LookupTable,
    Rows,
    TablePart,
    read_arrow,
    search_ranges,
    write_arrow,
    write_file,
)
from rayrec.features.raw_columns import SECOND, History, Taken
from rayrec.store.node_copy import on_this_node

EVENTS, TIME, BEFORE = "events", "time", "before"
LABEL = ""
"""What `Taken.of` is for the label, within the names of fields."""
MINUTE, DAY = 60 * SECOND, 86_400 * SECOND
"""Microseconds."""
_MOMENT = pa.timestamp("us", "UTC")
_MEANS_ENDING, _REMEDY = ".means", "create its folder again"


def rows_field(of: str | None) -> str:
    """Return the name of the field with the number of a column's values."""
    return f"rows:{of or LABEL}"


def sum_field(of: str | None) -> str:
    """Return the name of the field with the sum of a column's values."""
    return f"sum:{of or LABEL}"


def values_column(of: str | None) -> str:
    """Return the name of the table's column with a column's values."""
    return f"value:{of}"


def means_file(folder: Path) -> Path:
    """Return the file with the sums of all keys of the table in `folder`."""
    return folder.with_name(f"{folder.name}{_MEANS_ENDING}")


def horizon_of(history: History, moments: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the moments (n,) before which events count, of rows at some moments (n,), in microseconds."""
    return np.minimum(known_at(history, moments), moments - history.staleness) - history.delay


def known_at(history: History, moments: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the moments (n,) up to which rows at some moments (n,) know the log, in microseconds."""
    return moments if history.known is None else moments // history.known * history.known


@dataclass(frozen=True)
class _Past:
    """The events of k rows that count: elements begin[i] ... end[i] - 1 of some arrays."""

    asked: NDArray[np.int64]
    """(k,) the rows, ascending."""
    fields: Mapping[str, NDArray]
    """Times and running numbers, by name."""
    values: Callable[[str], pa.Array]
    """The values of a column."""
    start: NDArray[np.int64]
    """The first event of the key."""
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    before: NDArray[np.int64]
    """Number of older events that count, too, but that the table leaves out."""

    @property
    def count(self) -> NDArray[np.int64]:
        """Return (k,) how many events count."""
        return self.end - self.begin + self.before

    def difference(self, name: str) -> NDArray[np.float64]:
        """Return (k,) what running sums grow by over the events that count."""
        values = self.fields[name]
        last = np.where(self.end > self.start, values[self.end - 1], 0)
        if self.begin is self.start:
            return last.astype(np.float64)
        return (last - np.where(self.begin > self.start, values[self.begin - 1], 0)).astype(np.float64)


class HistoryTable(LookupTable):
    """The events of a history by key."""

    means: "Means | None" = None

    @classmethod
    def of_history(cls, folder: Path, history: History) -> Self:
        """Map the tables in `folder`. Raises UserError if one is damaged."""
        table = cls.open(folder)
        if any(taken.op == "rate" for taken in history.takes):
            table.means = Means.open(means_file(folder))
        return table

    def complete(
        self,
        history: History,
        columns: Collection[str],
        keys: pa.Array,
        moments: NDArray[np.int64],
        own: OwnEvents | None = None,
    ) -> dict[str, pa.Array]:
        """Return the raw columns `columns` of n rows with these keys (n,) at these moments (n,), in microseconds.

        `own`: events that rows bring, which count as if the table had them.
        """
        horizon, pasts = horizon_of(history, moments), self._pasts(history, keys, moments, own)
        takes = [taken for taken in history.takes if taken.column in columns]
        return {taken.column: self._take(taken, pasts, moments, horizon, own) for taken in takes}

    def count(
        self, history: History, keys: pa.Array, moments: NDArray[np.int64], own: OwnEvents | None = None
    ) -> NDArray[np.float64]:
        """Return (n,) how many events count for n rows."""
        pasts = self._pasts(history, keys, moments, own)
        return _of_rows(pasts, len(keys), lambda past: past.count)

    def _pasts(
        self, history: History, keys: pa.Array, moments: NDArray[np.int64], own: OwnEvents | None
    ) -> list[_Past]:
        def past_of(part: TablePart, asked: Rows, places: Rows) -> _Past:
            return _past_of(history, part, asked, places, moments[asked])

        found, pasts = self.find_texts(keys), []
        if own is not None and len(own.rows):
            bringing = np.unique(own.rows)
            known = {row: past for row in bringing.tolist() for past in starmap(past_of, self._of_row(found, row))}
            pasts.append(_with_own_events(history, known, bringing, moments[bringing], own))
            found[bringing] = UNKNOWN
        return pasts + list(starmap(past_of, self.by_part(found)))

    def _of_row(self, found: Rows, row: int) -> Iterator[tuple[TablePart, Rows, Rows]]:
        """Yield what `by_part` does, for one row alone."""
        for part, _, places in self.by_part(found[row : row + 1]):
            yield part, np.array([row]), places

    def _take(
        self,
        taken: Taken,
        pasts: Sequence[_Past],
        moments: NDArray[np.int64],
        horizon: NDArray[np.int64],
        own: OwnEvents | None,
    ) -> pa.Array:
        n = len(moments)
        if taken.op == "last":
            return _last(taken, pasts, n)
        if taken.op == "count":
            return pa.array(_of_rows(pasts, n, lambda past: past.count))
        if taken.op == "age":
            age = _of_rows(pasts, n, lambda past: (moments[past.asked] - past.fields[TIME][past.end - 1]) / DAY)
            return _with_nulls(age, _of_rows(pasts, n, lambda past: past.end - past.begin) <= 0)
        total = _of_rows(pasts, n, lambda past: past.difference(sum_field(taken.of)))
        if taken.op == "sum":
            return pa.array(total)
        rows = _of_rows(pasts, n, lambda past: past.difference(rows_field(taken.of)))
        if taken.op == "rate":
            assert self.means is not None
            mean, is_known = self.means.at(taken, horizon, own)
            with_mean = np.where(is_known, taken.smoothing, 0.0)
            rows, total = rows + with_mean, total + with_mean * mean
        lacks = rows <= 0
        return _with_nulls(total / np.where(lacks, 1, rows), lacks)


def _past_of(history: History, part: TablePart, asked: Rows, places: Rows, moments: NDArray[np.int64]) -> _Past:
    """Return the past of rows (k,) at some moments (k,) whose keys are rows (k,) of a part of the table."""
    offsets, fields = part.lists(EVENTS)
    start, stop = (offsets[places + step].astype(np.int64) for step in (0, 1))
    end, _ = search_ranges(fields[TIME], start, stop, horizon_of(history, moments))
    begin = _begin(history, fields[TIME], start, end, moments)
    before = part.numbers(BEFORE)[0][places] if begin is start else np.zeros_like(begin)
    return _Past(asked, fields, lambda of: part.batch[values_column(of)].values, start, begin, end, before)


def _begin(
    history: History,
    times: NDArray[np.int64],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    moments: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return the first events (k,) that count of start[i] ... end[i] - 1; `start` itself without a window."""
    if history.window is None:
        return start
    return search_ranges(times, start, end, known_at(history, moments) - history.delay - history.window)[0]


def _of_rows(pasts: Sequence[_Past], n: int, value: Callable[[_Past], NDArray]) -> NDArray[np.float64]:
    """Return (n,) a number of the past of each row, 0 without any."""
    if len(pasts) == 1 and len(pasts[0].asked) == n:
        return value(pasts[0]).astype(np.float64)
    result = np.zeros(n)
    for past in pasts:
        result[past.asked] = value(past)
    return result


def _with_nulls(values: NDArray[np.float64], is_null: NDArray[np.bool_]) -> pa.Array:
    return pa.array(values, mask=is_null) if is_null.any() else pa.array(values)


def _last(taken: Taken, pasts: Sequence[_Past], n: int) -> pa.Array:
    assert taken.of is not None
    lengths, parts, owners = np.zeros(n, np.int64), [], []
    for past in pasts:
        first = np.maximum(past.begin, past.end - taken.length)
        sizes = past.end - first
        lengths[past.asked] = sizes
        # Of a request; a slice takes a fifth of the time.
        parts.append(
            past.values(taken.of).slice(int(first[0]), int(sizes[0]))
            if len(first) == 1
            else past.values(taken.of).take(pa.array(element_places(first, past.end)))
        )
        owners.append(np.repeat(past.asked, sizes))
    values = pa.concat_arrays(parts) if parts else pa.nulls(0)
    if len(parts) > 1:
        values = values.take(pa.array(np.concatenate(owners).argsort(kind="stable")))
    return pa.ListArray.from_arrays(pa.array(offsets_of(lengths).astype(np.int32)), values)


# ---- events that rows bring


def _with_own_events(
    history: History, known: Mapping[int, _Past], rows: Rows, moments: NDArray[np.int64], own: OwnEvents
) -> _Past:
    """Return the past of rows (k,) at some moments (k,) that bring events, by what a table knows of some of them."""
    joined = []
    for row, horizon in zip(rows.tolist(), horizon_of(history, moments).tolist(), strict=True):
        first, stop = own.rows.searchsorted([row, row + 1]).tolist()
        stop = first + int(own.times[first:stop].searchsorted(horizon))
        joined.append(_joined(history, known.get(row), own, slice(first, stop)))
    is_there = np.array([len(fields[TIME]) > 0 for fields, _, _ in joined])
    asked, joined = rows[is_there], list(compress(joined, is_there)) or joined[:1]
    fields = {name: np.concatenate([fields[name] for fields, _, _ in joined]) for name in joined[0][0]}
    values = {of: pa.concat_arrays([values[of] for _, values, _ in joined]) for of in joined[0][1]}
    bounds = offsets_of(np.array([len(fields[TIME]) for fields, _, _ in joined]))[: len(asked) + 1]
    start, end = bounds[:-1], bounds[1:]
    begin = _begin(history, fields[TIME], start, end, moments[is_there])
    before = np.array([before for _, _, before in joined], np.int64)[: len(asked)]
    return _Past(asked, fields, values.__getitem__, start, begin, end, before)


def _joined(
    history: History, past: _Past | None, own: OwnEvents, new: slice
) -> tuple[dict[str, NDArray], dict[str, pa.Array], int]:
    """Return the newest events of a key that count, times and running numbers by field, and values by column; and how
    many more count. `past`: those of the table; `new`: those of `own`.

    Running sums go on from those of the table, bit for bit as if it had the new events too, where these are its newest
    or the numbers are whole.
    """
    numbers, texts, times = summed(history), listed(history), own.times[new]
    start = end = first = place = before = 0
    table: Mapping[str, NDArray] = {TIME: times[:0]}
    if past is not None:
        table, start, end = past.fields, int(past.start[0]), int(past.end[0])
        # Of the table's events: the window and the one before it, or those that lists take, and the last in any case.
        kept = end - max([1, *(taken.length for taken in history.takes)])
        first = max(int(past.begin[0]) - 1 if history.window is not None else kept, start)
        # Its events from here on are put in order with the new ones.
        place = end if not len(times) else start + int(table[TIME][start:end].searchsorted(times[0]))
        first = min(first, place)
        before = int(past.before[0]) + first - start if history.window is None else 0

    def base(name: str) -> NDArray:
        return table[name][place - 1 : place] if place > start else np.zeros(1)

    times = np.append(table[TIME][place:end], times)
    steps = []
    for of in numbers:
        given = own.numbers[of][new]
        if place < end:
            rows, sums = (np.diff(table[n][place:end], prepend=base(n)) for n in (rows_field(of), sum_field(of)))
            given = np.append(np.where(rows > 0, sums, np.nan), given)
        steps.append(given)
    values = {of: own.values[of].slice(new.start, new.stop - new.start) for of in texts}
    if past is not None:
        values = {of: pa.concat_arrays([past.values(of)[place:end], values[of]]) for of in texts}
    order = np.arange(len(times))
    if place < end:
        columns = [times, *(pa.array(step, from_pandas=True) for step in steps), *values.values(), order]
        by = pa.table(columns, names=list(map(str, range(len(columns)))))
        order = by.sort_by([(name, "ascending") for name in by.column_names])[-1].to_numpy()
    fields = {TIME: np.append(table[TIME][first:place], times[order])}
    for of, step in zip(numbers, steps, strict=True):
        is_there = ~np.isnan(step[order])
        for name, added in ((rows_field(of), is_there), (sum_field(of), np.where(is_there, step[order], 0.0))):
            grown = np.cumsum(np.append(base(name), added))
            fields[name] = np.append(table[name][first:place], grown[1:]) if place > first else grown[1:]
    for of in texts:
        values[of] = values[of].take(pa.array(order))
        if past is not None:
            values[of] = pa.concat_arrays([past.values(of)[first:place], values[of]])
    return fields, values, before


class Means:
    """The numbers of all keys, minute by minute."""

    def __init__(self, table: pa.RecordBatch) -> None:
        """Take `time`, the last microsecond of each minute with events, and running numbers as those of events."""
        self.table = table
        self._columns = {name: table[name].to_numpy() for name in table.schema.names}

    @classmethod
    def open(cls, path: Path) -> Self:
        """Map the file. Raises UserError if it is damaged."""
        return cls(read_means(path))

    def at(
        self, taken: Taken, horizon: NDArray[np.int64], own: OwnEvents | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return (n,) the means of a column over all minutes that ended before some moments (n,), and (n,) whether
        there was a value. Events that a row brings count for it.
        """
        places = self._columns[TIME].searchsorted(horizon) - 1
        rows, total = (self._columns[name][places] for name in (rows_field(taken.of), sum_field(taken.of)))
        if own is not None:
            numbers = own.numbers[taken.of]
            ends = own.times // MINUTE * MINUTE + MINUTE - 1
            counts = (ends < horizon[own.rows]) & ~np.isnan(numbers)
            of_rows, n = own.rows[counts], len(horizon)
            rows = rows + np.bincount(of_rows, minlength=n)
            total = total + np.bincount(of_rows, numbers[counts], minlength=n)
        is_known = rows > 0
        return np.where(is_known, total / np.where(is_known, rows, 1), 0.0), is_known


def moments_of(times: pa.Array) -> NDArray[np.int64]:
    """Return (n,) the moments of n times in microseconds since 1970; a missing one is now."""
    moments = (times if times.type == _MOMENT else times.cast(_MOMENT)).view(pa.int64())
    if moments.null_count:
        moments = moments.fill_null(time.time_ns() // 1_000)
    return moments.to_numpy(zero_copy_only=False)


def history_schema(history: History, types: dict[str, pa.DataType], key_fields: Sequence[pa.Field]) -> pa.Schema:
    """Return the columns of a table of events; `types`: of columns whose values are kept."""
    before, numbers = pa.field(BEFORE, pa.int64(), False), [pa.field(TIME, pa.int64(), False)]
    for of in summed(history):
        numbers += [pa.field(rows_field(of), pa.int64(), False), pa.field(sum_field(of), pa.float64(), False)]
    lists = [pa.field(EVENTS, pa.list_(pa.struct(numbers)), False)]
    lists += [pa.field(values_column(of), pa.list_(types[of]), False) for of in listed(history)]
    assert key_fields[0].name == HASH
    return pa.schema([*key_fields, before, *lists])


# ---- what a model folder has of it


def write_recent(history: History, since: int, table: Path, output: Path) -> None:
    """Write what rows whose horizon is `since` (microseconds) or later can ask for, of the table in the folder `table`.

    Of each key these are the events since then, less the window, and of those before them the newest values of lists,
    at least the last event: its running sums are those up to there. A table without keys makes an empty folder.
    """
    first_listed = since - (history.window or 0)
    kept_before = max([1, *(taken.length for taken in history.takes if history.window is None)])

    def recent(batch: pa.RecordBatch) -> pa.RecordBatch:
        offsets, fields = TablePart(batch, 0).lists(EVENTS)
        start, stop = (places.astype(np.int64) for places in (offsets[:-1], offsets[1:]))
        first, _ = search_ranges(fields[TIME], start, stop, np.full(len(start), first_listed))
        first = np.maximum(first - kept_before, start)
        elements, ends = pa.array(element_places(first, stop)), pa.array(offsets_of(stop - first), pa.int32())
        columns = {name: batch[name] for name in batch.schema.names}
        columns[BEFORE] = pa.array(columns[BEFORE].to_numpy() + first - start)
        for name in (EVENTS, *map(values_column, listed(history))):
            columns[name] = pa.ListArray.from_arrays(ends, batch[name].values.take(elements))
        return pa.RecordBatch.from_arrays(list(columns.values()), schema=batch.schema)

    output.mkdir(parents=True)
    for path in sorted(on_this_node(table).glob("*.arrow")):
        _, batches = read_arrow(path, _REMEDY)
        write_file(output, batches[0].schema, map(recent, batches))
    if means_file(table).exists():
        means = read_means(means_file(table))
        write_means(means_file(output), means.slice(means[TIME].to_numpy().searchsorted(since) - 1))


def read_means(path: Path) -> pa.RecordBatch:
    """Map the numbers of all keys by minute. Raises UserError if the file is damaged."""
    _, (means,) = read_arrow(path, _REMEDY)
    return means


def write_means(path: Path, means: pa.RecordBatch) -> None:
    """Write the numbers of all keys by minute: what `Means` takes."""
    write_arrow(path, means.schema, [means])


def offsets_of(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the offsets (n + 1,) of n lists of some sizes."""
    return np.concatenate([[0], np.cumsum(sizes)])


def element_places(first: NDArray[np.int64], stop: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the places first[i] ... stop[i] - 1 of all i, one after the other."""
    sizes = stop - first
    return np.arange(sizes.sum()) + np.repeat(first - (np.cumsum(sizes) - sizes), sizes)
