"""Counts rows of `train`, and the positive ones, by key and fold, for label rates."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from rayrec.features.hashes import hash_texts
from rayrec.features.lookups import COUNTS, KEY, POSITIVES, RATE_SCHEMA, ROWS, joined_keys
from rayrec.features.raw_columns import Rate
from rayrec.features.table_parts import HASH, write_file
from rayrec.preprocessing.engines.sql import query
from rayrec.preprocessing.lookups.completed_rows import CompletedRows, Folds
from rayrec.preprocessing.lookups.keyed_rows import KeyedRows, shuffle_rows, write_sorted
from rayrec.preprocessing.segments import Segment
from rayrec.preprocessing.workspace import Workspace
from rayrec.store.node_copy import on_this_node
from rayrec.store.paths import file_name

_ALL = -1
"""The number of the line that counts all rows, in place of that of a rate."""
_FOLD = "fold"
_COUNTED = pa.schema([("rate", pa.int32()), *RATE_SCHEMA, (_FOLD, pa.int64())])


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
        with pa.memory_map(str(on_this_node(path))) as source, pa.ipc.open_file(source) as file:
            batches = (file.get_batch(i).select(schema.names) for i in range(file.num_record_batches))
            write_file(folder / name, schema, (batch.cast(schema) for batch in batches))

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
        for rate, parts in zip(rates, counted, strict=True):
            texts = joined_keys([batch[key] for key in rate.keys])
            table = pa.table({KEY: texts, _FOLD: fold, ROWS: np.ones(len(texts), np.int64), POSITIVES: labels})
            parts.append(_added(table.filter(texts.is_valid())))
        positives += labels.to_numpy().sum()
        first += batch.num_rows
    for number, parts in enumerate(counted):
        table = _added(pa.concat_tables(parts)).combine_chunks()
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
