"""Each user's interactions in order of time, without repeated ones, and the split that each belongs to.

Spark brings the rows of a user together and sorts them; a task then works on whole users at a time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.preprocessing.scratch_rows import Read, Write, batch_of, gathered_rows, write_partitions
from rayrec.preprocessing.segments import Piece, Segment, read_piece
from rayrec.preprocessing.sorted_rows import group_starts, whole_groups
from rayrec.preprocessing.workspace import Workspace
from rayrec.sources.interactions.config import InteractionFilesSplitConfig, LeaveOneOutSplitConfig
from rayrec.sources.interactions.file_layout import ITEM, LABEL, TIMESTAMP, USER

SPLIT = "split"
TRAIN, VALIDATION, TEST, LISTED, EARLIER, NO_CHOICE = range(6)
"""Codes of splits. LISTED is the positive of a list that came as a file: not a row of its own, but known; EARLIER is in
a dataset that is extended, or was dropped there; NO_CHOICE is a row that `source.choices` leaves out, known as well."""
HISTORIES, DROPPED = "histories", "dropped"
"""The rows of kept users, and of the others."""
HISTORY_SCHEMA = pa.schema(
    [pa.field(USER, pa.string(), False), pa.field(ITEM, pa.string(), False), pa.field(SPLIT, pa.int8(), False)]
)
_GATHERED = pa.schema(
    [
        (USER, pa.string()),
        (SPLIT, pa.int8()),
        (TIMESTAMP, pa.int64()),
        ("position", pa.int64()),
        (ITEM, pa.string()),
    ]
)
_USERS_ROWS = 131_072
"""Rows that a task works on at a time; more if a user has more."""

InteractionSplit = LeaveOneOutSplitConfig | InteractionFilesSplitConfig


@dataclass(frozen=True)
class HistoryCounts:
    """Numbers of kept and dropped interactions and users."""

    users: int = 0
    """Users that are kept."""
    train: int = 0
    dropped_users: int = 0
    """Users with fewer than `min_interactions` rows."""
    dropped_rows: int = 0
    """Rows of the dropped users."""
    repeated: int = 0
    """Rows of a pair of user and item that came before."""
    no_choices: int = 0
    """Rows that are no choices."""
    users_without: int = 0
    """Users who have no others."""
    short_users: int = 0
    """Users with too few interactions to hold any out."""

    def __add__(self, other: "HistoryCounts") -> "HistoryCounts":
        return HistoryCounts(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


def write_histories(
    workspace: Workspace,
    interactions: Sequence[Segment],
    lists: Sequence[Segment],
    earlier: Sequence[Segment],
    split: InteractionSplit,
) -> tuple[dict[str, list[Piece]], HistoryCounts]:
    """Write files HISTORIES and DROPPED of whole users with the columns of `HISTORY_SCHEMA`, in order of time.

    `interactions` and `lists`: segments of parsed rows (`ROW_SCHEMA` of `layout`). Equal times are ordered
    by position in the input; without times the position alone counts. `earlier`: what was dropped from the dataset
    that is extended. It is known of a user who is kept now, and dropped of the others again.
    """
    sources: list[tuple[Sequence[Segment], Read]] = [
        (interactions, partial(_gather, code=TRAIN)),
        (lists, partial(_gather, code=LISTED)),
        (earlier, _gather_earlier),
    ]

    def cut(batches: Iterator[pa.RecordBatch], write: Write) -> HistoryCounts:
        total = HistoryCounts()
        for users in whole_groups(batches, USER, _USERS_ROWS):
            history, dropped, counts = cut_histories(users, split)
            total += counts
            write(HISTORIES, history)
            write(DROPPED, dropped)
        return total

    with gathered_rows(workspace, "order by user and time", sources, _GATHERED) as gathered:
        ordered = gathered.partition_by(USER).sort_within(USER, SPLIT, TIMESTAMP, "position")
        names = (HISTORIES, DROPPED)
        pieces, counts = write_partitions(ordered, workspace.scratch, names, HISTORY_SCHEMA, (USER, ITEM), cut)
    return pieces, sum(counts, HistoryCounts())


def _gather(segment: Segment, code: int) -> Iterator[pa.RecordBatch]:
    """Return the rows of a segment, of lists the positive ones, with what they are ordered by."""
    first = segment.first
    for batch in read_piece(segment.piece, [LABEL, USER, ITEM, TIMESTAMP], []):
        positions = np.arange(first, first + batch.num_rows)
        first += batch.num_rows
        is_choice = batch[LABEL].to_numpy() == 1.0
        columns = {SPLIT: np.where(is_choice, code, NO_CHOICE), "position": positions}
        gathered = batch_of(_GATHERED, columns, batch)
        # The others of a list are its negatives.
        yield gathered.filter(pa.array(is_choice)) if code == LISTED else gathered


def _gather_earlier(segment: Segment) -> Iterator[pa.RecordBatch]:
    for batch in read_piece(segment.piece, [USER, ITEM], []):
        yield batch_of(_GATHERED, {SPLIT: np.full(batch.num_rows, EARLIER)}, batch)


def cut_histories(
    rows: pa.RecordBatch, split: InteractionSplit
) -> tuple[pa.RecordBatch, pa.RecordBatch, HistoryCounts]:
    """Return the histories of whole users, and the rows of dropped ones; from their rows by code.

    The codes are TRAIN, LISTED, EARLIER and NO_CHOICE. A user is kept with `min_interactions` rows, and at least one,
    of the first two. Only the first row of a repeated pair stays. The last of a user's remaining interactions goes to
    `test` and, with `validation`, the one before to `validation`, as long as one is left for `train`. If no test is cut
    (`test: false`, or it comes as a file), the last one goes to `validation`.
    """
    least = split.min_interactions if isinstance(split, LeaveOneOutSplitConfig) else 0
    starts = group_starts(rows[USER])
    sizes = np.diff(np.append(starts, rows.num_rows))
    user = np.repeat(np.arange(len(starts)), sizes)
    code = rows[SPLIT].to_numpy()
    counted = np.bincount(user[code < EARLIER], minlength=len(starts))
    no_choices = np.bincount(user[code == NO_CHOICE], minlength=len(starts))
    code = np.minimum(code, EARLIER)
    keeps_user = counted >= max(least, 1)
    is_kept = keeps_user[user]
    dropped = rows.select([USER, ITEM, SPLIT]).filter(pa.array(~is_kept))
    rows, user, code = rows.filter(pa.array(is_kept)), user[is_kept], code[is_kept]

    items = rows[ITEM].dictionary_encode()
    # What is known from before may come again today.
    pair = (user * (len(items.dictionary) + 1) + items.indices.to_numpy()) * 2 + (code == EARLIER)
    first = np.sort(np.unique(pair, return_index=True)[1])
    repeated = np.delete(code, first) != EARLIER
    rows, user, code = rows.take(pa.array(first)), user[first], code[first]

    is_own = code == TRAIN
    held_out = held_out_codes(split)
    from_end = _places_from_end(user[is_own])
    num_own = np.bincount(user[is_own], minlength=len(starts))
    is_long = num_own > len(held_out)
    own_code = np.full(len(from_end), TRAIN, np.int8)
    for place, split_code in enumerate(held_out):
        own_code[(from_end == place) & is_long[user[is_own]]] = split_code
    codes = code.copy()
    codes[is_own] = own_code
    counts = HistoryCounts(
        users=int(keeps_user.sum()),
        train=int((codes == TRAIN).sum()),
        dropped_users=int((~keeps_user & (counted > 0)).sum()),
        dropped_rows=int(counted[~keeps_user].sum()),
        repeated=int(repeated.sum()),
        no_choices=int(no_choices.sum()),
        users_without=int(((counted == 0) & (no_choices > 0)).sum()),
        short_users=int(((num_own > 0) & ~is_long).sum()) if held_out else 0,
    )
    history = pa.RecordBatch.from_arrays([rows[USER], rows[ITEM], pa.array(codes)], schema=HISTORY_SCHEMA)
    return history, dropped.cast(HISTORY_SCHEMA), counts


def held_out_codes(split: InteractionSplit) -> tuple[int, ...]:
    """Return the codes of the interactions that are cut from the end of a history, the last one first."""
    test = (TEST,) if isinstance(split, LeaveOneOutSplitConfig) and split.test else ()
    return (*test, VALIDATION) if split.validation else test


def _places_from_end(user: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the positions of rows sorted by user, counted from each user's last: 0, 1 for the one before, ..."""
    ends = np.searchsorted(user, user, side="right")
    return ends - 1 - np.arange(len(user))
