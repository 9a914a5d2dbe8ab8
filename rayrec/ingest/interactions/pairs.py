"""Pairs of users and items: the positives of a split on a device, kept for all epochs, and every pair for ranking."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rayrec.features.schema import InteractionColumns, Schema
from rayrec.ingest.batches import BatchArrays
from rayrec.ingest.dataset import Dataset
from rayrec.ingest.order import BatchOrder, row_groups_of
from rayrec.ingest.packed_rows import RowPacker, id_type
from rayrec.ingest.row_groups import stream_row_groups
from rayrec.models.common.batch import Batch


@dataclass(frozen=True, eq=False)
class Positives:
    """Every row of a split, in the order of its parts."""

    users: Tensor
    """(rows,) int32, or int64 if a table has more rows than int32 can count."""
    items: Tensor
    """(rows,) of the same type."""

    def __len__(self) -> int:
        return len(self.users)

    @classmethod
    def read(
        cls,
        dataset: Dataset,
        split: str,
        device: torch.device,
        *,
        in_memory: bool = False,
        by_ray_data: bool = False,
        world_size: int = 1,
        task_cpus: int | None = None,
    ) -> "Positives":
        """Read the rows from Parquet: at once if `in_memory`, otherwise streamed (`stream_row_groups`).

        `by_ray_data`: tasks of Ray Data stream instead of threads. `world_size`: the number of workers that do the same
        at this time; each holds every row. `task_cpus`: see `IngestConfig`. Takes the host memory of a few row groups
        besides the tensors.
        """
        info, schema, columns = dataset.split(split), dataset.schema, interaction_columns(dataset.schema)
        if in_memory:
            row_groups = RowPacker.of(dataset).read_split(info, threads=True)
        else:
            # One batch of all rows, in one lane, needs the row groups in their order.
            order = BatchOrder(
                row_groups=row_groups_of(info.parts), global_batch_size=info.rows, read_streams=1, shuffle="none"
            )
            row_groups = stream_row_groups(
                dataset, order, by_ray_data=by_ray_data, executions=world_size, task_cpus=task_cpus
            )
        one_hot = [f.name for f in schema.categorical if f.kind == "categorical"]
        user, item = one_hot.index(columns.user), one_hot.index(columns.item)
        ids_are = getattr(torch, id_type(schema).name)
        users, items = (torch.empty(info.rows, dtype=ids_are, device=device) for _ in range(2))
        filled = 0
        for rows in row_groups:
            place = slice(filled, filled + len(rows))
            # The rows may be read-only views of Ray's memory, which torch does not accept.
            users[place] = torch.from_numpy(rows.one_hot[user].copy())
            items[place] = torch.from_numpy(rows.one_hot[item].copy())
            filled += len(rows)
        assert filled == len(users), (filled, len(users))
        return cls(users, items)


def interaction_columns(schema: Schema) -> InteractionColumns:
    """Return the user and item columns of a schema that is known to have them."""
    assert schema.interactions is not None, "what needs them is refused for other datasets before workers start"
    return schema.interactions


def num_item_rows(schema: Schema) -> int:
    """Return the number of rows of the items' table."""
    (items,) = (f.cardinality for f in schema.categorical if f.name == interaction_columns(schema).item)
    return items


def positive_pairs(dataset: Dataset, split: str) -> Iterator[NDArray[np.int64]]:
    """Yield the positive rows of each row group as pairs: user * items + item, without those of unknown users and
    items.
    """
    interactions = interaction_columns(dataset.schema)
    names = [feature.name for feature in dataset.schema.categorical]
    packer = RowPacker.of(dataset)
    for rows in packer.read_split(dataset.split(split)):
        user, item = (
            rows.one_hot[names.index(name)].astype(np.int64) for name in (interactions.user, interactions.item)
        )
        known = (rows.label > 0.5) & (user > 0) & (item > 0)
        yield user[known] * num_item_rows(dataset.schema) + item[known]


@dataclass(frozen=True, eq=False)
class AllCandidates:
    """One rank's users, each with its positives in the split and the items that it must not be offered.

    Every item is a candidate, except the user's positives in `train` and in datasets before, that are not positives in
    the split. Id 0, which unknown users and items share, is neither a user nor a candidate, so interactions with it are
    left out. Only the pairs of this rank's users are in memory, 8 bytes each. Needs a dataset with a user and an item
    only.
    """

    schema: Schema
    users: NDArray[np.int64]
    """Ids of this rank's users, in ascending order."""
    users_per_rank: int
    """The largest number of users of any rank; all ranks yield batches for that many."""
    positives: NDArray[np.int64]
    """Sorted pairs (see `positive_pairs`) of this rank's users in the split."""
    seen: NDArray[np.int64]
    """Sorted pairs of this rank's users in `train` and in datasets before."""

    @classmethod
    def read(cls, dataset: Dataset, split: str, *, rank: int = 0, world_size: int = 1) -> "AllCandidates":
        """Read the positive rows of `split` and of the known pairs, one row group at a time."""
        items = num_item_rows(dataset.schema)
        positives = np.unique(np.concatenate([np.empty(0, np.int64), *positive_pairs(dataset, split)]))
        users = np.unique(positives // items)
        own = users[rank::world_size]
        seen = [pairs[np.isin(pairs // items, own)] for pairs in positive_pairs(dataset, dataset.known_split)]
        return cls(
            dataset.schema,
            own,
            -(-len(users) // world_size),
            positives[np.isin(positives // items, own)],
            np.unique(np.concatenate([np.empty(0, np.int64), *seen])),
        )

    def batches(self, size: int, device: torch.device) -> Iterator[Batch]:
        """Yield the batches of `size` rows, as many on every rank, by user and then item; `group` is the user's id.

        Items that are not candidates, and rows beyond the last one, have weight 0.
        """
        interactions = interaction_columns(self.schema)
        items = num_item_rows(self.schema)
        ids_are = getattr(torch, id_type(self.schema).name)
        users, positives, seen = (torch.from_numpy(a).to(device) for a in (self.users, self.positives, self.seen))
        for start in range(0, self.users_per_rank * (items - 1), size):
            place = torch.arange(start, start + size, device=device)
            index = place // (items - 1)
            user = users[index.clamp(max=len(users) - 1)] if len(users) else torch.zeros_like(place)
            item = place % (items - 1) + 1
            pair = user * items + item
            positive = _contains(positives, pair)
            weight = (index < len(users)) & (positive | ~_contains(seen, pair))
            by_name = {interactions.user: user, interactions.item: item}
            ids = torch.cat([by_name[feature.name] for feature in self.schema.categorical]).to(ids_are)
            yield BatchArrays(
                dense=torch.empty(size, 0, device=device),
                ids=ids,
                lengths=None,
                ids_per_feature=[size, size],
                label=positive.float(),
                weight=weight.float(),
                group=user,
            ).to_batch(self.schema, device)


def _contains(ascending: Tensor, values: Tensor) -> Tensor:
    """Return (n,) bool: whether each of `values` is in `ascending`."""
    if not len(ascending):
        return torch.zeros_like(values, dtype=torch.bool)
    place = torch.searchsorted(ascending, values).clamp(max=len(ascending) - 1)
    return ascending[place] == values
