"""Batches of a dataset's splits for one worker, and one pass over a split that evaluates a distributed model."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Unpack

from torch import Tensor

from rayrec.config import EvaluateConfig
from rayrec.config.train import IngestConfig, NegativesConfig, RecencyConfig
from rayrec.features.schema import InteractionColumns
from rayrec.ingest.batches import InMemorySplit, ResidentSplit, read_split
from rayrec.ingest.broker import SharedEpoch, broker_of_all_ranks
from rayrec.ingest.dataset import Dataset
from rayrec.ingest.interactions import AllCandidates, Positives, SampledLoader, SampledSplit, num_item_rows
from rayrec.ingest.loader import EpochLoader, open_batches
from rayrec.ingest.next_item_batches import Candidates, NextItemLoader, Windows, events_before
from rayrec.ingest.next_items import NextItems
from rayrec.ingest.order import BatchOrder, EpochOptions, RowGroup
from rayrec.metrics.binary import BinaryMetrics, compute_over_ranks
from rayrec.metrics.estimates import MetricValues
from rayrec.metrics.next_items import NextItemMetrics
from rayrec.metrics.ranking import RankingMetrics
from rayrec.models.common.batch import Batch
from rayrec.training.loop.next_items import rank_next_items
from rayrec.training.parallel.parallel_model import ParallelModel
from rayrec.training.parallel.ranks import RankContext


@dataclass(frozen=True)
class SplitReader:
    """Opens epochs of splits; what is read into memory is read once."""

    dataset: Dataset
    config: IngestConfig
    context: RankContext
    negatives: NegativesConfig | None = None
    """How `train` is completed with negatives; None gives its rows unchanged, as in every other split."""
    recency: RecencyConfig | None = None
    """How often each row of `train` comes, if there are `negatives`."""
    whole_groups: bool = False
    """True if batches of `train` must hold whole groups."""
    windows: int | None = None
    """Events of a window, beside the next one, where the model learns next items; `train` is windows then."""
    candidates: int | None = None
    """`LossConfig.candidates`."""
    train_rows: int | None = None
    """Rows of `train` to train on, the first ones; None for all. All of them are known pairs to the others."""
    _stores: dict[str, InMemorySplit | ResidentSplit] = field(default_factory=dict)
    _candidates: dict[str, AllCandidates] = field(default_factory=dict)
    _next_items: dict[str, NextItems] = field(default_factory=dict)
    _windows: dict[int, tuple[Windows, Candidates]] = field(default_factory=dict)
    """Windows of `train` and their candidates, by the number of batches of an epoch."""
    _epochs: Iterator[int] = field(default_factory=itertools.count)
    """Numbers of the epochs that the ranks share."""

    def open(self, split: str, *, contiguous: bool = False, **options: Unpack[EpochOptions]) -> EpochLoader:
        """See `rayrec.ingest.loader.open_batches`. Samples with drawn negatives are always shuffled.

        Every rank opens the same epochs of the same splits in the same order: where they stream, they share.
        """
        options |= {"rank": self.context.rank, "world_size": self.context.world_size}
        # Interactions: samples are computed on the device from the positives, which are read once.
        if split == "train" and self.negatives is not None:
            sampled = self._sampled_train
            order = BatchOrder(row_groups=[RowGroup.of_samples(len(sampled))], **options)
            return SampledLoader(sampled, self.dataset.schema, order)
        # Windows of events, too.
        if split == "train" and self.windows is not None:
            rows = self.dataset.head("train", self.train_rows).split("train").rows
            order = BatchOrder(row_groups=[RowGroup.of_samples(rows)], **options)
            if order.num_batches not in self._windows:
                self._windows[order.num_batches] = self._read_windows(self.windows, order.num_batches)
            return NextItemLoader(*self._windows[order.num_batches], self.dataset.schema, order)
        # All else: rows are read, from memory in every epoch but the first if the recipe keeps them there.
        dataset = self.dataset.head("train", self.train_rows) if split == "train" else self.dataset
        if self.config.in_memory and split not in self._stores:
            self._stores[split] = read_split(dataset, split, self.context.device)
        return open_batches(
            dataset,
            split,
            self.config,
            device=self.context.device,
            contiguous=contiguous,
            whole_groups=self.whole_groups and split == "train",
            store=self._stores.get(split),
            shared=SharedEpoch(self._broker, next(self._epochs)) if self._shares else None,
            by_ray_data=self.context.reads_by_ray_data,
            **options,
        )

    def all_candidates(self, split: str, *, global_batch_size: int) -> Iterator[Batch]:
        """Return every user of `split` with every item: see `rayrec.ingest.interactions`."""
        context = self.context
        if split not in self._candidates:
            read = AllCandidates.read(self.dataset, split, rank=context.rank, world_size=context.world_size)
            self._candidates[split] = read
        return self._candidates[split].batches(max(1, global_batch_size // context.world_size), context.device)

    def next_items(self, split: str) -> NextItems:
        """Return the events of `split` of this rank's people, with those before."""
        context = self.context
        if split not in self._next_items:
            read = NextItems.read(self.dataset, split, rank=context.rank, world_size=context.world_size)
            self._next_items[split] = read
        return self._next_items[split]

    @property
    def _shares(self) -> bool:
        return self.context.world_size > 1 and not self.config.in_memory

    @cached_property
    def _broker(self) -> Any:
        return broker_of_all_ranks()

    @cached_property
    def _sampled_train(self) -> SampledSplit:
        assert self.negatives is not None
        dataset = self.dataset
        trained_on = dataset.head("train", self.train_rows)
        positives = self._pairs(trained_on, "train")
        is_all = trained_on is dataset and dataset.known_split == "train"
        known = positives if is_all else self._pairs(dataset, dataset.known_split)
        return SampledSplit.of(positives, known, dataset.schema, self.negatives, self.recency)

    def _read_windows(self, length: int, batches: int) -> tuple[Windows, Candidates]:
        positives = self._pairs(self.dataset.head("train", self.train_rows), "train")
        # A day is told from all that came before, too.
        extends = self.dataset.manifest.parent is not None
        earlier = events_before(self.dataset, self.context.device) if extends else None
        windows = Windows.of(positives, length, earlier, batches)
        return windows, Candidates.of(windows.items, num_item_rows(self.dataset.schema), self.candidates)

    def _pairs(self, dataset: Dataset, split: str) -> Positives:
        return Positives.read(
            dataset,
            split,
            self.context.device,
            in_memory=self.config.in_memory,
            by_ray_data=self.context.reads_by_ray_data,
            world_size=self.context.world_size,
            task_cpus=self.config.task_cpus,
        )


def evaluate_split(model: ParallelModel, splits: SplitReader, split: str, config: EvaluateConfig) -> MetricValues:
    """Return the metrics over every row of `split`, each counted once; the same on every rank. A collective.

    The metrics are those of `BinaryMetrics` and, if the recipe asks for them, those of `RankingMetrics`; or, of what a
    person chooses next, those of `NextItemMetrics` alone. The model is scored in float32 where it lies, in the memory
    of the ranks.
    """
    if config.next_item_ranking is not None:
        items = splits.next_items(split)
        next_items = NextItemMetrics(config.next_item_ranking, items.num_items)
        model.dense_network.eval()
        rank_next_items(model, items, next_items)
        model.dense_network.train()
        return compute_over_ranks(next_items)
    binary = BinaryMetrics.from_config(config)
    ranking = RankingMetrics(config.ranking) if config.ranking is not None else None
    ranks_rows = config.ranking is not None and config.ranking.candidates == "given"
    # One pass in the order of the files. Lists are ranked where each rank has whole ones: one run of rows of a batch.
    size = config.global_batch_size
    model.dense_network.eval()
    with splits.open(split, global_batch_size=size, drop_last=False, shuffle="none", contiguous=ranks_rows) as batches:
        for batch in batches:
            logits = model.logits(batch)
            binary.update(logits, batch.label, batch.weight)
            if ranking is not None and ranks_rows:
                _rank(ranking, batch, logits, splits.dataset.schema.interactions)
    # A second pass where every user is ranked with all items, not with those of the rows.
    if ranking is not None and not ranks_rows:
        for batch in splits.all_candidates(split, global_batch_size=size):
            _rank(ranking, batch, model.logits(batch), None)  # every item once
    model.dense_network.train()
    # Each rank has counted its own rows; rank 0 merges the counts.
    metrics = compute_over_ranks(binary)
    return metrics if ranking is None else metrics | compute_over_ranks(ranking)


def _rank(ranking: RankingMetrics, batch: Batch, scores: Tensor, lists: InteractionColumns | None) -> None:
    """Add a batch; `lists`: the columns of a dataset of interactions, whose lists may repeat an item."""
    assert batch.group is not None
    items = None if lists is None else batch.sparse[lists.item].values()
    ranking.update(scores, batch.label, batch.group, batch.weight, items)
