"""Histories -> encoded rows of `train`, and for each held-out interaction a list of it and drawn negatives.

Negatives are items of the catalogue that a user has not chosen, drawn by seed and user. A draw depends on the seed, the
user's id and its number in the list alone: not on the users around it, nor on the task. No draw is repeated: a random
place among the items that a user does not know is computed, then the item at that place.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.ingest.dataset import KNOWN_SPLIT, Dataset
from rayrec.preprocessing.engine import Partition, ShuffleInput
from rayrec.preprocessing.parts import Encode, RowEncoder
from rayrec.preprocessing.segments import (
    Piece,
    Segment,
    batch_of,
    count_rows,
    make_segments,
    numbered,
    read_segment,
    rows_of,
    write_piece,
)
from rayrec.preprocessing.sql import query
from rayrec.preprocessing.workspace import Workspace, counted_rows
from rayrec.random.arrays import mix, permute_each
from rayrec.sources.interactions.config import ITEM, USER
from rayrec.sources.interactions.histories import (
    EARLIER,
    HELD_OUT,
    KEPT_SCHEMA,
    LISTED,
    NO_CHOICE,
    PERSON,
    SPLIT,
    TEST,
    TRAIN,
    VALIDATION,
    partitions_for,
)
from rayrec.sources.interactions.interaction_reader import LABEL

# Negatives.

_LEAST_BITS = 8
"""Least bits of the permutations that `distinct` places come from: with 3 bits, the first of 5 candidates came 7 % too
often; with 8 no deviation shows in 200,000 lists."""


@dataclass(frozen=True)
class NegativeSampler:
    """Draws, uniformly, items that users do not know."""

    num_items: int
    """Items are 1 ... num_items."""
    negatives: int
    """Number of items of a list."""
    sampling: Literal["distinct", "with_replacement"]
    seed: int

    def draw(
        self, users: NDArray[np.int64], known: NDArray[np.int64], num_known: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the lists of items for k users (k,) that know `num_known` (k,) items each.

        `known`: the items that each user knows, each once, ascending, one user after the other. Return the lists one
        after the other and their lengths (k,): `negatives`, or less if `distinct` finds fewer items that a user does
        not know, and 0 if there are none.
        """
        candidates = self.num_items - num_known
        if self.sampling == "distinct":
            lengths = np.minimum(self.negatives, candidates)
        else:
            lengths = np.where(candidates > 0, self.negatives, 0)
        owner = np.repeat(np.arange(len(users)), lengths)
        number = np.arange(len(owner)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        streams = mix(np.array([self.seed & (2**64 - 1)], np.uint64)) + users.astype(np.uint64)
        if self.sampling == "distinct":
            place = permute_each(number, candidates[owner], streams[owner], _LEAST_BITS)
        else:
            bits = mix(mix(streams)[owner] + number.astype(np.uint64))
            place = ((bits >> np.uint64(11)) * 2.0**-53 * candidates[owner]).astype(np.int64)
        return self._unknown_at(place, owner, known, num_known), lengths

    def _unknown_at(
        self, place: NDArray[np.int64], owner: NDArray[np.int64], known: NDArray[np.int64], num_known: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the items at places (from 0) among those that their owners do not know.

        Before the i-th known item k_i (from 0, items from 0) lie k_i - i unknown ones, so the unknown item at place r
        is r plus the number of known items with k_i - i <= r.
        """
        first = np.cumsum(num_known) - num_known
        known_owner = np.repeat(np.arange(len(num_known)), num_known)
        unknown_before = known - 1 - (np.arange(len(known)) - first[known_owner])
        # One sorted array for all users: each has a range of its own.
        span = self.num_items + 1
        found = np.searchsorted(known_owner * span + unknown_before, owner * span + place, side="right")
        return place + found - first[owner] + 1


# Lists.

GROUP = "group"
_PLACED = pa.schema(
    [(USER, pa.int64()), (ITEM, pa.int64()), (GROUP, pa.int64()), (SPLIT, pa.int8()), ("place", pa.int64())]
)
_COUNTED = pa.schema([("id", pa.int64()), ("count", pa.int64())])
_LISTS_AT_ONCE = 4_096
_BEFORE_ALL = 1 << 62
"""Subtracted from the places of rows of the dataset that is extended."""


# The last ids of ranges of users with about equally many interactions; the first ids are those of the most active.
_LAST_IDS = """
select max(id) as last
from (select id, (sum(count) over (order by id) - 1) * {ranges} // sum(count) over () as range from users)
group by range
order by range
"""
_ROWS = f"""
select 1 as label, "user", item, "{GROUP}" from history where split = {{code}} order by "user", "{GROUP}", place
"""
_KNOWN = f"""
select max(split != {NO_CHOICE})::tinyint as label, "user", item, "{GROUP}" -- what was ever chosen is a choice
from history
where split in ({TRAIN}, {EARLIER}, {NO_CHOICE})
group by "user", "{GROUP}", item
order by "user", "{GROUP}", min(place), item
"""
_HELD_OUT = """select "user", item from history where split = {code} order by "user", place"""
# Of the users who have held-out interactions: those of one split are those of the other.
_KNOWN_TO_THEM = f"""
select distinct "user", item
from history
where split in {{codes}} and "user" in (select "user" from history where split in ({VALIDATION}, {TEST}))
order by "user", item
"""


def write_rows(
    workspace: Workspace,
    histories: Sequence[Segment],
    users: Sequence[Piece],
    encoder: RowEncoder,
    samplers: Mapping[str, NegativeSampler | None],
    parent: Dataset | None,
    has_known: bool,
) -> tuple[dict[str, list[Piece]], Counter[str]]:
    """Write the rows of `train` and of held-out splits as `encoder` has them, ordered by user id, then by time.

    `users`: the vocabulary of users. `samplers`: what draws the negatives of each held-out split; None draws none. With
    `parent` the pairs of all its splits are known here, as are those that are no choices (`has_known`); they and those
    of `train` are written as the split `known`, in the order in which they came, with label 0 where they were never
    chosen.

    Return the files by split, and for each split how many lists have fewer negatives than asked for, because the user
    knows nearly all items.
    """
    histories_of = replace(encoder, kept=(KEPT_SCHEMA.field(SPLIT), KEPT_SCHEMA.field(PERSON)))
    row_schema = encoder.encoded_schema.append(pa.field(GROUP, pa.int64(), False))
    # Codes of the splits whose items are never negatives.
    is_distinct = any(sampler is not None and sampler.sampling == "distinct" for sampler in samplers.values())
    known_codes = (TRAIN, VALIDATION, TEST, LISTED, EARLIER, NO_CHOICE) if is_distinct else (TRAIN, EARLIER, NO_CHOICE)
    scratch, has_known = workspace.scratch, has_known or parent is not None
    earlier: list[Segment] = []
    known_rows = 0
    if parent is not None:
        parts = [p for split in (parent.known_split, *parent.evaluation_splits) for p in parent.split(split).parts]
        earlier = make_segments(Piece(parent.folder / part.path, 0, part.rows) for part in parts)
        known_rows = parent.split(parent.known_split).rows
    rows = count_rows([*histories, *earlier])
    ranges = query(_LAST_IDS.format(ranges=partitions_for(rows)), users=rows_of(users, _COUNTED)).read_all()
    last_ids = ranges["last"].to_numpy()
    with counted_rows(workspace.engine, workspace.progress, "number users and draw negatives", rows) as counter:

        def number(segment: Segment) -> Iterator[tuple[Partition, pa.RecordBatch]]:
            """Yield a history with ids."""
            for places, batch in numbered(segment, histories_of.encode(segment)):
                user, person = batch[USER].to_numpy(), batch[PERSON].to_numpy()
                yield in_range(batch, batch[SPLIT], places, np.where(user > 0, user, person))
            counter.add(segment.piece.rows)

        def read_earlier(segment: Segment) -> Iterator[tuple[Partition, pa.RecordBatch]]:
            """Yield the pairs of a part of the dataset that is extended, without drawn negatives."""
            for places, batch in numbered(segment, read_segment(segment, [USER, ITEM, LABEL, GROUP])):
                chosen = batch[LABEL].to_numpy() > 0.5
                pairs = chosen | (segment.first + segment.piece.rows <= known_rows)
                split = np.where(chosen, EARLIER, NO_CHOICE)[pairs]
                rows = batch.filter(pa.array(pairs))
                user, group = rows[USER].to_numpy(), rows[GROUP].to_numpy()
                yield in_range(rows, split, places[pairs] - _BEFORE_ALL, np.where(user > 0, user, group))
            counter.add(segment.piece.rows)

        def in_range(batch: pa.RecordBatch, split: Any, place: Any, group: Any) -> tuple[Partition, pa.RecordBatch]:
            placed = batch_of(_PLACED, {SPLIT: split, "place": place, GROUP: group}, batch)
            user, group = placed[USER].to_numpy(), placed[GROUP].to_numpy()
            # Who has no id goes anywhere, but all rows of one person to one place.
            return np.where(user > 0, np.searchsorted(last_ids, user), group % len(last_ids)), placed

        def draw(partition: int, placed: Mapping[str, pa.Table]) -> tuple[dict[str, list[Piece]], Counter[str]]:
            history = pa.concat_tables(placed.values())
            known = query(_KNOWN_TO_THEM.format(codes=known_codes), history=history).read_all()
            short: Counter[str] = Counter()

            def lists(split: str, sampler: NegativeSampler) -> Iterator[pa.RecordBatch]:
                held_out = query(_HELD_OUT.format(code=HELD_OUT[split]), history=history).read_all()
                for drawn, number_of_short in draw_lists(held_out, known, sampler):
                    short[split] += number_of_short
                    yield drawn

            rows: dict[str, Iterable[pa.RecordBatch]] = {"train": query(_ROWS.format(code=TRAIN), history=history)}
            for split, sampler in samplers.items():
                of_split = query(_ROWS.format(code=HELD_OUT[split]), history=history)
                rows[split] = of_split if sampler is None else lists(split, sampler)
            if has_known:
                rows[KNOWN_SPLIT] = query(_KNOWN, history=history)
            pieces = {
                split: write_piece(scratch / f"{split}-{partition:06d}.parquet", row_schema, of_split)
                for split, of_split in rows.items()
            }
            return pieces, short

        sources = {
            "histories": ShuffleInput(histories, _PLACED, number),
            "earlier": ShuffleInput(earlier, _PLACED, read_earlier),
        }
        found = workspace.engine.shuffle(sources, len(last_ids), draw)
    pieces = {split: [piece for of_range, _ in found for piece in of_range[split]] for split in found[0][0]}
    return pieces, sum((short for _, short in found), Counter())


def draw_lists(held_out: pa.Table, known: pa.Table, sampler: NegativeSampler) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield some lists, and how many of them are short.

    A list is a held-out interaction with label 1, then its negatives with label 0. `known`: the pairs of the users in
    `held_out` that are never negatives, by user and item.
    """
    users, positives, known_items = held_out[USER].to_numpy(), held_out[ITEM].to_numpy(), known[ITEM].to_numpy()
    starts, ends = (np.searchsorted(known[USER].to_numpy(), users, side=side) for side in ("left", "right"))
    for first in range(0, len(users), _LISTS_AT_ONCE):
        some = slice(first, first + _LISTS_AT_ONCE)
        known_to_some = known_items[starts[some][0] : ends[some][-1]]
        negatives, lengths = sampler.draw(users[some], known_to_some, (ends - starts)[some])
        # Each positive before its negatives: a stable sort by list.
        number = np.arange(len(lengths))
        owner = np.concatenate([number, np.repeat(number, lengths)])
        order = np.argsort(owner, kind="stable")
        user = users[some][owner[order]]
        item = np.concatenate([positives[some], negatives])[order]
        drawn = {LABEL: (order < len(lengths)).astype(np.float32), USER: user, ITEM: item, GROUP: user}
        yield pa.RecordBatch.from_pydict(drawn), int((lengths < sampler.negatives).sum())


def with_group(read: Encode, segment: Segment) -> Iterator[pa.RecordBatch]:
    """Yield encoded rows with the column `GROUP` (int64), the id of the user."""
    for batch in read(segment):
        yield batch.append_column(pa.field(GROUP, pa.int64(), False), batch[USER].cast(pa.int64()))
