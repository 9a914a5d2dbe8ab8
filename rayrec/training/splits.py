"""Batches of a dataset's splits for one worker."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from rayrec.config.train import IngestConfig
from rayrec.ingest.all_candidates import AllCandidates
from rayrec.ingest.dataset import Dataset
from rayrec.ingest.in_memory import InMemorySplit
from rayrec.ingest.loader import BatchLoader, open_batches
from rayrec.models.common.batch import Batch
from rayrec.training.place import Place


@dataclass(frozen=True)
class SplitReader:
    """Opens epochs of splits; what is read into memory is read once."""

    dataset: Dataset
    config: IngestConfig
    place: Place
    _stores: dict[str, InMemorySplit] = field(default_factory=dict)
    _candidates: dict[str, AllCandidates] = field(default_factory=dict)

    def open(
        self,
        split: str,
        *,
        global_batch_size: int,
        drop_last: bool,
        shuffle: Literal["none"] | None = None,
        seed: int = 0,
        epoch: int = 0,
        start_batch: int = 0,
        contiguous: bool = False,
    ) -> BatchLoader:
        """See `rayrec.ingest.loader.open_batches`."""
        if self.config.in_memory and split not in self._stores:
            self._stores[split] = InMemorySplit.read(self.dataset, split)
        return open_batches(
            self.dataset,
            split,
            self.config,
            global_batch_size=global_batch_size,
            rank=self.place.rank,
            world_size=self.place.world_size,
            seed=seed,
            epoch=epoch,
            start_batch=start_batch,
            drop_last=drop_last,
            shuffle=shuffle,
            contiguous=contiguous,
            device=self.place.device,
            store=self._stores.get(split),
        )

    def all_candidates(self, split: str, *, global_batch_size: int) -> Iterator[Batch]:
        """Every user of `split` with every item: see `rayrec.ingest.all_candidates`."""
        place = self.place
        if split not in self._candidates:
            read = AllCandidates.read(self.dataset, split, rank=place.rank, world_size=place.world_size)
            self._candidates[split] = read
        return self._candidates[split].batches(max(1, global_batch_size // place.world_size), place.device)
