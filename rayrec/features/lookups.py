"""Looks up what raw rows lack, for a table in Spark and for a request: columns of side tables, label rates, the past.

The tables are those of `rayrec.features.lookup_table`, with the text that is looked up in the column `key`. Those of
histories are described in `rayrec.features.histories`. Those of rates have the counts `rows` and `positives`, and in
preprocessing also those of each fold (`rows_0`, `positives_0`).
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.features.events import OwnEvents
from rayrec.features.histories import HistoryTable, moments_of
from rayrec.features.lookup_table import HASH, REQUEST_VALUES, UNKNOWN, LookupTable
from rayrec.features.raw_columns import STATISTICS_FOLDER, History, Lookup, Rate
from rayrec.features.schema import Schema
from rayrec.features.stacked_columns import Stack, StackedColumns
from rayrec.store.paths import file_name

KEY, ROWS, POSITIVES = "key", "rows", "positives"
COUNTS = (ROWS, POSITIVES)
TABLES_FOLDER, RATES_FOLDER, HISTORIES_FOLDER = "tables", "rates", "histories"
SEPARATOR = "\x1f"
"""The unit separator of ASCII joins several keys to one text; keys that contain it themselves may share a rate."""
KEY_FIELDS = (pa.field(HASH, pa.int64(), False), pa.field(KEY, pa.string(), False))
"""The first columns of every table."""
RATE_SCHEMA = pa.schema([*KEY_FIELDS, *(pa.field(name, pa.int64(), False) for name in COUNTS)])

Given = Callable[[str], pa.Array | None]
"""Returns a column of rows by name; None if they have none."""


def lookup_folder(statistics: Path, lookup: Lookup) -> Path:
    """Return the folder of the table of a look-up."""
    folders = {"table": TABLES_FOLDER, "rate": RATES_FOLDER, "history": HISTORIES_FOLDER}
    return statistics / folders[lookup.kind] / file_name(lookup.name)


def open_lookup(folder: Path, lookup: Lookup) -> LookupTable:
    """Map the table of a look-up in its folder. Raises UserError if it is damaged."""
    return HistoryTable.of_history(folder, lookup) if isinstance(lookup, History) else LookupTable.open(folder)


class Lookups:
    """Completes raw rows from the tables of a schema. The result for a row does not depend on the rows around it."""

    def __init__(
        self,
        schema: Schema,
        folder: Path,
        rates_by_fold: Path | None = None,
        columns: Collection[str] | None = None,
        open_table: Callable[[Lookup], LookupTable] | None = None,
    ) -> None:
        """Map the tables in `folder`, the one that holds schema.json, into memory.

        `rates_by_fold`: folder of tables of rates, by name, that have the counts of each fold. `columns`: the raw
        columns that are wanted; None looks up all. `open_table`: gives the table of a look-up if it is not in
        `folder`. Raises UserError if a table is damaged.
        """
        self._types = {column.name: column.arrow for column in schema.columns}
        self._weighed: dict[str, list[str]] = {}
        """The raw columns of the values that a column of weights weighs."""
        for feature in schema.weighted:
            values, weights = feature.inputs
            self._weighed.setdefault(weights, []).append(values)
        wanted = set(schema.looked_up if columns is None else columns)
        self._lookups: list[tuple[Lookup, tuple[str, ...], LookupTable]] = []
        for lookup in reversed(schema.lookups):
            names = tuple(name for name in lookup.columns if name in wanted)
            if not names:
                continue
            wanted.update(lookup.reads)
            path = lookup_folder(folder / STATISTICS_FOLDER, lookup)
            if rates_by_fold is not None and isinstance(lookup, Rate):
                path = rates_by_fold / file_name(lookup.name)
            table = open_table(lookup) if open_table else open_lookup(path, lookup)
            self._lookups.insert(0, (lookup, names, table))

    @classmethod
    @lru_cache(maxsize=16)
    def cached(
        cls,
        schema: Schema,
        folder: Path,
        rates_by_fold: Path | None = None,
        columns: frozenset[str] | None = None,
    ) -> "Lookups":
        """Return the look-ups that this process opened before; the folders must not change meanwhile."""
        return cls(schema, folder, rates_by_fold, columns)

    def reads(self, columns: Sequence[str]) -> list[str]:
        """Return the columns of raw files that `columns` are taken or looked up from."""
        keys = [key for lookup, _, _ in self._lookups for key in lookup.reads]
        looked_up = {name for _, names, _ in self._lookups for name in names}
        return [name for name in dict.fromkeys((*columns, *keys)) if name not in looked_up]

    def keys_found(self, raw: pa.RecordBatch) -> Iterator[tuple[Lookup, LookupTable, pa.Array, NDArray[np.bool_]]]:
        """Yield each look-up that n rows need with its table, their keys (n,), null where one is missing, and (n,)
        whether the table has them, or an event before the row. Rows that give all that is looked up need none.
        """
        given = raw.schema.names
        chained = {key for lookup, _, _ in self._lookups for key in lookup.keys}.difference(given)
        completed = self.complete(raw) if chained else raw
        columns = dict(zip(completed.schema.names, completed.columns, strict=True))
        for lookup, names, table in self._lookups:
            needs = any(name not in given or raw[name].null_count for name in names)
            if needs and all(key in columns for key in lookup.keys):
                keys = joined_keys([columns[key] for key in lookup.keys])
                if isinstance(lookup, History) and isinstance(table, HistoryTable):
                    moments, own = _past_asked(lookup, columns.get, raw.num_rows)
                    found = table.count(lookup, keys, moments, own) > 0
                else:
                    found = table.find_texts(keys) != UNKNOWN
                yield lookup, table, keys, found

    def complete(self, raw: pa.RecordBatch, folds: NDArray[np.int64] | None = None) -> pa.RecordBatch:
        """Add the columns that are looked up, with the types of the schema; what the rows give of them stays.

        Values and their weights come from one row: weights are looked up where the values are, and not otherwise.
        `folds`: (n,) for each row the fold whose rows its rates leave out, -1 for none; they leave nothing out without.
        An absent key column is missing in every row.
        """
        columns = dict(zip(raw.schema.names, raw.columns, strict=True))
        columns |= self._completed(columns.get, raw.num_rows, folds)
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def complete_stacked(self, raw: StackedColumns) -> StackedColumns:
        """Complete the rows of a request, which have all raw columns, as `complete` does."""
        names = frozenset(raw.schema.names)

        def given(name: str) -> pa.Array | None:
            return raw.stack((name,)) if name in names else None

        found = self._completed(given, raw.num_rows, None)
        stacks: dict[tuple[str, ...], Stack] = {(name,): values for name, values in found.items()}
        # A column lies in one stack: those that lose one to what was found are taken apart.
        for stacked, values in raw.stacks.items():
            if found.keys().isdisjoint(stacked):
                stacks[stacked] = values
            else:
                stacks |= {(name,): raw.stack((name,)) for name in stacked if name not in found}
        return StackedColumns(raw.schema, raw.num_rows, stacks)

    def _completed(self, given: Given, rows: int, folds: NDArray[np.int64] | None) -> dict[str, pa.Array]:
        """Return the columns that the rows lack, by name."""
        columns: dict[str, pa.Array] = {}

        def get(name: str) -> pa.Array | None:
            return columns[name] if name in columns else given(name)

        # In the schema's order: a later look-up may be by a column that an earlier one gives.
        for lookup, names, table in self._lookups:
            by_rows = {name: given(name) for name in names}
            lacking = [name for name, of in by_rows.items() if name in self._weighed or of is None or of.null_count]
            if not lacking:
                continue
            asked = {name: get(name) for name in lookup.asked}
            # Candidates of one context ask for one past.
            there = {name: column for name, column in asked.items() if column is not None}
            is_one = folds is None and rows > 1 and all(map(is_constant, there.values()))
            if is_one:
                asked |= {name: column[:1] for name, column in there.items()}
            found = self._looked_up(lookup, table, lacking, asked, 1 if is_one else rows, folds)
            for name in lacking:
                values = found[name].take(pa.array(np.zeros(rows, np.int64))) if is_one else found[name]
                # What a row gives itself stays.
                own = by_rows[name]
                if name in self._weighed:
                    values = self._weights(name, values, given)
                elif own is not None and own.null_count < rows:
                    values = pc.if_else(own.is_valid(), own.cast(values.type), values)
                columns[name] = values
        return columns

    def _looked_up(
        self,
        lookup: Lookup,
        table: LookupTable,
        names: Sequence[str],
        asked: Mapping[str, pa.Array | None],
        rows: int,
        folds: NDArray[np.int64] | None,
    ) -> dict[str, pa.Array]:
        """Return columns (n,) of a look-up: one search by the keys, then a gather for each column."""
        of_keys = [column for name in lookup.keys if (column := asked[name]) is not None]
        keys = joined_keys(of_keys) if len(of_keys) == len(lookup.keys) else pa.nulls(rows, pa.string())
        if isinstance(lookup, History) and isinstance(table, HistoryTable):
            moments, own = _past_asked(lookup, asked.get, rows)
            past = table.complete(lookup, names, keys, moments, own)
            return {
                name: values if values.type == self._types[name] else values.cast(self._types[name])
                for name, values in past.items()
            }
        found = table.find_texts(keys)
        if isinstance(lookup, Rate):
            counts = counts_of(table, COUNTS, found, folds)
            rates = smoothed_rates(counts[POSITIVES], counts[ROWS], lookup.mean, lookup.smoothing)
            return dict.fromkeys(names, pa.array(rates))
        return {name: table.column(name, found, self._types[name]) for name in names}

    def _weights(self, name: str, found: pa.Array, given: Given) -> pa.Array:
        """Return the weights that were looked up, in rows that give none of the values; in others those that the rows
        give.
        """
        own = given(name)
        own = pa.nulls(len(found), found.type) if own is None else own.cast(found.type)
        for other in map(given, self._weighed[name]):
            found = found if other is None else pc.if_else(other.is_valid(), own, found)
        return found


def is_constant(column: pa.Array) -> bool:
    """Tell whether all rows have the same value."""
    return bool(column[1:].equals(column[:-1]))


def _past_asked(history: History, given: Given, rows: int) -> tuple[NDArray[np.int64], OwnEvents | None]:
    """Return the moments of n rows, now for those without one, and the events that they bring."""
    times, events = given(history.time), given(history.events_name)
    moments = moments_of(pa.nulls(rows, pa.timestamp("us", "UTC")) if times is None else times)
    return moments, OwnEvents.of(history, events) if events is not None and events.null_count < rows else None


def joined_keys(columns: Sequence[pa.Array]) -> pa.Array:
    """Return (n,) the text that n rows are looked up by, null if one of its key columns is.

    They hold texts, integers, or numbers; those are looked up by their bits, which have one spelling (0 and -0 are one
    number).
    """
    columns = [pc.add(c, 0.0).view(pa.int64()) if pa.types.is_floating(c.type) else c for c in columns]
    if len(columns) == 1 and not pa.types.is_integer(columns[0].type):
        return columns[0]
    if len(columns[0]) <= REQUEST_VALUES:  # three calls of Arrow take longer
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        return pa.array([None if None in row else SEPARATOR.join(map(str, row)) for row in rows], pa.large_string())
    texts = [column.cast(pa.large_string()) for column in columns]
    return pc.binary_join_element_wise(*texts, pa.scalar(SEPARATOR, pa.large_string())) if len(texts) > 1 else texts[0]


def counts_of(
    table: LookupTable, names: Sequence[str], rows: NDArray[np.int64], folds: NDArray[np.int64] | None
) -> dict[str, NDArray]:
    """Return the columns `names` of counts, (n,) each, for n rows that `find` gave; unknown rows have 0.

    `folds`: as `Lookups.complete` takes them; the counts of a row's own fold (NAME_0, ...) are subtracted.
    """
    counts = {name: table.numbers(name, rows).values for name in names}
    for fold in [] if folds is None else np.unique(folds[folds >= 0]):
        own = np.where(folds == fold, rows, UNKNOWN)
        for name in names:
            counts[name] = counts[name] - table.numbers(f"{name}_{fold}", own).values
    return counts


def smoothed_rates(
    positives: NDArray[np.int64], rows: NDArray[np.int64], mean: float, smoothing: float, least: int = 0
) -> NDArray[np.float64]:
    """Return the rates (n,) of counts (n,), with `smoothing` rows of the mean rate added; the mean with `least` rows or
    fewer.
    """
    is_known = rows > least
    rates = (positives + smoothing * mean) / (np.where(is_known, rows, 1) + smoothing)
    return np.where(is_known, rates, mean)
