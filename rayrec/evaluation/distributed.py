"""Metrics over all ranks: sums are added, kept rows travel to the first rank, the result to every rank."""

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from rayrec.common.errors import UserError
from rayrec.evaluation.auc import Scores
from rayrec.evaluation.binary import BinaryMetrics
from rayrec.evaluation.ranking import RankedRows, RankingMetrics

# Values sent at a time (16 MB of scores): bounds the buffers of the receiver and of the backend.
_PIECE = 1 << 22


Metrics = BinaryMetrics | RankingMetrics


def compute_over_ranks(metrics: Metrics, group: dist.ProcessGroup | None = None) -> dict[str, float | None]:
    """The metrics of the rows of all ranks of `group` (default: all), the same dict on every rank.

    A collective call. Every rank's accumulator is used up. Raises what `metrics.compute` raises, on every rank.
    """
    merge_over_ranks(metrics, group)
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


def merge_over_ranks(metrics: Metrics, group: dist.ProcessGroup | None = None) -> None:
    """Merge the accumulators of all ranks into the first rank's accumulator; the other ranks' are used up."""
    metrics.sums = _sum_over_ranks(metrics.sums, group)
    if isinstance(metrics, BinaryMetrics):
        _merge_binary(metrics, group)
    else:
        _merge_ranking(metrics, group)


def _merge_binary(metrics: BinaryMetrics, group: dist.ProcessGroup | None) -> None:
    state = np.array([metrics.stored_rows, metrics.histogram is not None], dtype=np.float64)
    stored, histograms = _sum_over_ranks(state, group)
    if histograms or stored > metrics.exact_auc_rows:
        metrics.use_histogram()
        assert metrics.histogram is not None
        metrics.histogram.positives = _sum_over_ranks(metrics.histogram.positives, group)
        metrics.histogram.negatives = _sum_over_ranks(metrics.histogram.negatives, group)
    else:
        _collect_scores(metrics.positives, group)
        _collect_scores(metrics.negatives, group)


def _collect_scores(scores: Scores, group: dist.ProcessGroup | None) -> None:
    """Append the scores of the other ranks to those of the first."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    own = np.zeros((size, 2))
    own[rank] = scores.rows, scores.weighted
    for other, (rows, weighted) in enumerate(_sum_over_ranks(own, group).tolist()[1:], start=1):
        if rank == other:
            _send(scores.logits(), group)
            if weighted:
                _send(scores.weights(), group)
        elif rank == 0:
            logits = _receive(int(rows), other, group)
            scores.add(logits, _receive(int(rows), other, group) if weighted else np.ones_like(logits))


def _merge_ranking(metrics: RankingMetrics, group: dist.ProcessGroup | None) -> None:
    """Hand the groups that may go on elsewhere, and the ids of the others, to the first rank."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    waiting = metrics.open_rows()
    finished = np.concatenate([np.empty(0, np.int64), *metrics.finished])
    own = np.zeros((size, 2))
    own[rank] = len(waiting), len(finished)
    for other, counts in enumerate(_sum_over_ranks(own, group).tolist()[1:], start=1):
        if rank == other:
            for column in (waiting.group, waiting.score, waiting.positive.astype(np.uint8), finished):
                _send(column, group)
        elif rank == 0:
            rows, ids = (int(count) for count in counts)
            metrics.add_open(
                RankedRows(
                    _receive(rows, other, group, torch.int64),
                    _receive(rows, other, group, torch.float64),
                    _receive(rows, other, group, torch.uint8).astype(np.bool_),
                )
            )
            metrics.finished.append(_receive(ids, other, group, torch.int64))


def _send(values: NDArray[Any], group: dist.ProcessGroup | None) -> None:
    for start in range(0, len(values), _PIECE):
        piece = torch.from_numpy(values[start : start + _PIECE]).to(_device(group))
        dist.send(piece, group=group, group_dst=0)


def _receive(
    rows: int, source: int, group: dist.ProcessGroup | None, dtype: torch.dtype = torch.float32
) -> NDArray[Any]:
    values = torch.empty(rows, dtype=dtype)
    for piece in values.split(_PIECE) if rows else ():
        arrived = torch.empty(len(piece), dtype=dtype, device=_device(group))
        dist.recv(arrived, group=group, group_src=source)
        piece.copy_(arrived)
    return values.numpy()


def _sum_over_ranks(values: NDArray[np.float64], group: dist.ProcessGroup | None) -> NDArray[np.float64]:
    total: Tensor = torch.from_numpy(values).to(_device(group), copy=True)
    dist.all_reduce(total, group=group)
    return total.cpu().numpy()


def _device(group: dist.ProcessGroup | None) -> torch.device:
    """Where the backend takes its tensors."""
    return torch.device("cuda" if dist.get_backend(group) == "nccl" else "cpu")
