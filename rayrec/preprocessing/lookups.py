"""Side tables joined by key, and smoothed rates of the label: written before the fits, then read with the rows.

Rows of a key come together by the key's hash (`KeyedRows`, `shuffle_rows`), and every table is written from such rows
(`write_table`). A job of rows calls, after its rows are parsed and split:

    # tables: a SideTable for each side table; forms: those of the texts of the log (`text_forms`)
    schema = Schema(label=label, features=(), columns=columns, lookups=tables)
    for table in tables:
        # reader: its key (text), which no row may lack, and its columns by their names in the files
        written = write_side_table(workspace, table, source.tables[table.name], reader, files, max_rejected, forms)

    # rates: a Rate for each rate, whose mean is not known yet
    folds = Folds(source.rate_folds, config.seed, workspace.scratch / "rates", source.group)
    rates = write_rates(workspace, CompletedRows(schema, workspace.folder), segments["train"], rates, folds)
    write_served_rates(workspace, rates, folds, workspace.folder / STATISTICS_FOLDER / RATES_FOLDER)
    schema = schema.model_copy(update={"lookups": (*tables, *rates)})

    train_rows = CompletedRows(schema, workspace.folder, folds)  # rates are out of fold
    other_rows = CompletedRows(schema, workspace.folder)
    for batch in train_rows.read(segment, columns, dictionaries):  # as `read_piece`, for fits and encoding
        ...

What the rows lack is looked up by `rayrec.features.lookups.Lookups`, in requests as in tasks; the files of the rows
hold the columns of the raw files alone. Without look-ups `read` gives what `read_piece` gives.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.config.table import SideTableConfig
from rayrec.features.hashes import hash_key, hash_texts
from rayrec.features.lookup_table import HASH, read_arrow, write_file
from rayrec.features.lookups import (
    COUNTS,
    KEY,
    KEY_FIELDS,
    POSITIVES,
    RATE_SCHEMA,
    ROWS,
    Lookups,
    joined_keys,
    lookup_folder,
)
from rayrec.features.raw_columns import STATISTICS_FOLDER, ListLength, Rate, RawColumn, SideTable
from rayrec.features.schema import Schema
from rayrec.features.text_forms import TextForm, in_form
from rayrec.preprocessing.engine import Consume, Partition, Result, ShuffleInput, partition_by_hash
from rayrec.preprocessing.extract import extract_tables, pieces_of, text_forms
from rayrec.preprocessing.row_splits import integers_of
from rayrec.preprocessing.segments import (
    Piece,
    Segment,
    batch_of,
    count_rows,
    cut_row_groups,
    make_segments,
    read_piece,
)
from rayrec.preprocessing.sql import query
from rayrec.preprocessing.workspace import Workspace, counted_rows
from rayrec.random.arrays import StatelessRandom
from rayrec.raw.input_files import InputFile
from rayrec.raw.rows import RowReader
from rayrec.raw.table_reader import TableFiles, TableReader
from rayrec.store.paths import file_name

ROWS_PER_RANGE = 262_144
"""Rows of a look-up table that a task writes, to a file; the same on every cluster, so that the files are."""
_MOST_RANGES = 4_096
_ROWS_PER_BATCH = 131_072
_ALL = -1
"""The number of the line that counts all rows, in place of that of a rate."""
_FOLD = "fold"
_COUNTED = pa.schema([("rate", pa.int32()), *RATE_SCHEMA, (_FOLD, pa.int64())])


@dataclass(frozen=True)
class KeyedRows:
    """Rows that are made of segments, with the hash of a key in the column `hash`."""

    segments: Sequence[Segment]
    schema: pa.Schema
    read: Callable[[Segment], Iterable[pa.RecordBatch]]

    @classmethod
    def of_files(cls, pieces: Iterable[Piece], schema: pa.Schema, key: str) -> Self:
        """Return the rows of files that have a key (a text or an integer); `schema`: `hash`, then columns of the
        files.
        """

        def read(segment: Segment) -> Iterator[pa.RecordBatch]:
            for batch in read_piece(segment.piece, schema.names[1:]):
                rows = batch.filter(batch[key].is_valid()) if batch[key].null_count else batch
                keys = rows[key]
                hashes = hash_texts(keys) if pa.types.is_string(keys.type) else hash_key(keys.to_numpy())
                yield batch_of(schema, {HASH: hashes}, rows)

        return cls(make_segments(pieces), schema, read)


def range_count(rows: int) -> int:
    """Return the number of ranges of hashes in which about so many rows of a look-up table are written."""
    return max(1, min(_MOST_RANGES, -(-rows // ROWS_PER_RANGE)))


def write_sorted(rows: Iterable[pa.RecordBatch], folder: Path, schema: pa.Schema) -> int:
    """Write rows sorted by hash, which have the columns of `schema` among others, as a file of a look-up table
    (`rayrec.features.lookup_table`); return their number.
    """
    # Cut by the rows alone: they may come in any batches.
    whole = (table.select(schema.names).cast(schema) for table in cut_row_groups(rows, _ROWS_PER_BATCH, HASH))
    return write_file(folder, schema, (table.combine_chunks().to_batches()[0] for table in whole))


def shuffle_rows(
    workspace: Workspace,
    stage: str,
    sources: Mapping[str, KeyedRows],
    consume: Consume[Result],
    ranges: int | None = None,
    range_of: Callable[[pa.RecordBatch], Partition] | None = None,
) -> list[Result]:
    """Bring rows together by ranges of their hashes, or by `range_of`; return what `consume` makes of each range.

    `ranges`: their number, by default one that suits the rows of the segments, which progress counts too.
    """
    total = sum(count_rows(rows.segments) for rows in sources.values())
    number = range_count(total) if ranges is None else ranges
    partition = range_of or (lambda rows: partition_by_hash(rows[HASH].to_numpy(), number))
    with counted_rows(workspace.engine, workspace.progress, stage, total) as counter:

        def source(rows: KeyedRows) -> ShuffleInput[Segment]:
            def produce(segment: Segment) -> Iterator[tuple[Partition, pa.RecordBatch]]:
                for batch in rows.read(segment):
                    yield partition(batch), batch
                counter.add(segment.piece.rows)

            return ShuffleInput(rows.segments, rows.schema, produce)

        return workspace.engine.shuffle({name: source(rows) for name, rows in sources.items()}, number, consume)


def write_table(
    workspace: Workspace,
    stage: str,
    sources: Mapping[str, KeyedRows],
    folder: Path,
    schema: pa.Schema,
    rows_of: Callable[[Mapping[str, pa.Table]], Iterable[pa.RecordBatch]],
) -> None:
    """Write a look-up table: `rows_of` makes its rows, by ascending hash, of the rows in a range of hashes."""
    shuffle_rows(workspace, stage, sources, lambda _, rows: write_sorted(rows_of(rows), folder, schema))


@dataclass(frozen=True)
class Folds:
    """The folds of `train`, and the tables of rates that hold the counts of each fold."""

    count: int
    seed: int
    tables: Path
    """Folder of a table for each rate, by name; only preprocessing has it."""

    group: str | None = None
    """The column whose rows of equal value share a fold: where one row of a list is positive, the others tell its
    label."""

    def of(self, rows: pa.RecordBatch, first: int) -> NDArray[np.int64]:
        """Return the folds of n rows of `train`, (n,); the first row is at position `first`.

        They follow from the seed and the position, or the group, so that they are the same however the rows come in
        files.
        """
        if self.group is None:
            numbers = np.arange(first, first + rows.num_rows)
        else:
            numbers = integers_of(rows[self.group])
        return StatelessRandom(self.seed % 2**64).choice("rate folds", numbers, self.count)


@dataclass(frozen=True)
class CompletedRows:
    """Reads rows and looks up what they lack."""

    schema: Schema
    """The schema whose columns and look-ups are read; its features play no part."""
    dataset: Path
    """Folder that holds the tables in `statistics/`."""
    folds: Folds | None = None
    """For rows of `train`: their rates leave their own fold out."""

    def read(
        self, segment: Segment, columns: Sequence[str], dictionaries: Sequence[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a segment, a row group at a time, with `columns` of the files or of look-ups, in this
        order.

        Only what these are taken from is read. The columns named in `dictionaries` come dictionary encoded.
        """
        by_fold = self.folds.tables if self.folds else None
        lookups = Lookups.cached(self.schema, self.dataset, by_fold, frozenset(columns))
        first = segment.first
        reads = lookups.reads(columns)
        forms = {column.name: column.form for column in self.schema.columns}
        group = [self.folds.group] if self.folds and self.folds.group and self.folds.group not in reads else []
        for batch in read_piece(segment.piece, [*reads, *group], [name for name in reads if name in dictionaries]):
            folds = self.folds.of(batch, first) if self.folds else None
            first += batch.num_rows
            # The files hold texts as the raw files have them: all of these are looked at before the forms are known.
            spelled = [in_form(batch[name], forms.get(name, "text")) for name in batch.schema.names]
            completed = lookups.complete(pa.RecordBatch.from_arrays(spelled, names=batch.schema.names), folds)
            arrays = [completed.column(name) for name in columns]
            for place, name in enumerate(columns):
                if name in dictionaries and name not in reads and pa.types.is_string(arrays[place].type):
                    arrays[place] = arrays[place].dictionary_encode()
            yield pa.RecordBatch.from_arrays(arrays, names=list(columns))


class WrittenTable(NamedTuple):
    """Findings in the files of a side table."""

    rejected: dict[str, int]
    """The number of bad rows by reason."""
    forms: dict[str, TextForm]
    """The forms of texts by raw column."""


def table_reader(
    files: TableFiles,
    table: SideTable,
    columns: Sequence[RawColumn],
    config: SideTableConfig,
    list_lengths: Sequence[ListLength],
) -> TableReader:
    """Return the reader of a side table's key and columns; a row without a key is bad.

    `columns`, `list_lengths`: those of the schema, of which the table's are read. Raises UserError as
    `TableFiles.reader`.
    """
    given = {column.name: column for column in columns}
    read = [given[name].model_copy(update={"name": _raw_name(table, name)}) for name in table.columns]
    lengths = [n.renamed(lambda name: _raw_name(table, name)) for n in list_lengths if n.column in table.columns]
    return files.reader([RawColumn(name=config.key, type="text"), *read], required=(config.key,), list_lengths=lengths)


def _raw_name(table: SideTable, column: str) -> str:
    return column.removeprefix(f"{table.name}_")


def write_side_table(
    workspace: Workspace,
    table: SideTable,
    config: SideTableConfig,
    reader: RowReader,
    files: Sequence[InputFile],
    max_rejected: float,
    forms: Mapping[str, TextForm],
) -> WrittenTable:
    """Write a side table into the dataset's statistics, and its bad rows into `rejected/`.

    `reader` reads the key (text), which no row may lack, and the table's columns by their names in the files. `forms`:
    those of raw columns that are known, the key's in the log among them. Raises UserError if a key is there twice, or
    if more than the share `max_rejected` of the rows is bad.
    """
    name = file_name(table.name)
    scratch = workspace.scratch / "tables" / name
    scratch.mkdir(parents=True, exist_ok=True)
    chunks, rejected = extract_tables(workspace, {name: (reader, files)}, scratch, max_rejected)
    segments = make_segments(pieces_of(chunks[name]))
    raw_names = [config.key, *(_raw_name(table, column) for column in table.columns)]
    found = text_forms(chunks[name])
    found = {column: found[raw] for column, raw in zip(table.columns, raw_names[1:], strict=True) if raw in found}
    spelled = [forms.get(column, found.get(column, "text")) for column in (table.key, *table.columns)]
    types = dict(zip(reader.schema.names, reader.schema.types, strict=True))
    schema = pa.schema([*KEY_FIELDS, *((c, types[raw]) for c, raw in zip(table.columns, raw_names[1:], strict=True))])
    # SQL takes names that differ in case alone for one, so the columns are numbered.
    numbered = pa.schema([*KEY_FIELDS, *(pa.field(f"c{n}", schema.types[n]) for n in range(2, len(schema)))])
    folder = lookup_folder(workspace.folder / STATISTICS_FOLDER, table)
    folder.parent.mkdir(parents=True, exist_ok=True)

    def read(segment: Segment) -> Iterator[pa.RecordBatch]:
        for batch in read_piece(segment.piece, raw_names):
            columns = [in_form(batch[raw], form) for raw, form in zip(raw_names, spelled, strict=True)]
            yield pa.RecordBatch.from_arrays([pa.array(hash_texts(columns[0])), *columns], schema=numbered)

    def by_hash(tables: Mapping[str, pa.Table]) -> Iterable[pa.RecordBatch]:
        sql = "select key, count(*) as n from read group by key having count(*) > 1 order by n desc, key limit 1"
        for key, times in (found.values() for found in query(sql, **tables).read_all().to_pylist()):
            shown = key[:100] if key.isprintable() else ascii(key[:100])
            raise UserError(
                f"side table '{table.name}' ({config.path}): key {config.key} has the value {shown} "
                f"{'twice' if times == 2 else f'{times:,} times'}; keep one row for each key"
            )
        return query("from read order by hash, key", schema, **tables)

    rows = {"read": KeyedRows(segments, numbered, read)}
    write_table(workspace, f"side table {table.name}", rows, folder, schema, by_hash)
    return WrittenTable(rejected, found)


def count_columns(names: Sequence[str], folds: int) -> list[str]:
    """Return the columns of the counts `names`: of all rows, then of each fold (NAME_0, NAME_1, ...)."""
    return [*names, *(f"{name}_{fold}" for name in names for fold in range(folds))]


def sums_by_fold(names: Sequence[str], folds: int) -> str:
    """Return SQL for the columns `count_columns`: the sums of the columns `names`, of all rows and by `fold`."""
    sums = [f'sum("{name}")::bigint' for name in names]
    sums += [f'coalesce(sum("{name}") filter (fold = {n}), 0)::bigint' for name in names for n in range(folds)]
    return ", ".join(f'{total} as "{name}"' for total, name in zip(sums, count_columns(names, folds), strict=True))


def with_folds(schema: pa.Schema, names: Sequence[str], folds: int) -> pa.Schema:
    """Return a schema that has the counts `names` with those of each fold, too."""
    return pa.schema([*schema, *(pa.field(n, pa.int64(), False) for n in count_columns(names, folds)[len(names) :])])


def write_totals(workspace: Workspace, by_fold: Path, folder: Path, schemas: dict[str, pa.Schema]) -> None:
    """Write the tables that are served, which have the columns of `schemas` alone, from those in `by_fold`, by name."""
    files = [(name, path) for name in schemas for path in sorted((by_fold / name).glob("*.arrow"))]
    workspace.progress.stage("store label rates")

    def run(item: tuple[str, Path]) -> None:
        name, path = item
        schema = schemas[name]
        _, batches = read_arrow(path, "preprocess again")
        write_file(folder / name, schema, (batch.select(schema.names).cast(schema) for batch in batches))

    workspace.engine.run(files, run)


def write_rates(
    workspace: Workspace, rows: CompletedRows, train: Sequence[Segment], rates: Sequence[Rate], folds: Folds
) -> tuple[Rate, ...]:
    """Write the tables of rates with the counts of each fold into `folds.tables`.

    `rows` are read with the side tables of keys; their schema names the label's column (0 or 1 in each row). Returns
    `rates` with the label's mean in `train` instead of the mean that they state.
    """
    schema, sums = with_folds(RATE_SCHEMA, COUNTS, folds.count), sums_by_fold(COUNTS, folds.count)
    folds.tables.mkdir(parents=True, exist_ok=True)

    def write(_: int, tables: Mapping[str, pa.Table]) -> dict[str, int | None]:
        for number, rate in enumerate(rates):
            of_rate = f"select hash, key, {sums} from counted where rate = {number} group by hash, key"
            by_key = query(f"{of_rate} order by hash, key", schema, **tables)
            write_sorted(by_key, folds.tables / file_name(rate.name), schema)
        every = f"select {sums_by_fold(COUNTS, 0)} from counted where rate = {_ALL}"
        (found,) = query(every, **tables).read_all().to_pylist()
        return found

    counted = KeyedRows(train, _COUNTED, lambda segment: _count(segment, rows, rates, folds))
    found = shuffle_rows(workspace, "label rates", {"counted": counted}, write)
    rows_of_all, positives = (sum(of_range[name] or 0 for of_range in found) for name in COUNTS)
    return tuple(rate.model_copy(update={"mean": positives / rows_of_all}) for rate in rates)


def write_served_rates(workspace: Workspace, rates: Sequence[Rate], folds: Folds, folder: Path) -> None:
    """Write the tables of rates without the counts of folds into `folder`, from those that `write_rates` wrote."""
    write_totals(workspace, folds.tables, folder, {file_name(rate.name): RATE_SCHEMA for rate in rates})


def _count(segment: Segment, rows: CompletedRows, rates: Sequence[Rate], folds: Folds) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a segment, and the positive ones, by rate, key and fold."""
    label, keys = rows.schema.label, list(dict.fromkeys(key for rate in rates for key in rate.keys))
    counted: list[list[pa.Table]] = [[] for _ in rates]
    first, positives = segment.first, 0
    group = [] if folds.group is None or folds.group in keys else [folds.group]
    for batch in rows.read(segment, [label, *keys, *group]):
        labels, fold = batch[label].cast(pa.int64()), pa.array(folds.of(batch, first))
        for rate, batches in zip(rates, counted, strict=True):
            texts = joined_keys([batch[key] for key in rate.keys])
            table = pa.table({KEY: texts, _FOLD: fold, ROWS: np.ones(len(texts), np.int64), POSITIVES: labels})
            batches.append(_added(table.filter(texts.is_valid())))
        positives += labels.to_numpy().sum()
        first += batch.num_rows
    for number, batches in enumerate(counted):
        table = _added(pa.concat_tables(batches)).combine_chunks()
        hashes = hash_texts(table[KEY].combine_chunks())
        columns = {"rate": np.full(len(table), number, np.int32), HASH: hashes}
        columns |= {name: table[name] for name in table.column_names}
        yield from pa.table(columns).select(_COUNTED.names).cast(_COUNTED).to_batches()
    every = {"rate": _ALL, HASH: 0, KEY: "", _FOLD: 0, ROWS: segment.piece.rows, POSITIVES: int(positives)}
    yield pa.RecordBatch.from_pylist([every], _COUNTED)


def _added(counts: pa.Table) -> pa.Table:
    """Add up the counts of lines that have the same key and fold."""
    added = counts.group_by([KEY, _FOLD], use_threads=False).aggregate([(name, "sum") for name in COUNTS])
    return added.rename_columns({f"{name}_sum": name for name in COUNTS})
