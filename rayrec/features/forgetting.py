"""Takes a key's rows out of the tables that rows are completed from, in place: of side tables, rates and histories."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.common.errors import ConfigError
from rayrec.features.histories import BEFORE, EVENTS
from rayrec.features.history_changes import removed_file
from rayrec.features.lookup_table import read_arrow, write_arrow
from rayrec.features.lookups import KEY, SEPARATOR, joined_keys, lookup_folder
from rayrec.features.raw_columns import STATISTICS_FOLDER, Lookup
from rayrec.features.raw_values import read_values
from rayrec.features.schema import Schema
from rayrec.features.text_forms import in_form


@dataclass(frozen=True)
class Forgotten:
    """What was taken out of the table of a look-up."""

    lookup: str
    keys: int
    events: int
    """Events of these keys, where the table is that of a history."""


def key_text(schema: Schema, column: str, value: str, others: Collection[str] = ()) -> str:
    """Return how tables spell a value of a key column. Raises ConfigError if neither a look-up is by it nor another
    table (`others`), or it cannot be.
    """
    by = sorted({*others, *(key for lookup in schema.lookups for key in lookup.keys)})
    if column not in by:
        raise ConfigError(f"--key {column}: no table is looked up by it; these are: {', '.join(by) or 'none'}")
    (raw,) = (raw for raw in schema.raw_columns if raw.name == column)
    values, unreadable = read_values([value], raw)
    if unreadable.any() or values.null_count:
        raise ConfigError(f"--key {column}={value}: not a value of the column, which is of type {raw.type}")
    text = joined_keys([in_form(values, raw.form)])[0].as_py()
    assert isinstance(text, str)
    return text


def forget_key(folder: Path, schema: Schema, column: str, text: str) -> Iterator[Forgotten]:
    """Take the rows of a key out of the tables below `folder`, the one that holds schema.json; yield what was there.

    Each file is replaced as a whole, so who has it mapped reads on what was there.
    """
    for lookup in schema.lookups:
        if column not in lookup.keys:
            continue
        table, place = lookup_folder(folder / STATISTICS_FOLDER, lookup), lookup.keys.index(column)
        keys = events = 0
        for path in (*sorted(table.glob("*.arrow")), *(p for p in (removed_file(table),) if p.exists())):
            _, batches = read_arrow(path, "make its folder again")
            found = [_is_of(batch[KEY], lookup, place, text) for batch in batches]
            if not any(is_key.any() for is_key in found):
                continue
            for batch, is_key in zip(batches, found, strict=True):
                keys += int(np.count_nonzero(is_key))
                events += _events(batch.filter(pa.array(is_key)))
            left = [batch.filter(pa.array(~is_key)) for batch, is_key in zip(batches, found, strict=True)]
            write_arrow(path, left[0].schema, left)
        yield Forgotten(lookup.name, keys, events)


def _is_of(keys: pa.Array, lookup: Lookup, place: int, text: str) -> NDArray[np.bool_]:
    """Tell (n,) whether keys have a value at a place of theirs."""
    if len(lookup.keys) > 1 and len(keys):
        keys = pc.list_element(pc.split_pattern(keys, SEPARATOR), place)
    return pc.equal(keys, text).to_numpy(zero_copy_only=False)


def _events(rows: pa.RecordBatch) -> int:
    """Return how many events rows have, those too of which only sums are left."""
    if EVENTS not in rows.schema.names:
        return 0
    return int(rows[BEFORE].to_numpy().sum()) + len(rows[EVENTS].flatten())
