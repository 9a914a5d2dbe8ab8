"""What differs between two tables of events, of which one continues the other: of keys, and of the sums of all keys.

    NAME/*.arrow    the rows of keys that are new or have other events, a table of their own
    NAME.removed    the keys of before that are no more, if any
    NAME.means      rows of the sums by minute that those of before lack, if a rate needs them

Rows are compared bit by bit. A key that is in both tables is found in the one that came later, so the table of before
may lose keys (`rayrec forget`) and stays what it is continued from.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.config import Config
from rayrec.features.histories import (
    BEFORE,
    EVENTS,
    HistoryTable,
    Means,
    element_places,
    means_file,
    read_means,
    write_means,
)
from rayrec.features.lookup_table import HASH, UNKNOWN, LookupTable, Rows, read_arrow, write_arrow, write_file
from rayrec.features.lookups import KEY
from rayrec.store.node_copy import on_this_node

_EVENTS_PER_BATCH = 262_144
_REMEDY = "copy the version again"


class HistoryGrowth(Config):
    """Difference of a table of events from the one that it continues."""

    changed: int
    """Keys that have other events."""
    added: int
    """Keys that the table before has not."""
    removed: int
    """Keys that it has no longer."""
    means: tuple[int, int] | None
    """The rows of the sums before (first and stop) that the sums begin with; None without sums."""
    files: tuple[tuple[int, ...], ...]
    """The first hash of each batch of its files, so that it can be written again as it is."""


def removed_file(folder: Path) -> Path:
    """Return the file of the keys that the table in `folder` has no longer."""
    return folder.with_name(f"{folder.name}.removed")


# ---- comparing


def write_history_changes(now: Path, before: HistoryTable, output: Path) -> HistoryGrowth:
    """Write what differs between the table in the folder `now` and the one before to `output` and beside it."""
    is_left = np.ones(len(before), bool)
    counts = {"changed": 0, "added": 0}
    files: list[tuple[int, ...]] = []

    def differing() -> Iterator[pa.RecordBatch]:
        for path in sorted(on_this_node(now).glob("*.arrow")):
            _, batches = read_arrow(path, _REMEDY)
            batches = [batch for batch in batches if len(batch)]  # `rayrec forget` leaves empty ones
            files.append(tuple(batch[HASH][0].as_py() for batch in batches))
            for batch in batches:
                found = before.find_texts(batch[KEY])
                is_left[found[found != UNKNOWN]] = False
                differs = _differ(batch, before, found)
                counts["added"] += int(np.count_nonzero(found == UNKNOWN))
                counts["changed"] += int(np.count_nonzero(differs & (found != UNKNOWN)))
                yield batch.filter(pa.array(differs))

    output.mkdir(parents=True)
    changes = _in_batches(differing())
    if (first := next(changes, None)) is not None:
        write_file(output, first.schema, chain((first,), changes))
    gone = before.column(KEY, np.flatnonzero(is_left), pa.string()) if is_left.any() else None
    if gone is not None:
        keys = pa.RecordBatch.from_arrays([gone], names=[KEY])
        write_arrow(removed_file(output), keys.schema, [keys])
    means = None
    if before.means is not None:
        means, rest = _continued(before.means.table, read_means(means_file(now)))
        write_means(means_file(output), rest)
    removed = 0 if gone is None else len(gone)
    return HistoryGrowth(**counts, removed=removed, means=means, files=tuple(filter(None, files)))


def _differ(batch: pa.RecordBatch, before: HistoryTable, found: Rows) -> NDArray[np.bool_]:
    """Tell (n,) whether rows have other bits than those that were found for their keys."""
    differs = np.ones(len(batch), bool)
    for part, asked, places in before.by_part(found):
        is_same = batch[BEFORE].to_numpy()[asked] == part.batch[BEFORE].to_numpy()[places]
        for name in (field.name for field in batch.schema if pa.types.is_list(field.type)):
            (begin, stop), (first, last) = (
                (offsets[rows].astype(np.int64), offsets[rows + 1].astype(np.int64))
                for offsets, rows in (
                    (batch[name].offsets.to_numpy(), asked),
                    (part.batch[name].offsets.to_numpy(), places),
                )
            )
            is_same &= stop - begin == last - first
            # Only lists of one length have elements to compare.
            alike = np.flatnonzero(is_same)
            mine = batch[name].values.take(pa.array(element_places(begin[alike], stop[alike])))
            theirs = part.batch[name].values.take(pa.array(element_places(first[alike], last[alike])))
            owner = np.repeat(alike, stop[alike] - begin[alike])
            is_same[owner[~_are_equal(mine, theirs)]] = False
        differs[asked] = ~is_same
    return differs


def _are_equal(some: pa.Array, others: pa.Array) -> NDArray[np.bool_]:
    """Tell (n,) whether values have the same bits, or both are missing."""
    if pa.types.is_struct(some.type):
        fields = [_are_equal(some.field(n), others.field(n)) for n in range(some.type.num_fields)]
        return np.logical_and.reduce(fields)
    if pa.types.is_floating(some.type):
        some, others = (values.view(pa.int64()) for values in (some, others))
    equal = pc.equal(some, others).fill_null(False)
    both_missing = pc.and_(some.is_null(), others.is_null())
    return pc.or_(equal, both_missing).to_numpy(zero_copy_only=False)


def _continued(before: pa.RecordBatch, now: pa.RecordBatch) -> tuple[tuple[int, int], pa.RecordBatch]:
    """Return which rows of `before` are the first ones of `now`, and the others of `now`."""
    first = int(before[0].to_numpy().searchsorted(now[0][0].as_py()))
    most = min(len(before) - first, len(now))
    old, new = before.slice(first, most), now.slice(0, most)
    equal = [_are_equal(*columns) for columns in zip(old.columns, new.columns, strict=True)]
    unequal = np.flatnonzero(~np.logical_and.reduce(equal))
    kept = int(unequal[0]) if len(unequal) else most
    return (first, first + kept), now.slice(kept)


def _in_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows in larger batches, none of which has no rows."""
    held: list[pa.RecordBatch] = []
    events = 0
    for batch in batches:
        if len(batch):
            held.append(batch)
            events += len(batch[EVENTS].flatten())
        if events >= _EVENTS_PER_BATCH:
            yield pa.concat_batches(held)
            held, events = [], 0
    if held:
        yield pa.concat_batches(held)


# ---- reading


def with_changes(before: HistoryTable, folder: Path, growth: HistoryGrowth) -> HistoryTable:
    """Return the table that the changes in `folder` make of the one before. Raises UserError if they are damaged."""
    changes = LookupTable.open(folder)
    removed = np.empty(0, np.int64)
    if growth.removed:
        _, (gone,) = read_arrow(removed_file(folder), _REMEDY)
        found = before.find_texts(gone[KEY])
        removed = len(changes) + np.sort(found[found != UNKNOWN])
    batches = (part.batch for table in (changes, before) for part in table.parts)
    table = HistoryTable(batches, (*changes.mapped, *before.mapped), removed)
    if growth.means is not None:
        assert before.means is not None
        first, stop = growth.means
        kept = before.means.table.slice(first, stop - first)
        table.means = Means(pa.concat_batches([kept, read_means(means_file(folder))]))
    return table


def write_whole_history(table: HistoryTable, growth: HistoryGrowth, output: Path) -> None:
    """Write a table that `with_changes` made as the one that was compared, file by file."""
    output.mkdir(parents=True)
    firsts = [first for file in growth.files for first in file]
    end_of = dict(zip(firsts, [*(first - 1 for first in firsts[1:]), 2**63 - 1], strict=True))
    for file in growth.files:
        batches = [_rows_between(table, first, end_of[first]) for first in file]
        write_file(output, batches[0].schema, batches)
    if table.means is not None:
        write_means(means_file(output), table.means.table)


def _rows_between(table: HistoryTable, low: int, high: int) -> pa.RecordBatch:
    """Return the rows of the keys with hashes from `low` to `high`, in the order of these."""
    found = []
    for part in table.parts:
        start, stop = int(part.hashes.searchsorted(low)), int(part.hashes.searchsorted(high, side="right"))
        rows = part.batch.slice(start, stop - start)
        is_found = table.find_texts(rows[KEY]) == part.first_row + np.arange(start, stop)
        found.append(rows.filter(pa.array(is_found)))
    rows = pa.concat_batches(found)
    return rows.take(pc.sort_indices(rows, sort_keys=[(HASH, "ascending"), (KEY, "ascending")]))
