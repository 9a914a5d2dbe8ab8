"""Tables of look-ups that tests write directly, without Spark."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rayrec.features.hashes import hash_texts
from rayrec.features.lookup_table import HASH, write_file
from rayrec.features.lookups import COUNTS, KEY, RATE_SCHEMA, SEPARATOR, lookup_folder
from rayrec.features.raw_columns import STATISTICS_FOLDER, Rate, SideTable
from rayrec.features.schema import Schema

Counts = Mapping[tuple[str, ...], Sequence[int]]
"""Rows and positive rows by keys, perhaps followed by those of each fold."""


def write_side_table(folder: Path, schema: Schema, name: str, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the rows of a side table, by key, into the dataset or model in `folder`."""
    (lookup,) = (found for found in schema.lookups if isinstance(found, SideTable) and found.name == name)
    types = {column.name: column.arrow for column in schema.columns}
    columns = {column: pa.array([row.get(column) for row in rows.values()], types[column]) for column in lookup.columns}
    _write(lookup_folder(folder / STATISTICS_FOLDER, lookup), list(rows), columns)


def write_rate(folder: Path, schema: Schema, name: str, counts: Counts, by_fold: Path | None = None) -> None:
    """Write the table of a rate into the dataset or model in `folder`; with the counts of folds into `by_fold`."""
    (lookup,) = (found for found in schema.lookups if isinstance(found, Rate) and found.name == name)
    keys = [SEPARATOR.join(key) for key in counts]
    table = np.array(list(counts.values()), np.int64).reshape(len(keys), -1)
    named = {name: pa.array(table[:, place]) for place, name in enumerate(COUNTS)}
    _write(lookup_folder(folder / STATISTICS_FOLDER, lookup), keys, named)
    if by_fold is not None:
        for place in range(2, table.shape[1]):
            named[f"{COUNTS[place % 2]}_{place // 2 - 1}"] = pa.array(table[:, place])
        _write(by_fold / name, keys, named)


def _write(folder: Path, keys: Sequence[str], columns: Mapping[str, pa.Array]) -> None:
    """Write a keyed table in two files of up to two batches, cut between hashes."""
    folder.mkdir(parents=True)
    texts = pa.array(keys, RATE_SCHEMA.field(KEY).type)
    hashes = hash_texts(texts)
    table = pa.record_batch({HASH: hashes, KEY: texts, **columns})
    table = table.take(pa.array(np.argsort(hashes, kind="stable")))
    ordered = table[HASH].to_numpy()
    quarters = ordered[len(table) * np.arange(4) // 4] if len(table) else ordered
    cuts = np.unique([0, *np.searchsorted(ordered, quarters)])
    parts = [table.slice(low, high - low) for low, high in zip(cuts, [*cuts[1:], len(table)], strict=True)]
    for file in (parts[:2], parts[2:]):
        write_file(folder, table.schema, file)
