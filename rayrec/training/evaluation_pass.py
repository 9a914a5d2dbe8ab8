"""One pass of a distributed model over a split."""

from rayrec.config import EvaluateConfig
from rayrec.evaluation.binary import BinaryMetrics
from rayrec.evaluation.distributed import compute_over_ranks
from rayrec.training.parallel_model import ParallelModel
from rayrec.training.splits import SplitReader


def evaluate_split(
    model: ParallelModel, splits: SplitReader, split: str, config: EvaluateConfig
) -> dict[str, float | None]:
    """Metrics over every row of `split`, each counted once; the same on every rank. A collective."""
    metrics = BinaryMetrics.from_config(config)
    model.dense_network.eval()
    with splits.open(split, global_batch_size=config.global_batch_size, drop_last=False, shuffle="none") as batches:
        for batch in batches:
            metrics.update(model.logits(batch), batch.label, batch.weight)
    model.dense_network.train()
    return compute_over_ranks(metrics)
