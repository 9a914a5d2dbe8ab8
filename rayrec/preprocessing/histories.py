"""Writes the tables of events that the past of rows is looked up in (`rayrec.features.histories`).

The events of a key come together by the key's hash, and SQL in the task puts them in order of time. Events of one
moment are in the order of their values, so that the files do not depend on the order of the rows.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.features.events import listed, summed, taken_of, that_count
from rayrec.features.hashes import hash_texts
from rayrec.features.histories import (
    EVENTS,
    MINUTE,
    TIME,
    HistoryTable,
    Means,
    history_schema,
    means_file,
    read_means,
    rows_field,
    sum_field,
    write_means,
)
from rayrec.features.lookup_table import HASH, LookupTable, write_file
from rayrec.features.lookups import KEY, KEY_FIELDS, SEPARATOR, joined_keys
from rayrec.features.raw_columns import History, RawColumn
from rayrec.features.text_forms import TextForm, in_form
from rayrec.preprocessing.earlier_events import EarlierEvents, hashes_of_partition
from rayrec.preprocessing.extract import extract_tables, pieces_of
from rayrec.preprocessing.lookups import KeyedRows, range_count, shuffle_rows
from rayrec.preprocessing.segments import (
    ReadRows,
    Segment,
    count_rows,
    cut_row_groups,
    group_starts,
    make_segments,
    new_rows,
    pieces_of_files,
    read_piece,
    rows_of,
)
from rayrec.preprocessing.sql import query
from rayrec.preprocessing.workspace import Workspace
from rayrec.raw.input_files import InputFile
from rayrec.raw.table_reader import TableFiles, TableReader
from rayrec.store.paths import file_name

_EVENTS_PER_BATCH = 262_144
_BEFORE_ALL = np.array([np.iinfo(np.int64).min])
"""A moment before all events."""
_EXACT = 2.0**53
"""Whole numbers below this have exact sums in float64."""
_MINUTES = pa.schema([("of", pa.int32()), (TIME, pa.int64()), ("value", pa.float64()), ("rows", pa.int64())])


@dataclass(frozen=True)
class Events:
    """Where the events of a history are read."""

    segments: Sequence[Segment]
    read: ReadRows
    time: str
    """The column of their times."""
    label: str | None
    """The column of the label (0 or 1); None if they have none."""
    types: Mapping[str, pa.DataType]
    """The types of columns as they are read."""
    forms: Mapping[str, TextForm]
    """The forms of texts by column: values are spelled as the lists of rows are."""


def events_reader(files: TableFiles, history: History, columns: Mapping[str, RawColumn]) -> TableReader:
    """Return the reader of events at a path; `columns`: those of the log, by name. An event without a key or a time is
    bad. Raises UserError as `TableFiles.reader`.
    """
    found = {key: columns[key].model_copy(update={"null_values": ()}) for key in history.keys}
    for field in history.fields:
        found.setdefault(field.name, field)
    return files.reader(list(found.values()), required=[*history.keys, history.fields[0].name])


def events_of_files(
    workspace: Workspace,
    history: History,
    reader: TableReader,
    files: Sequence[InputFile],
    max_rejected: float,
    forms: Mapping[str, TextForm],
) -> Events:
    """Parse the files of events, and set bad ones aside. Raises UserError if more than `max_rejected` of them is bad.

    `forms`: those of the texts of the log, by column.
    """
    name = f"events {file_name(history.name)}"
    scratch = workspace.scratch / "events" / file_name(history.name)
    scratch.mkdir(parents=True, exist_ok=True)
    pieces = []
    if files:  # a day may bring none
        chunks, _ = extract_tables(workspace, {name: (reader, files)}, scratch, max_rejected)
        pieces = pieces_of(chunks[name])

    def read(segment: Segment, columns: Sequence[str], dictionaries: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
        for batch in read_piece(segment.piece, columns):
            spelled = [in_form(batch[of], forms.get(of, "text")) for of in columns]
            yield pa.RecordBatch.from_arrays(spelled, names=list(columns))

    types = dict(zip(reader.schema.names, reader.schema.types, strict=True))
    segments, time = make_segments(pieces), history.fields[0].name
    return Events(segments, read, time, None, types, forms)


class _Sent:
    """The events of a history as they are sent to where those of a key come together, and what becomes of them there.

    SQL takes names that differ in case alone for one, so the columns are numbered.
    """

    def __init__(
        self,
        history: History,
        time: str,
        label: str | None,
        types: Mapping[str, pa.DataType],
        forms: Mapping[str, TextForm],
        earlier: EarlierEvents | None = None,
    ) -> None:
        """`time`, ..., `forms`: as `Events` has them. `earlier`: the events that these follow."""
        self._history, self._forms, self._earlier = history, forms, earlier
        self._time, self._label = time, label
        self._numbers, self._values = summed(history), listed(history)
        needed = [*history.keys, time, *(of or label for of in self._numbers), *self._values]
        if history.where is not None:
            needed.append(history.where.column)
        self.reads = list(dict.fromkeys(name for name in needed if name is not None))
        """The columns of events that are read."""
        types = {of: types[of] for of in self._values}
        fields = [*KEY_FIELDS, pa.field(TIME, pa.int64(), False)]
        fields += [pa.field(f"n{number}", pa.float64()) for number in range(len(self._numbers))]
        fields += [pa.field(f"v{number}", types[of]) for number, of in enumerate(self._values)]
        self.schema = pa.schema(fields)
        self.table = history_schema(history, types, KEY_FIELDS)
        """The schema of the table of events."""
        self.has_means = any(taken.op == "rate" for taken in history.takes)

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the events that count of a batch with the columns `reads`."""
        keys = joined_keys([batch[key] for key in self._history.keys]).cast(pa.string())
        events = dict(zip(batch.schema.names, batch.columns, strict=True))
        times, *taken = taken_of(self._history, events, self._time, self._label, self._forms)
        times = self._earlier.counted_from(times) if self._earlier else times
        rows = pa.RecordBatch.from_arrays([pa.array(hash_texts(keys)), keys, times, *taken], schema=self.schema)
        counts, meets = pc.and_(keys.is_valid(), rows[TIME].is_valid()), that_count(self._history, events)
        return rows.filter(counts if meets is None else pc.and_(counts, meets))

    def by_key(
        self, ordered: Iterable[pa.RecordBatch], hashes: tuple[int, int]
    ) -> Iterator[tuple[pa.RecordBatch, pa.Table]]:
        """Yield the table of events, a row for each key, of events in the order of all their columns; with each batch,
        how many of its events have which number in which minute. `hashes`: the first and the last that keys may have.
        """
        groups = cut_row_groups(ordered, _EVENTS_PER_BATCH, HASH)
        beside: Iterable[tuple[pa.Table, pa.RecordBatch | None]] = ((group, None) for group in groups)
        if self._earlier is not None:
            beside = self._earlier.beside(groups, hashes, self.table, self.schema)
        for group, earlier in beside:
            with self._told_if_too_many(group):
                events = pa.concat_batches(group.to_batches() or [pa.RecordBatch.from_pylist([], self.schema)])
                minutes = [_by_minute(events, number) for number in range(len(self._numbers) if self.has_means else 0)]
                by_key = _by_key(events, self._numbers, self._values, self.table, earlier)
                if earlier is not None and self._earlier is not None:
                    by_key = self._earlier.followed_by(earlier, by_key)
            yield by_key, pa.concat_tables(minutes) if minutes else _MINUTES.empty_table()

    @contextmanager
    def _told_if_too_many(self, group: pa.Table) -> Iterator[None]:
        """Raise UserError where Arrow's 32 bits do not count the events of a group's last key, or their texts."""
        try:
            yield
        except pa.ArrowInvalid as error:
            key = str(group[KEY][-1])[:100].replace(SEPARATOR, ", ")
            raise UserError(
                f"history '{self._history.name}': {group.num_rows:,} events of {' and '.join(self._history.keys)} "
                f"{key!a} are too many for one list; leave them out by `where`, or list the key in "
                "source.null_values if it names nobody"
            ) from error

    def means(self, minutes: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
        """Return the running numbers of all keys by minute, the first row being of before all events; `minutes` are in
        the order of their columns.
        """
        # At first a minute before all, whose numbers are those that they go on from.
        before = read_means(means_file(self._earlier.folder)) if self._earlier else self._no_means()
        last = {name: before[name].to_numpy()[-1:] for name in before.schema.names}
        found = [[(_BEFORE_ALL, last[rows_field(of)], last[sum_field(of)])] for of in self._numbers]
        for batch in minutes:
            for number, so_far in enumerate(found):
                rows = batch.filter(pc.equal(batch["of"], number))
                if rows.num_rows:
                    time, value, n = (rows[name].to_numpy() for name in (TIME, "value", "rows"))
                    running = [
                        np.cumsum(np.append(before[-1], values))[1:]
                        for before, values in zip(so_far[-1][1:], (n, value * n), strict=True)
                    ]
                    is_last = np.append(time[1:] != time[:-1], True)
                    so_far.append((time[is_last], running[0][is_last], running[1][is_last]))
        of_column = [tuple(map(np.concatenate, zip(*batches, strict=True))) for batches in found]
        times = np.unique(np.concatenate([time for time, _, _ in of_column]))
        columns: dict[str, NDArray] = {TIME: times + MINUTE - 1}
        for of, (time, n, total) in zip(self._numbers, of_column, strict=True):
            # The last of those that two batches have of one minute.
            place = np.searchsorted(time, times, side="right") - 1
            columns |= {rows_field(of): n[place], sum_field(of): total[place]}
        new = pa.RecordBatch.from_pydict(columns, before.schema).slice(1)
        # The last minute of before may go on.
        kept = len(before) - int(len(new) > 0 and before[TIME][-1] == new[TIME][0])
        return pa.concat_batches([before.slice(0, kept), new])

    def _no_means(self) -> pa.RecordBatch:
        """Return the numbers before all events."""
        columns: dict[str, NDArray] = {TIME: _BEFORE_ALL}
        for of in self._numbers:
            columns |= {rows_field(of): np.zeros(1, np.int64), sum_field(of): np.zeros(1)}
        return pa.RecordBatch.from_pydict(columns)


def write_history(
    workspace: Workspace,
    history: History,
    events: Events,
    folder: Path,
    earlier: EarlierEvents | None = None,
) -> int | None:
    """Write the table of a history into `folder`, and the numbers of all keys beside it; `earlier`: the events that
    these follow. Return the time of the newest event in microseconds, whether it counts or not; None without any.
    """
    sent = _Sent(history, events.time, events.label, events.types, events.forms, earlier)
    ranges = range_count(count_rows(events.segments) + (earlier.count(sent.table) if earlier else 0))

    def read(segment: Segment) -> Iterator[pa.RecordBatch]:
        return (sent.rows(batch) for batch in events.read(segment, sent.reads))

    scratch = workspace.scratch / "minutes" / file_name(history.name)

    def write(partition: int, tables: Mapping[str, pa.Table]) -> Path:
        order, path = ", ".join(sent.schema.names), scratch / f"{partition:05d}.parquet"
        ordered = query(f"from events order by {order}", sent.schema, events=tables["events"])
        with new_rows(path, _MINUTES) as minutes:

            def batches() -> Iterator[pa.RecordBatch]:
                for by_key, by_minute in sent.by_key(ordered, hashes_of_partition(partition, ranges)):
                    minutes.write_table(by_minute)
                    yield by_key

            write_file(folder, sent.table, batches())
        return path

    def sum_up(minutes: Sequence[Path]) -> None:
        sql = "select of, time, value, sum(rows) from minutes group by all order by all"
        ordered = query(sql, _MINUTES, minutes=rows_of(pieces_of_files(minutes), _MINUTES))
        write_means(means_file(folder), sent.means(ordered))

    scratch.mkdir(parents=True, exist_ok=True)
    rows = {"events": KeyedRows(events.segments, sent.schema, read)}
    written = shuffle_rows(workspace, f"history {history.name}", rows, write, ranges)
    if sent.has_means:
        workspace.engine.run([written], sum_up)

    def newest(segment: Segment) -> int | None:
        times = (pc.max(batch[events.time].cast(pa.int64())) for batch in events.read(segment, [events.time]))
        return max((time.as_py() for time in times if time.is_valid), default=None)

    ends = [*workspace.engine.run(events.segments, newest), earlier.until if earlier else None]
    return max((end for end in ends if end is not None), default=None)


def history_of_rows(history: History, rows: pa.RecordBatch, label: str) -> HistoryTable:
    """Return the table of a history of a few rows of the log, in memory; `label`: their column of 0 and 1."""
    types = dict(zip(rows.schema.names, rows.schema.types, strict=True))
    sent = _Sent(history, history.time, label, types, {})
    ordered = sent.rows(rows).sort_by([(name, "ascending") for name in sent.schema.names])
    by_key = list(sent.by_key([ordered], hashes_of_partition(0, 1)))
    table = HistoryTable(batch for batch, _ in by_key)
    if sent.has_means:
        minutes = pa.concat_tables(minutes for _, minutes in by_key)
        minutes = minutes.sort_by([(name, "ascending") for name in minutes.column_names])
        table.means = Means(sent.means(minutes.to_batches()))
    return table


def _by_key(
    events: pa.RecordBatch,
    numbers: Sequence[str | None],
    values: Sequence[str],
    schema: pa.Schema,
    earlier: pa.RecordBatch | None,
) -> pa.RecordBatch:
    """Return a row for each key of events that are in order, whose sums go on from the last ones of `earlier` rows."""
    starts = group_starts(events[KEY])
    firsts = events.select([HASH, KEY]).take(pa.array(starts))
    last = {} if earlier is None else _last_sums(earlier, firsts[KEY])

    def sums(name: str, terms: NDArray[np.float64]) -> NDArray[np.float64]:
        if name in last:
            terms = terms.copy()
            terms[starts] += last[name]
        return running_sums(terms, starts)

    fields = {TIME: events[TIME]}
    for number, of in enumerate(numbers):
        column = events[f"n{number}"]
        is_there = column.is_valid().to_numpy(zero_copy_only=False)
        fields[rows_field(of)] = pa.array(sums(rows_field(of), is_there.astype(np.float64)).astype(np.int64))
        fields[sum_field(of)] = pa.array(sums(sum_field(of), column.fill_null(0.0).to_numpy()))
    offsets = pa.array([*starts.tolist(), len(events)], pa.int32())
    lists = [pa.StructArray.from_arrays(list(fields.values()), fields=list(schema.field(EVENTS).type.value_type))]
    lists += [events[f"v{number}"] for number in range(len(values))]
    none_left_out = pa.array(np.zeros(len(starts), np.int64))
    columns = [*firsts.columns, none_left_out, *(pa.ListArray.from_arrays(offsets, elements) for elements in lists)]
    return pa.RecordBatch.from_arrays([c.cast(f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


def _last_sums(earlier: pa.RecordBatch, keys: pa.Array) -> dict[str, NDArray[np.float64]]:
    """Return by field (n,) the last number of each of n keys in earlier rows, 0 of unknown ones; nothing if all are."""
    last: dict[str, NDArray[np.float64]] = {}
    table = LookupTable([earlier])
    for part in table.ranges(EVENTS, table.find_texts(keys)) if len(table) else ():
        for name, held in part.fields.items():
            last.setdefault(name, np.zeros(len(keys)))[part.asked] = held[part.stop - 1]
    return last


def _by_minute(events: pa.RecordBatch, number: int) -> pa.Table:
    """Return how often each value of a column of numbers occurs in each minute."""
    minute = events[TIME].to_numpy() // MINUTE * MINUTE
    rows = pa.table({TIME: minute, "value": events[f"n{number}"]}).drop_null()
    counted = rows.group_by([TIME, "value"], use_threads=False).aggregate([([], "count_all")])
    of = pa.array(np.full(len(counted), number, np.int32))
    return pa.table([of, *(counted[name] for name in (TIME, "value", "count_all"))], schema=_MINUTES)


def running_sums(values: NDArray[np.float64], starts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return (n,) the sums of values (n,) up to each, inclusive, which begin again at `starts`.

    They are what adding one after the other gives, whatever lies before a start.
    """
    if (values == np.rint(values)).all() and np.abs(values).sum() < _EXACT:
        total = np.cumsum(values)
        before = np.concatenate([[0.0], total])[starts]
        return total - np.repeat(before, np.diff(starts, append=len(values)))
    result = np.empty_like(values)
    for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(values)], strict=True):
        np.cumsum(values[start:stop], out=result[start:stop])
    return result
