"""Every user of a split with every item of the catalogue, in batches of one size, for full ranking."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rayrec.features.schema import Schema
from rayrec.ingest.batches import BatchArrays
from rayrec.ingest.dataset import Dataset
from rayrec.ingest.interactions.positives import interaction_columns, num_item_rows, positive_pairs
from rayrec.ingest.reader import id_type
from rayrec.models.common.batch import Batch


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
    """(n,) bool: whether each of `values` is in `ascending`."""
    if not len(ascending):
        return torch.zeros_like(values, dtype=torch.bool)
    place = torch.searchsorted(ascending, values).clamp(max=len(ascending) - 1)
    return ascending[place] == values
