"""Metrics over all ranks: sums are added, kept rows travel to the first rank, the result to every rank."""

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from rayrec.common.errors import UserError
from rayrec.evaluation.binary import BinaryMetrics
from rayrec.evaluation.ranking import RankedRows, RankingMetrics

# Values sent at a time (16 MB of scores): bounds the buffers of the receiver and of the backend.
_PIECE = 1 << 22

Metrics = BinaryMetrics | RankingMetrics


def compute_over_ranks(metrics: Metrics, group: dist.ProcessGroup | None = None) -> dict[str, float | None]:
    """Return the metrics of the rows of all ranks of `group` (default: all), the same dict on every rank.

    A collective call. Every rank's accumulator is used up. Raises what `metrics.compute` raises, on every rank.
    """
    metrics.sums = _sum_over_ranks(metrics.sums, group)
    if isinstance(metrics, BinaryMetrics):
        _merge_binary(metrics, group)
    else:
        _merge_ranking(metrics, group)
    outcome: list[dict[str, float | None] | str | None] = [None]
    if dist.get_rank(group) == 0:
        try:
            outcome = [metrics.compute()]
        except UserError as error:
            # The other ranks wait for the result: they must fail, too.
            outcome = [str(error)]
    dist.broadcast_object_list(outcome, group=group, group_src=0, device=_device(group))
    (result,) = outcome
    if not isinstance(result, dict):
        raise UserError(result)
    return result


def _merge_binary(metrics: BinaryMetrics, group: dist.ProcessGroup | None) -> None:
    """Merge the accumulators of all ranks into the first rank's."""
    state = np.array([metrics.stored_rows, metrics.histogram is not None], dtype=np.float64)
    stored, histograms = _sum_over_ranks(state, group)
    if histograms or stored > metrics.exact_auc_rows:
        metrics.use_histogram()
        assert metrics.histogram is not None
        metrics.histogram.positives = _sum_over_ranks(metrics.histogram.positives, group)
        metrics.histogram.negatives = _sum_over_ranks(metrics.histogram.negatives, group)
        return
    for scores in (metrics.positives, metrics.negatives):
        own_weights = scores.weights() if scores.weighted else np.empty(0, np.float32)
        others = zip(_gathered(scores.logits(), group), _gathered(own_weights, group), strict=True)
        for logits, weights in others:
            scores.add(logits, weights if len(weights) else np.ones_like(logits))


def _merge_ranking(metrics: RankingMetrics, group: dist.ProcessGroup | None) -> None:
    """Hand the groups that may go on elsewhere, and the ids of the others, to the first rank."""
    waiting = metrics.open_rows()
    finished = np.concatenate([np.empty(0, np.int64), *metrics.finished])
    columns = waiting.group, waiting.score, waiting.positive.astype(np.uint8), waiting.item, finished
    for groups, scores, positive, items, ids in zip(*(_gathered(column, group) for column in columns), strict=True):
        metrics.add_open(RankedRows(groups, scores, positive.astype(np.bool_), items))
        metrics.finished.append(ids)


def _gathered(values: NDArray[Any], group: dist.ProcessGroup | None) -> list[NDArray[Any]]:
    """Return what the other ranks hold, in their order, on the first rank; an empty list elsewhere. A
    collective call.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    own, device = torch.from_numpy(values), _device(group)
    lengths = np.zeros(size)
    lengths[rank] = len(values)
    gathered = []
    for other, length in enumerate(_sum_over_ranks(lengths, group).tolist()[1:], start=1):
        if rank == other:
            for piece in own.split(_PIECE) if len(own) else ():
                dist.send(piece.to(device), group=group, group_dst=0)
        elif rank == 0:
            arrived = torch.empty(int(length), dtype=own.dtype)
            for piece in arrived.split(_PIECE) if length else ():
                received = torch.empty_like(piece, device=device)
                dist.recv(received, group=group, group_src=other)
                piece.copy_(received)
            gathered.append(arrived.numpy())
    return gathered


def _sum_over_ranks(values: NDArray[np.float64], group: dist.ProcessGroup | None) -> NDArray[np.float64]:
    total: Tensor = torch.from_numpy(values).to(_device(group), copy=True)
    dist.all_reduce(total, group=group)
    return total.cpu().numpy()


def _device(group: dist.ProcessGroup | None) -> torch.device:
    """Return the device on which the backend takes its tensors."""
    return torch.device("cuda" if dist.get_backend(group) == "nccl" else "cpu")
