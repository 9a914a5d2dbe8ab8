"""Each user's interactions in order of time, without repeated ones, and the split that each belongs to.

Spark brings the rows of a user together and sorts them; a task then works on whole users at a time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.preprocessing.row_files import Write, gathered_rows, write_partitions
from rayrec.preprocessing.segments import Piece, Segment, read_piece
from rayrec.preprocessing.sorted_rows import group_starts, whole_groups
from rayrec.preprocessing.workspace import Workspace
from rayrec.sources.interactions.config import InteractionFilesSplitConfig, LeaveOneOutSplitConfig
from rayrec.sources.interactions.layout import ITEM, LABEL, TIMESTAMP, USER

SPLIT = "split"
TRAIN, VALIDATION, TEST, LISTED, EARLIER = range(5)
"""Codes of splits. LISTED is the positive of a list that came as a file: not a row of its own, but known; EARLIER is in
a dataset that is extended."""
HISTORY_SCHEMA = pa.schema(
    [pa.field(USER, pa.string(), False), pa.field(ITEM, pa.string(), False), pa.field(SPLIT, pa.int8(), False)]
)
_GATHERED = pa.schema(
    [
        (USER, pa.string()),
        ("listed", pa.bool_()),
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

    train: int = 0
    dropped_users: int = 0
    """Users with fewer than `min_interactions` rows."""
    dropped_rows: int = 0
    """Rows of the dropped users."""
    repeated: int = 0
    """Rows of a pair of user and item that came before."""
    short_users: int = 0
    """Users with too few interactions to hold any out."""

    def __add__(self, other: "HistoryCounts") -> "HistoryCounts":
        return HistoryCounts(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


def write_histories(
    workspace: Workspace, interactions: Sequence[Segment], lists: Sequence[Segment], split: InteractionSplit
) -> tuple[list[Piece], HistoryCounts]:
    """Write files of whole users with the columns of `HISTORY_SCHEMA`, in order of time within a user.

    `interactions` and `lists`: segments of parsed rows (`ROW_SCHEMA` of `layout`). Equal times are ordered
    by position in the input; without times the position alone counts.
    """
    sources = [(interactions, partial(_gather, listed=False)), (lists, partial(_gather, listed=True))]

    def cut(batches: Iterator[pa.RecordBatch], write: Write) -> HistoryCounts:
        total = HistoryCounts()
        for users in whole_groups(batches, USER, _USERS_ROWS):
            history, counts = cut_histories(users, split)
            total += counts
            write("histories", history)
        return total

    with gathered_rows(workspace, "order by user and time", sources, _GATHERED) as gathered:
        ordered = gathered.together(USER).sorted_within(USER, "listed", TIMESTAMP, "position")
        pieces, counts = write_partitions(
            ordered, workspace.scratch / "histories", ("histories",), HISTORY_SCHEMA, (USER, ITEM), cut
        )
    return pieces["histories"], sum(counts, HistoryCounts())


def _gather(segment: Segment, listed: bool) -> Iterator[pa.RecordBatch]:
    """The positive rows of a segment with what they are ordered by."""
    first = segment.first
    for batch in read_piece(segment.piece, [LABEL, USER, ITEM, TIMESTAMP], []):
        positions = np.arange(first, first + batch.num_rows)
        first += batch.num_rows
        listed_here = pa.repeat(listed, batch.num_rows)
        columns = [batch[USER], listed_here, batch[TIMESTAMP], pa.array(positions), batch[ITEM]]
        gathered = pa.RecordBatch.from_arrays(columns, schema=_GATHERED)
        yield gathered.filter(pa.array(batch[LABEL].to_numpy() == 1.0))


def cut_histories(rows: pa.RecordBatch, split: InteractionSplit) -> tuple[pa.RecordBatch, HistoryCounts]:
    """The histories of whole users, from their rows in order: listed ones after the others.

    Only the first row of a repeated pair stays. The last of a user's remaining interactions goes to `test` and, with
    `validation`, the one before to `validation`, as long as one is left for `train`. If the test comes as a file, the
    last one goes to `validation`.
    """
    least = split.min_interactions if isinstance(split, LeaveOneOutSplitConfig) else 0
    starts = group_starts(rows[USER])
    sizes = np.diff(np.append(starts, rows.num_rows))
    user = np.repeat(np.arange(len(starts)), sizes)
    is_kept = np.repeat(sizes >= least, sizes)
    dropped_users = int((sizes < least).sum())
    rows, user = rows.filter(pa.array(is_kept)), user[is_kept]

    items = rows[ITEM].dictionary_encode()
    pair = user * (len(items.dictionary) + 1) + items.indices.to_numpy()
    first = np.sort(np.unique(pair, return_index=True)[1])
    repeated = rows.num_rows - len(first)
    rows, user = rows.take(pa.array(first)), user[first]

    listed = rows["listed"].to_numpy(zero_copy_only=False)
    held_out = _held_out(split)
    from_end = _places_from_end(user[~listed])
    num_own = np.bincount(user[~listed], minlength=len(starts))
    is_long = num_own > len(held_out)
    own_code = np.full(len(from_end), TRAIN, np.int8)
    for place, code in enumerate(held_out):
        own_code[(from_end == place) & is_long[user[~listed]]] = code
    codes = np.full(rows.num_rows, LISTED, np.int8)
    codes[~listed] = own_code
    counts = HistoryCounts(
        train=int((codes == TRAIN).sum()),
        dropped_users=dropped_users,
        dropped_rows=int((~is_kept).sum()),
        repeated=repeated,
        short_users=int(((num_own > 0) & ~is_long).sum()) if held_out else 0,
    )
    return pa.RecordBatch.from_arrays([rows[USER], rows[ITEM], pa.array(codes)], schema=HISTORY_SCHEMA), counts


def _held_out(split: InteractionSplit) -> tuple[int, ...]:
    """Codes of the interactions that are cut from the end of a history, the last one first."""
    test = (TEST,) if isinstance(split, LeaveOneOutSplitConfig) else ()
    return (*test, VALIDATION) if split.validation else test


def _places_from_end(user: NDArray[np.int64]) -> NDArray[np.int64]:
    """Positions of rows sorted by user, counted from each user's last: 0, 1 for the one before, ..."""
    ends = np.searchsorted(user, user, side="right")
    return ends - 1 - np.arange(len(user))
