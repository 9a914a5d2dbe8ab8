"""One pass of a distributed model over a split, and over its users with all items where the recipe asks for it."""

from torch import Tensor

from rayrec.config import EvaluateConfig
from rayrec.evaluation.binary import BinaryMetrics
from rayrec.evaluation.distributed import compute_over_ranks
from rayrec.evaluation.ranking import RankingMetrics
from rayrec.models.common.batch import Batch
from rayrec.training.loop.splits import SplitReader
from rayrec.training.placement.parallel_model import ParallelModel


def evaluate_split(
    model: ParallelModel, splits: SplitReader, split: str, config: EvaluateConfig
) -> dict[str, float | None]:
    """Metrics over every row of `split`, each counted once; the same on every rank. A collective.

    The metrics are those of `BinaryMetrics` and, if the recipe asks for them, those of `RankingMetrics`.
    """
    binary = BinaryMetrics.from_config(config)
    ranking = RankingMetrics(config.ranking) if config.ranking is not None else None
    ranks_rows = config.ranking is not None and config.ranking.candidates == "given"
    size = config.global_batch_size
    model.dense_network.eval()
    with splits.open(split, global_batch_size=size, drop_last=False, shuffle="none", contiguous=ranks_rows) as batches:
        for batch in batches:
            logits = model.logits(batch)
            binary.update(logits, batch.label, batch.weight)
            if ranking is not None and ranks_rows:
                _rank(ranking, batch, logits)
    if ranking is not None and not ranks_rows:
        for batch in splits.all_candidates(split, global_batch_size=size):
            _rank(ranking, batch, model.logits(batch))
    model.dense_network.train()
    metrics = compute_over_ranks(binary)
    if ranking is not None:
        metrics |= compute_over_ranks(ranking)
    return metrics


def _rank(ranking: RankingMetrics, batch: Batch, scores: Tensor) -> None:
    assert batch.group is not None
    ranking.update(scores, batch.label, batch.group, batch.weight)
