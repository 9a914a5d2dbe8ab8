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
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.features.lookup_table import HASH, LookupTable, TablePart, read_arrow, search_ranges, write_file
from rayrec.features.raw_columns import History, Taken
from rayrec.store.files import new_file
from rayrec.store.node_copy import on_this_node

EVENTS, TIME, BEFORE = "events", "time", "before"
LABEL = ""
"""What `Taken.of` is for the label, within the names of fields."""
MINUTE = 60_000_000
"""Microseconds."""
DAY = 86_400_000_000
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


def summed(history: History) -> list[str | None]:
    """Return the columns of which running sums are kept; None for the label."""
    return list(dict.fromkeys(taken.of for taken in history.takes if taken.op in ("rate", "mean", "sum")))


def listed(history: History) -> list[str]:
    """Return the columns of which the values are kept."""
    return list(dict.fromkeys(taken.of for taken in history.takes if taken.op == "last" and taken.of is not None))


def horizon_of(history: History, moments: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the moments (n,) before which events count, of rows at some moments (n,), in microseconds."""
    return np.minimum(_known(history, moments), moments - history.staleness) - history.delay


def _known(history: History, moments: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the moments (n,) up to which rows at some moments (n,) know the log, in microseconds."""
    return moments if history.known is None else moments // history.known * history.known


@dataclass
class _Past:
    """The events of n rows that count, in one part of the table: elements begin[i] ... end[i] - 1."""

    part: TablePart
    asked: NDArray[np.int64]
    start: NDArray[np.int64]
    """The first event of the key."""
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    before: NDArray[np.int64]
    """How many events count beside them, which the table leaves out."""

    @property
    def count(self) -> NDArray[np.int64]:
        """Return (n,) how many events count."""
        return self.end - self.begin + self.before

    def difference(self, values: NDArray) -> NDArray:
        """Return (n,) what running sums grow by over the events that count."""
        last = np.where(self.end > self.start, values[self.end - 1], 0)
        return last - np.where(self.begin > self.start, values[self.begin - 1], 0)


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
        self, history: History, columns: Collection[str], keys: pa.Array, moments: NDArray[np.int64]
    ) -> dict[str, pa.Array]:
        """Return the raw columns `columns` of n rows with these keys (n,) at these moments (n,), in microseconds."""
        horizon, pasts = horizon_of(history, moments), self._pasts(history, keys, moments)
        takes = [taken for taken in history.takes if taken.column in columns]
        return {taken.column: self._take(taken, pasts, moments, horizon) for taken in takes}

    def count(self, history: History, keys: pa.Array, moments: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return (n,) how many events count for n rows."""
        count = np.zeros(len(keys), np.int64)
        for past in self._pasts(history, keys, moments):
            count[past.asked] = past.count
        return count

    def _pasts(self, history: History, keys: pa.Array, moments: NDArray[np.int64]) -> list[_Past]:
        pasts, horizon = [], horizon_of(history, moments)
        for part, asked, places in self.by_part(self.find_texts(keys)):
            offsets, fields = part.lists(EVENTS)
            start, stop = (offsets[places + step].astype(np.int64) for step in (0, 1))
            end, _ = search_ranges(fields[TIME], start, stop, horizon[asked])
            if history.window is None:
                begin, before = start, part.numbers(BEFORE)[0][places]
            else:
                first = _known(history, moments[asked]) - history.delay - history.window
                begin, _ = search_ranges(fields[TIME], start, end, first)
                before = np.zeros_like(begin)
            pasts.append(_Past(part, asked, start, begin, end, before))
        return pasts

    def _take(
        self, taken: Taken, pasts: Sequence[_Past], moments: NDArray[np.int64], horizon: NDArray[np.int64]
    ) -> pa.Array:
        n = len(moments)
        if taken.op == "last":
            return self._last(taken, pasts, n)
        if taken.op == "age":
            age, is_known = np.zeros(n), np.zeros(n, bool)
            for past in pasts:
                times = past.part.lists(EVENTS)[1][TIME]
                is_known[past.asked] = past.end > past.begin
                age[past.asked] = (moments[past.asked] - times[np.maximum(past.end - 1, 0)]) / DAY
            return pa.array(age, mask=~is_known)
        if taken.op == "count":
            count = np.zeros(n)
            for past in pasts:
                count[past.asked] = past.count
            return pa.array(count)
        rows, total = np.zeros(n), np.zeros(n)
        for past in pasts:
            fields = past.part.lists(EVENTS)[1]
            rows[past.asked] = past.difference(fields[rows_field(taken.of)])
            total[past.asked] = past.difference(fields[sum_field(taken.of)])
        if taken.op == "sum":
            return pa.array(total)
        if taken.op == "rate":
            assert self.means is not None
            mean, is_known = self.means.at(taken, horizon)
            with_mean = np.where(is_known, taken.smoothing, 0.0)
            rows, total = rows + with_mean, total + with_mean * mean
        return pa.array(total / np.where(rows > 0, rows, 1), mask=rows <= 0)

    def _last(self, taken: Taken, pasts: Sequence[_Past], n: int) -> pa.Array:
        assert taken.of is not None
        lengths, parts, owners = np.zeros(n, np.int64), [], []
        for past in pasts:
            first = np.maximum(past.begin, past.end - taken.length)
            sizes = past.end - first
            lengths[past.asked] = sizes
            elements = pa.array(element_places(first, past.end))
            parts.append(past.part.batch[values_column(taken.of)].values.take(elements))
            owners.append(np.repeat(past.asked, sizes))
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
        values = pa.concat_arrays(parts) if parts else pa.nulls(0)
        if len(parts) > 1:
            values = values.take(pa.array(np.concatenate(owners).argsort(kind="stable")))
        return pa.ListArray.from_arrays(offsets, values)


class Means:
    """The numbers of all keys, minute by minute."""

    def __init__(self, table: pa.RecordBatch) -> None:
        """Take `time`, the last microsecond of each minute with events, and running numbers as those of events."""
        self.table = table
        self._times: NDArray[np.int64] = table[TIME].to_numpy()

    @classmethod
    def open(cls, path: Path) -> Self:
        """Map the file. Raises UserError if it is damaged."""
        return cls(read_means(path))

    def at(self, taken: Taken, horizon: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return (n,) the means of a column over all minutes that ended before some moments (n,), and (n,) whether
        there was a value.
        """
        places = self._times.searchsorted(horizon) - 1
        rows, total = (self.table[name].to_numpy()[places] for name in (rows_field(taken.of), sum_field(taken.of)))
        is_known = (places >= 0) & (rows > 0)
        return np.where(is_known, total / np.where(rows > 0, rows, 1), 0.0), is_known


def moments_of(times: pa.Array) -> NDArray[np.int64]:
    """Return (n,) the moments of n times in microseconds since 1970; a missing one is now."""
    moments = times.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    return moments.fill_null(time.time_ns() // 1_000).to_numpy(zero_copy_only=False)


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
    with new_file(path) as temporary, pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, means.schema) as w:
        w.write_batch(means)


def offsets_of(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the offsets (n + 1,) of n lists of some sizes."""
    return np.concatenate([[0], np.cumsum(sizes)])


def element_places(first: NDArray[np.int64], stop: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the places first[i] ... stop[i] - 1 of all i, one after the other."""
    sizes = stop - first
    return np.arange(sizes.sum()) + np.repeat(first - (np.cumsum(sizes) - sizes), sizes)
