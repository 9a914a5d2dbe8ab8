"""Each user's interactions in order of time, without repeated ones, and the split that each belongs to.

The engine brings the rows of a user together, and SQL orders and cuts them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rayrec.features.hashes import hash_texts
from rayrec.features.raw_columns import SECOND
from rayrec.ingest.dataset import DROPPED_FOLDER, Times
from rayrec.preprocessing.engine import Partition, ShuffleInput, partition_by_hash
from rayrec.preprocessing.row_splits import split_starts
from rayrec.preprocessing.segments import Piece, Segment, batch_of, count_rows, numbered, read_segment, write_piece
from rayrec.preprocessing.sql import query
from rayrec.preprocessing.workspace import Workspace, counted_rows
from rayrec.sources.interactions.config import (
    ITEM,
    TIMESTAMP,
    USER,
    InteractionSplitConfig,
    InteractionTimeSplitConfig,
    LeaveOneOutSplitConfig,
)
from rayrec.sources.interactions.interaction_reader import LABEL, ROW_SCHEMA

SPLIT = "split"
TRAIN, VALIDATION, TEST, LISTED, EARLIER, NO_CHOICE = range(6)
"""Codes of splits. LISTED is the positive of a list that came as a file: not a row of its own, but known; EARLIER is in
a dataset that is extended, or was dropped there; NO_CHOICE is a row that `source.choices` leaves out, known as well, in
any of these datasets."""
HISTORY_SCHEMA = pa.schema(
    [pa.field(USER, pa.string(), False), pa.field(ITEM, pa.string(), False), pa.field(SPLIT, pa.int8(), False)]
)
PERSON = "person"
KEPT_SCHEMA = HISTORY_SCHEMA.append(pa.field(PERSON, pa.int64(), False))
"""With a number of the user that stands for no id: a hash of its name from 2^62 on."""
GATHERED = pa.schema(
    [
        (USER, pa.string()),
        (ITEM, pa.string()),
        ("kind", pa.int8()),
        ROW_SCHEMA.field(TIMESTAMP),
        ("position", pa.int64()),
    ]
)
HELD_OUT = {"validation": VALIDATION, "test": TEST}
"""Codes of the held-out splits by name, in the order of a dataset."""
_FIRST_PERSON = 1 << 62
_ROWS_PER_PARTITION, _MOST_PARTITIONS = 500_000, 4_096
"""Rows that a task brings into order, about; more rather than more partitions, of which each task makes a few rows."""
_ROWS_PER_ROW_GROUP = 65_536


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
    times: Times | None = None
    """When the interactions happened; None if the files do not say it."""


_CUT = f"""
with placed as ( -- equal times are ordered by position in the input, which counts alone where there are no times
    select *, row_number() over (order by "user", kind != {EARLIER}, kind, "timestamp" nulls first, position) as place
    from gathered
), firsts as ( -- what is known from before, or is no choice, repeats no other row: it may come again today
    select min(place) as place from placed group by "user", item, kind >= {EARLIER}
), judged as (
    select placed.*, firsts.place is null or (kind = {NO_CHOICE} and not {{is_early}}) as is_left_out
    from placed left join firsts using (place)
), users as (
    select "user",
        count(*) filter (kind in ({TRAIN}, {LISTED})) >= {{least}} as is_kept,
        count(*) filter (kind = {TRAIN} and not is_left_out) > len({{held_out}}) as is_long,
        max(place, 2) filter (kind = {TRAIN} and not is_left_out) as latest -- the last place, and the one before
    from judged
    group by "user"
), divided as (
    select "user", item, kind, "timestamp", place, is_kept, is_left_out,
        case
            when not is_kept then kind
            when kind = {TRAIN} then {{split}}
            else kind
        end as split
    from judged join users using ("user")
)
select * exclude (place),
    not is_kept or ({{has_new}} and not bool_or(split = {TRAIN}) over (partition by "user")) as is_unlisted
from divided
order by place
"""
_BY_PLACE = """
case when is_long then coalesce(list_extract({held_out}, list_position(latest, place)), {TRAIN}) else {TRAIN} end
"""
_COUNT = f"""
with users as (
    select is_kept,
        count(*) filter (kind in ({TRAIN}, {LISTED})) as counted,
        count(*) filter (kind = {NO_CHOICE}) as no_choices,
        count(*) filter (kind = {TRAIN} and not is_left_out) as own,
        count(*) filter (split = {TRAIN} and not is_left_out) as train,
        count(*) filter (kind < {EARLIER} and is_left_out) as repeated,
        min("timestamp") as first,
        max("timestamp") as last
    from cut
    group by "user", is_kept
)
select
    count(*) filter (is_kept) as users,
    sum(train) filter (is_kept) as train,
    count(*) filter (not is_kept and counted > 0) as dropped_users,
    sum(counted) filter (not is_kept) as dropped_rows,
    sum(repeated) filter (is_kept) as repeated,
    sum(no_choices) as no_choices,
    count(*) filter (counted = 0 and no_choices > 0) as users_without,
    count(*) filter (is_kept and own between 1 and len({{held_out}})) as short_users,
    min(first) as first,
    max(last) as last
from users
"""


def write_histories(
    workspace: Workspace,
    interactions: Sequence[Segment],
    lists: Sequence[Segment],
    earlier: Sequence[Segment],
    split: InteractionSplitConfig,
) -> tuple[list[Piece], list[Piece], HistoryCounts]:
    """Write the histories of kept users (`KEPT_SCHEMA`), and into the dataset (`HISTORY_SCHEMA`) the rows of those who
    are not in its vocabulary: of dropped users, and of people who are new in held-out splits.

    `interactions` and `lists`: segments of parsed rows (`ROW_SCHEMA`). `earlier`: what was dropped from the dataset
    that is extended. It is known of a user who is kept now, and dropped of the others again. Return the files of both.
    """
    starts = _split_starts(workspace, interactions, split)
    by_kind = {TRAIN: interactions, LISTED: lists, EARLIER: earlier}
    items = [(kind, segment) for kind, segments in by_kind.items() for segment in segments]
    rows = count_rows(segment for _, segment in items)
    partitions, scratch, dataset = partitions_for(rows), workspace.scratch, workspace.folder
    with counted_rows(workspace.engine, workspace.progress, "order by user and time", rows) as counter:

        def gather(item: tuple[int, Segment]) -> Iterator[tuple[Partition, pa.RecordBatch]]:
            for batch in _gather(*item):
                yield partition_by_hash(hash_texts(batch[USER]), partitions), batch
            counter.add(item[1].piece.rows)

        def cut(partition: int, gathered: Mapping[str, pa.Table]) -> tuple[list[Piece], list[Piece], dict[str, Any]]:
            history, dropped, counts = cut_histories(gathered["rows"], split, starts)
            name = f"part-{partition:05d}.parquet"
            kept = write_piece(scratch / name, KEPT_SCHEMA, map(_with_person, history.to_batches()))
            # Row groups are cut anew, as the batches of a query depend on its threads.
            batches = dropped.combine_chunks().to_batches(_ROWS_PER_ROW_GROUP)
            left = write_piece(dataset / DROPPED_FOLDER / name, HISTORY_SCHEMA, batches)
            return kept, left, counts

        found = workspace.engine.shuffle({"rows": ShuffleInput(items, GATHERED, gather)}, partitions, cut)
    kept, dropped, counts = zip(*found, strict=True)
    moments = [of[end] / SECOND for of in counts for end in ("first", "last") if of[end] is not None]
    numbers = {name: int(sum(of[name] or 0 for of in counts)) for name in counts[0] if name not in ("first", "last")}
    times = Times(first=min(moments), last=max(moments)) if moments else None
    return [*chain(*kept)], [*chain(*dropped)], HistoryCounts(**numbers, times=times)


def partitions_for(rows: int) -> int:
    """Return a number of partitions that follows from the rows alone, so that every engine writes the same files."""
    return max(1, min(-(-rows // _ROWS_PER_PARTITION), _MOST_PARTITIONS))


def _gather(kind: int, segment: Segment) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a segment, of lists the positive ones, with what they are ordered by."""
    rows = read_segment(segment, HISTORY_SCHEMA.names if kind == EARLIER else ROW_SCHEMA.names)
    for position, batch in numbered(segment, rows):
        kinds = np.full(batch.num_rows, kind, np.int8)
        is_choice = batch[SPLIT].to_numpy() != NO_CHOICE if kind == EARLIER else batch[LABEL].to_numpy() == 1.0
        kinds[~is_choice] = NO_CHOICE
        gathered = batch_of(GATHERED, {"kind": kinds, "position": position}, batch)
        # The others of a list are its negatives.
        yield gathered.filter(pa.array(kinds == LISTED)) if kind == LISTED else gathered


def _with_person(batch: pa.RecordBatch) -> pa.RecordBatch:
    hashes = hash_texts(batch[USER]).astype(np.uint64) >> np.uint64(2)
    return batch_of(KEPT_SCHEMA, {PERSON: hashes.astype(np.int64) + _FIRST_PERSON}, batch)


def _split_starts(
    workspace: Workspace, interactions: Sequence[Segment], split: InteractionSplitConfig
) -> dict[str, float]:
    """Return the first moment of each held-out split that begins at one; of choices alone."""
    if not isinstance(split, InteractionTimeSplitConfig):
        return {}

    def read(segment: Segment, columns: Sequence[str], _: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
        for batch in read_segment(segment, [*columns, LABEL]):
            yield batch.filter(pc.equal(batch[LABEL], 1.0))

    return split_starts(workspace, split, interactions, TIMESTAMP, read) or {}


def cut_histories(
    gathered: pa.Table, split: InteractionSplitConfig, starts: Mapping[str, float]
) -> tuple[pa.Table, pa.Table, dict[str, Any]]:
    """Return the histories of whole users, the rows of those who are not in the vocabulary, and numbers by the names of
    `HistoryCounts`.

    The rows are of the kinds TRAIN, LISTED, EARLIER and NO_CHOICE. A user is kept with `min_interactions` rows, and at
    least one, of the first two. Only the first row of a repeated pair stays. The last of a user's remaining
    interactions goes to `test` and, with `validation`, the one before to `validation`, as long as one is left for
    `train`. If no test is cut (`test: false`, or it comes as a file), the last one goes to `validation`. With `starts`,
    the first moments of held-out splits, their times alone tell; what is no choice is known if it came before them.
    """
    least = split.min_interactions if isinstance(split, LeaveOneOutSplitConfig) else 0
    held_out = f"{[*held_out_codes(split)]}::tinyint[]"
    of_row, is_early = _BY_PLACE.format(held_out=held_out, TRAIN=TRAIN), "true"
    if starts:
        later = [f'when "timestamp" >= {starts[name]:.0f} then {HELD_OUT[name]}' for name in reversed([*starts])]
        of_row = f"case {' '.join(later)} else {TRAIN} end"
        is_early = f'"timestamp" < {min(starts.values()):.0f}'
    settings = {"least": max(least, 1), "held_out": held_out, "split": of_row, "is_early": is_early}
    settings["has_new"] = "true" if starts else "false"
    cut = query(_CUT.format(**settings), gathered=gathered).read_all()
    (counts,) = query(_COUNT.format(**settings), cut=cut).read_all().to_pylist()
    history = cut.filter(pc.and_not(cut["is_kept"], cut["is_left_out"]))
    dropped = cut.filter(cut["is_unlisted"])
    return *(table.select(HISTORY_SCHEMA.names).cast(HISTORY_SCHEMA) for table in (history, dropped)), counts


def held_out_codes(split: InteractionSplitConfig) -> tuple[int, ...]:
    """Return the codes of the interactions that are cut from the end of a history, the last one first."""
    if isinstance(split, InteractionTimeSplitConfig):
        return ()
    test = (TEST,) if isinstance(split, LeaveOneOutSplitConfig) and split.test else ()
    return (*test, VALIDATION) if split.validation else test
