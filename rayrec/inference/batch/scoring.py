"""Scores the rows of a split: the one way of evaluations, predictions, reports, comparisons and the gate of a new day.

A split is cut into tasks of row groups that follow each other. The workers of a pool score them, and give the rows with
their logits to a sink, which writes, measures or collects them where they are; the caller gets what sinks return.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from rayrec.common.disk_errors import unreadable
from rayrec.common.errors import UserError
from rayrec.common.progress import Progress
from rayrec.config.evaluate import EvaluateConfig, RankingConfig
from rayrec.features.schema import Schema
from rayrec.inference.batch.pool import ROWS_PER_PART, ScoringPool
from rayrec.inference.scorer import Scorer, StoredModel
from rayrec.ingest.dataset import Dataset, PartInfo
from rayrec.ingest.interactions import AllCandidates, interaction_columns, num_item_rows
from rayrec.ingest.next_items import NextItems, item_counts
from rayrec.metrics.binary import BinaryMetrics
from rayrec.metrics.estimates import MetricValues
from rayrec.metrics.next_items import NextItemMetrics
from rayrec.metrics.ranking import RankingMetrics
from rayrec.models.common.held_out_events import HeldOutEvents
from rayrec.models.common.precision import AmpError
from rayrec.store.parquet import open_parquet

_PARTS_AIMED_AT = 64

Logits = NDArray[np.float32]
ScoredBatches = Iterator[tuple[pa.RecordBatch, Logits]]
"""Rows that follow each other, with the columns of a dataset, and their logits (n,)."""
Sink = Callable[[int, int, ScoredBatches], Any]
"""Called where rows are scored, with the number of a task, the position of its first row in the split, and its rows."""


@dataclass(frozen=True)
class ScoringTask:
    """Row groups of a split that follow each other."""

    number: int
    first: int
    """Position of their first row in the split."""
    groups: tuple[tuple[Path, int], ...]
    """The part and the number of each row group."""


@dataclass(frozen=True)
class ScoredTask:
    """Result of a task."""

    rows: int
    made: Any
    """Value that the sink returned."""
    amp_error: AmpError
    """How far mixed precision moved some of the scores."""


def score_split(
    model: StoredModel,
    dataset: Dataset,
    split: str,
    sink: Sink,
    pool: ScoringPool,
    columns: Sequence[str],
    *,
    most: int | None = None,
    translate: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None,
) -> Iterator[ScoredTask]:
    """Score the rows of a split in threads here or actors on Ray; yield what came of each task, in the order of rows.

    Args:
        sink: What takes the scored rows; it travels to actors by pickle.
        columns: What the sink needs of the rows beside their logits.
        most: Score the first rows alone, as many as these.
        translate: Makes the features that the model reads, if it knows the values by other ids than the dataset.

    Raises UserError if there is no such split, or a part of it is missing or damaged.
    """
    part = dataset.head(split, most)
    info = part.split(split)
    arguments = {
        "model": model,
        "dataset": dataset.folder,
        "features": [feature.name for feature in dataset.schema.features],
        "columns": list(columns),
        "sink": sink,
        "end": info.rows,
        "translate": translate,
        "pool": pool,
    }
    yield from pool.run(scoring_tasks(dataset.folder, info.parts, rows_of_parts(info.rows)), _ScoreTask, arguments)


def rows_of_parts(rows: int) -> int:
    """Return about how many rows a part of `rows` rows in all has: many parts are made at once, and none is long."""
    return max(1, min(-(-rows // _PARTS_AIMED_AT), ROWS_PER_PART))


def scoring_tasks(folder: Path, parts: Sequence[PartInfo], rows: int) -> list[ScoringTask]:
    """Return the tasks that score the row groups of a split, each of about `rows` rows, in order."""
    groups = [(folder / part.path, index, count) for part in parts for index, count in enumerate(part.row_groups)]
    groups = [group for group in groups if group[2]]
    tasks, first = [], 0
    for number, places in enumerate(grouped([count for *_, count in groups], rows)):
        of_task = [groups[place] for place in places]
        tasks.append(ScoringTask(number, first, tuple((path, index) for path, index, _ in of_task)))
        first += sum(count for *_, count in of_task)
    return tasks


def grouped(rows: Sequence[int], most: int) -> Iterator[range]:
    """Yield the numbers of items that follow each other, in groups that have `most` rows or a few less; `rows` are the
    items'.
    """
    ends = np.cumsum(rows)
    starts = [0]
    while starts[-1] < len(rows):
        before = ends[starts[-1] - 1] if starts[-1] else 0
        starts.append(max(starts[-1] + 1, int(np.searchsorted(ends, before + most, side="right"))))
    yield from (range(first, end) for first, end in pairwise(starts))


class _ScoreTask:
    """A worker of the pool: scores row groups and hands them to the sink."""

    def __init__(
        self,
        model: StoredModel,
        dataset: Path,
        features: list[str],
        columns: list[str],
        sink: Sink,
        end: int,
        translate: Callable[[pa.RecordBatch], pa.RecordBatch] | None,
        pool: ScoringPool,
    ) -> None:
        """`end`: rows of the split, or of its part."""
        self._scorer = pool.scorer(model)
        self._features, self._columns, self._translate = features, columns, translate
        self._sink, self._end = sink, end

    def __call__(self, task: ScoringTask) -> ScoredTask:
        row, errors = task.first, [AmpError()]

        def batches() -> ScoredBatches:
            nonlocal row
            names = list(dict.fromkeys([*self._features, *self._columns]))
            for path, group in task.groups:
                # Where the first rows of a split are asked for, the last row group may have more.
                rows = _read_row_group(path, group, names).slice(0, self._end - row)
                features = rows.select(self._features)
                features = features if self._translate is None else self._translate(features)
                logits = self._scorer.logits_encoded(features)
                errors.append(self._scorer.amp_error(features))
                row += len(rows)
                yield rows.select(self._columns), logits

        made = self._sink(task.number, task.first, batches())
        return ScoredTask(row - task.first, made, AmpError.of_all(errors))


def _read_row_group(path: Path, group: int, columns: list[str]) -> pa.RecordBatch:
    try:
        with open_parquet(path) as part:
            table = part.read_row_group(group, columns=columns)
    except FileNotFoundError:
        raise UserError(f"{path}: missing, though the manifest lists it; run `rayrec preprocess` again") from None
    except (OSError, pa.ArrowInvalid) as error:
        raise unreadable(f"{path}, row group {group}", error, "run `rayrec preprocess` again") from None
    (batch,) = table.combine_chunks().to_batches()
    return batch


def collect_rows(number: int, first: int, batches: ScoredBatches) -> tuple[list[pa.RecordBatch], list[Logits]]:
    """Return the rows of a task and their logits: a sink."""
    rows, logits = zip(*batches, strict=True)
    return list(rows), list(logits)


def collect_split(
    model: StoredModel,
    dataset: Dataset,
    split: str,
    columns: Sequence[str],
    most: int,
    progress: Progress,
    translate: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None,
) -> tuple[pa.Table, Logits]:
    """Return columns of the first `most` rows of a split and their logits (n,), scored by threads of this process.

    `translate`: as for `score_split`. Raises UserError as it does.
    """
    batches, logits = list[pa.RecordBatch](), list[Logits]()
    pool = ScoringPool()
    for task in score_split(model, dataset, split, collect_rows, pool, columns, most=most, translate=translate):
        rows, of_rows = task.made
        batches += rows
        logits += of_rows
        progress.advance(task.rows)
    return pa.Table.from_batches(batches), np.concatenate(logits)


@dataclass(frozen=True)
class MeasureRows:
    """A sink that adds the rows of a task to accumulators, and returns these."""

    config: EvaluateConfig
    schema: Schema

    @property
    def ranking(self) -> RankingConfig | None:
        """Ranking metrics over the rows themselves, if there are any."""
        ranking = self.config.ranking
        return ranking if ranking is not None and ranking.candidates == "given" else None

    @property
    def columns(self) -> list[str]:
        """Columns of the rows that are read."""
        schema, interactions = self.schema, self.schema.interactions
        item = [interactions.item] if self.ranking is not None and interactions is not None else []
        group = [schema.group] if self.ranking is not None else []
        return [name for name in (schema.label, schema.weight, *group, *item) if name is not None]

    def __call__(self, number: int, first: int, batches: ScoredBatches) -> tuple[BinaryMetrics, RankingMetrics | None]:
        schema, interactions = self.schema, self.schema.interactions
        binary = BinaryMetrics.from_config(self.config)
        ranking = RankingMetrics(self.ranking) if self.ranking is not None else None
        for rows, scores in batches:
            logits, label = torch.from_numpy(scores), _tensor(rows, schema.label)
            weight = torch.ones(len(logits)) if schema.weight is None else _tensor(rows, schema.weight)
            binary.update(logits, label, weight)
            if ranking is not None and schema.group is not None:
                # The lists of a dataset of interactions may repeat an item.
                items = None if interactions is None else _tensor(rows, interactions.item)
                ranking.update(logits, label, _tensor(rows, schema.group), weight, items)
        return binary, ranking


def measure_split(
    model: StoredModel, dataset: Dataset, split: str, config: EvaluateConfig, pool: ScoringPool, progress: Progress
) -> MetricValues:
    """Return the metrics of a model over every row of a split, each counted once.

    The metrics are those of `BinaryMetrics` and, if `config` asks for them, those of `RankingMetrics`; of mixed
    precision also its error (`AmpError`). Of what a person chooses next they are those of `NextItemMetrics` alone.
    Raises UserError as `score_split`, and if the model has diverged.
    """
    if config.next_item_ranking is not None:
        (found,) = measure_next_items(model, dataset, split, config.next_item_ranking, pool, progress)
        return found.compute()
    # Each task measures its rows where they are scored; accumulators are added up here.
    measure, errors = MeasureRows(config, dataset.schema), [AmpError()]
    binary = BinaryMetrics.from_config(config)
    ranking = RankingMetrics(config.ranking) if config.ranking is not None else None
    for task in score_split(model, dataset, split, measure, pool, measure.columns):
        of_task, ranked = task.made
        binary.add(of_task)
        if ranking is not None and ranked is not None:
            ranking.add(ranked)
        errors.append(task.amp_error)
        progress.advance(task.rows)
    if ranking is not None and measure.ranking is None:
        # Every user of the split with every item of the catalogue: each worker takes some of the users.
        shares = pool.size(len(dataset.split(split).parts) * _PARTS_AIMED_AT)
        arguments = {"model": model, "dataset": dataset, "split": split, "config": config, "pool": pool}
        for ranked in pool.run([(share, shares) for share in range(shares)], _RankAllCandidates, arguments):
            ranking.add(ranked)
    metrics = binary.compute()
    if ranking is not None:
        metrics |= ranking.compute()
    error = AmpError.of_all(errors)
    return metrics | error.metrics() if error.rows else metrics


class _RankAllCandidates:
    """A worker of the pool: ranks every item for a share of the users of a split."""

    def __init__(
        self, model: StoredModel, dataset: Dataset, split: str, config: EvaluateConfig, pool: ScoringPool
    ) -> None:
        self._scorer, self._dataset, self._split, self._config = pool.scorer(model), dataset, split, config

    def __call__(self, share: tuple[int, int]) -> RankingMetrics:
        assert self._config.ranking is not None
        number, shares = share
        candidates = AllCandidates.read(self._dataset, self._split, rank=number, world_size=shares)
        ranking, names = RankingMetrics(self._config.ranking), self._scorer.encoded_columns.names
        for batch in candidates.batches(max(1, self._config.global_batch_size // shares), torch.device("cpu")):
            ids = [pa.array(batch.sparse[name].values().numpy()) for name in names]
            logits = self._scorer.logits_encoded(pa.RecordBatch.from_arrays(ids, names=names))
            assert batch.group is not None
            ranking.update(torch.from_numpy(logits), batch.label, batch.group, batch.weight)
        return ranking


def measure_next_items(
    model: StoredModel,
    dataset: Dataset,
    split: str,
    ranking: RankingConfig,
    pool: ScoringPool,
    progress: Progress,
    penalties: Sequence[float] = (0.0,),
) -> list[NextItemMetrics]:
    """Rank every item for each held-out event of a split, with each of some `serve.recommend.popularity_penalty`; each
    worker takes some of the people.

    Raises UserError as `score_split`.
    """
    shares = pool.size(len(dataset.split(split).parts) * _PARTS_AIMED_AT)
    metrics = [NextItemMetrics(ranking, num_item_rows(dataset.schema) - 1) for _ in penalties]
    popularity = np.log1p(item_counts(dataset)) if any(penalties) else np.zeros(1, np.float32)
    arguments = {
        "model": model,
        "dataset": dataset,
        "split": split,
        "ranking": ranking,
        "penalties": [torch.from_numpy(np.float32(penalty) * popularity) for penalty in penalties],
        "pool": pool,
    }
    for of_share in pool.run([(share, shares) for share in range(shares)], _RankNextItems, arguments):
        for measured, found in zip(metrics, of_share, strict=True):
            measured.add(found)
    progress.advance(dataset.split(split).rows)
    return metrics


class _RankNextItems:
    """A worker of the pool: ranks every item for the held-out events of a share of the people of a split."""

    def __init__(
        self,
        model: StoredModel,
        dataset: Dataset,
        split: str,
        ranking: RankingConfig,
        penalties: list[torch.Tensor],
        pool: ScoringPool,
    ) -> None:
        self._scorer, self._dataset, self._split, self._ranking = pool.scorer(model), dataset, split, ranking
        self._penalties = penalties

    def __call__(self, share: tuple[int, int]) -> list[NextItemMetrics]:
        number, shares = share
        items = NextItems.read(self._dataset, self._split, rank=number, world_size=shares)
        metrics = [NextItemMetrics(self._ranking, items.num_items) for _ in self._penalties]
        for events in items.batches():
            logits = score_next_items(self._scorer, events, items.num_items)
            for measured, penalty in zip(metrics, self._penalties, strict=True):
                measured.update(measured.rank(logits - penalty, events))
        return metrics


def score_next_items(scorer: Scorer, events: HeldOutEvents, num_items: int) -> torch.Tensor:
    """Return the logits (n, items) float32 of all items as the next ones of n events."""
    if scorer.scores_next_items:
        return torch.from_numpy(scorer.next_item_logits(events.histories))
    schema, columns = scorer.schema, interaction_columns(scorer.schema)
    users, of_event = np.unique(events.users, return_inverse=True)
    catalogue = np.arange(1, num_items + 1)
    if schema.features[0].name == columns.user:
        logits = scorer.pair_logits(users, catalogue)
    else:
        logits = scorer.pair_logits(catalogue, users).T
    return torch.from_numpy(logits[of_event])


def _tensor(rows: pa.RecordBatch, name: str) -> torch.Tensor:
    return torch.from_numpy(rows.column(name).to_numpy().copy())
