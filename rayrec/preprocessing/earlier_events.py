"""The table of a history in the dataset that is extended: its events stay as they are, and the new ones follow them.

A new event that is older than the end of these counts from that moment, so that what earlier rows were told stays what
they would be told now. The sums of each key, and of all keys by minute, go on from the last ones.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.features.histories import BEFORE, EVENTS, TIME, element_places, offsets_of
from rayrec.features.lookup_table import HASH, UNKNOWN, LookupTable, Rows, read_arrow
from rayrec.features.lookups import KEY

_REMEDY = "preprocess its dataset again"


@dataclass(frozen=True)
class EarlierEvents:
    """The events of a history that the dataset before has."""

    folder: Path
    until: int | None
    """The end of these events (`History.until`)."""
    first_moment: int | None = None
    """Time in microseconds before which the last event of a key must have been for it to expire; None if none does."""

    def counted_from(self, times: pa.Array) -> pa.Array:
        """Return the moments (n,) from which new events of some times (n,) count, in microseconds."""
        return times if self.until is None else pc.max_element_wise(times, self.until, skip_nulls=False)

    def count(self, schema: pa.Schema) -> int:
        """Return about how many events there are, by the size of the files; `schema`: of the table."""
        columns = schema.field(EVENTS).type.value_type.num_fields + len(schema) - len((HASH, KEY, BEFORE, EVENTS))
        return sum(path.stat().st_size for path in self.folder.glob("*.arrow")) // (8 * columns)

    def beside(
        self, groups: Iterable[pa.Table], hashes: tuple[int, int], table: pa.Schema, events: pa.Schema
    ) -> Iterator[tuple[pa.Table, pa.RecordBatch]]:
        """Yield groups of new events with the earlier rows of their range of hashes, so that all of `hashes` (first and
        last) are in one of these.

        `groups`: new events by ascending hash, those of a key in one of them; without any, one is yielded that has no
        events. `table`, `events`: the schemas of rows and of events.
        """
        low, last = hashes
        held = self._within(low, last)
        first = next(groups := iter(groups), events.empty_table())
        for group, following in pairwise(chain((first,), groups, (None,))):
            assert group is not None
            high = last if following is None else group[HASH][-1].as_py()
            yield group, _between(held, low, high, table)
            low = high + 1

    def followed_by(self, earlier: pa.RecordBatch, new: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of earlier and new keys by ascending hash: the earlier events of each, then the new ones."""
        found = LookupTable([earlier]).find_texts(new[KEY])
        is_known = found != UNKNOWN
        new_of_earlier = np.full(len(earlier), UNKNOWN)
        new_of_earlier[found[is_known]] = np.flatnonzero(is_known)
        stays = np.flatnonzero((new_of_earlier != UNKNOWN) | ~self._has_expired(earlier))
        appears = np.flatnonzero(~is_known)
        keys = [(HASH, "ascending"), (KEY, "ascending")]
        of_both = [batch.select([HASH, KEY]).take(pa.array(rows)) for batch, rows in ((earlier, stays), (new, appears))]
        order = pc.sort_indices(pa.concat_batches(of_both), sort_keys=keys).to_numpy()
        # For each row of the result, the row with its earlier events and that with its new ones.
        rows_of = [
            np.concatenate([stays, np.full(len(appears), UNKNOWN)])[order],
            np.concatenate([new_of_earlier[stays], appears])[order],
        ]
        return _joined([earlier, new], rows_of)

    def _within(self, first: int, last: int) -> list[pa.RecordBatch]:
        """Return the mapped batches of the files that may have keys with hashes from `first` to `last`."""
        files = sorted(self.folder.glob("*.arrow"))
        begins = [int(file.stem, 16) - 2**63 for file in files]
        ends = [*begins[1:], 2**63]
        found = [f for f, begin, end in zip(files, begins, ends, strict=True) if begin <= last and first < end]
        return [batch for file in found for batch in read_arrow(file, _REMEDY)[1]]

    def _has_expired(self, rows: pa.RecordBatch) -> NDArray[np.bool_]:
        """Tell (n,) whether keys have had no event for too long."""
        if self.first_moment is None or not len(rows):
            return np.zeros(len(rows), bool)
        events = rows[EVENTS]
        return events.values.field(TIME).to_numpy()[events.offsets.to_numpy()[1:] - 1] < self.first_moment


def hashes_of_partition(partition: int, partitions: int) -> tuple[int, int]:
    """Return the first and the last hash of those that `partition_by_hash` gives a partition."""
    first, end = (-(-number * 2**32 // partitions) for number in (partition, partition + 1))
    return (first - 2**31) * 2**32, (end - 2**31) * 2**32 - 1


def _between(batches: Sequence[pa.RecordBatch], low: int, high: int, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows with hashes from `low` to `high`."""
    found = []
    for batch in batches:
        hashes = batch[HASH].to_numpy()
        start, stop = int(hashes.searchsorted(low)), int(hashes.searchsorted(high, side="right"))
        found.append(batch.slice(start, stop - start))
    return pa.concat_batches(found) if found else pa.RecordBatch.from_pylist([], schema)


def _joined(both: Sequence[pa.RecordBatch], rows_of: Sequence[Rows]) -> pa.RecordBatch:
    """Return rows whose lists are those of a row of the first batch, then those of one of the second; `rows_of`: the
    row in each, UNKNOWN for none.
    """
    earlier, new = both
    begin, size = np.zeros((2, len(rows_of[0]), 2), np.int64)
    for place, (batch, rows) in enumerate(zip(both, rows_of, strict=True)):
        offsets = batch[EVENTS].offsets.to_numpy().astype(np.int64)
        is_there = np.flatnonzero(rows != UNKNOWN)
        begin[is_there, place] = offsets[rows[is_there]] - offsets[0]
        size[is_there, place] = offsets[rows[is_there] + 1] - offsets[rows[is_there]]
    begin[:, 1] += len(earlier[EVENTS].flatten())
    elements = pa.array(element_places(begin.ravel(), (begin + size).ravel()))
    ends = pa.array(offsets_of(size.sum(axis=1)), pa.int32())
    keys = pa.array(np.where(rows_of[0] != UNKNOWN, rows_of[0], len(earlier) + rows_of[1]))
    columns = []
    for column in new.schema:
        arrays = [batch[column.name] for batch in both]
        if pa.types.is_list(column.type):
            values = pa.concat_arrays([array.flatten() for array in arrays]).take(elements)
            columns.append(pa.ListArray.from_arrays(ends, values, type=column.type))
        else:
            columns.append(pa.concat_arrays(arrays).take(keys))
    return pa.RecordBatch.from_arrays(columns, schema=new.schema)
