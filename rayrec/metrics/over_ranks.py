"""Metrics over the ranks of torch.distributed: rank 0 takes in the accumulators of the others, all get the result."""

from typing import Any

import torch
import torch.distributed as dist

from rayrec.common.errors import UserError
from rayrec.metrics.binary import BinaryMetrics
from rayrec.metrics.estimates import MetricValues
from rayrec.metrics.ranking import RankingMetrics


def compute_over_ranks(metrics: BinaryMetrics | RankingMetrics, group: dist.ProcessGroup | None = None) -> MetricValues:
    """Return the metrics of the rows of all ranks of `group` (default: all), the same dict on every rank.

    A collective call. Every rank's accumulator is used up. Raises what `metrics.compute` raises, on every rank.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    device = torch.device("cuda" if dist.get_backend(group) == "nccl" else "cpu")  # which the backend sends from

    if isinstance(metrics, BinaryMetrics):
        # More scores than rank 0 may keep do not travel to it: each rank sends a histogram of its own.
        stored = torch.tensor(metrics.stored_rows, dtype=torch.float64, device=device)
        dist.all_reduce(stored, group=group)
        if metrics.is_beyond_exact_auc(float(stored)):
            metrics.use_histogram()

    for other in range(1, size):
        if rank == other:
            dist.send_object_list([metrics], group=group, group_dst=0, device=device)
        elif rank == 0:
            received: list[Any] = [None]
            dist.recv_object_list(received, group=group, group_src=other, device=device)
            metrics.add(received[0])

    outcome: list[MetricValues | str | None] = [None]
    if rank == 0:
        try:
            outcome = [metrics.compute()]
        except UserError as error:
            # The other ranks wait for the result: they must fail, too.
            outcome = [str(error)]
    dist.broadcast_object_list(outcome, group=group, group_src=0, device=device)
    (result,) = outcome
    if not isinstance(result, dict):
        raise UserError(result)
    return result
