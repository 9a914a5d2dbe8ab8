"""What a step does with the dense network on a piece of a batch, and the loss of it."""

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rayrec.models.common.batch import Batch, NextItemBatch, group_numbers


@dataclass(frozen=True)
class BatchTotals:
    """Sums over all rows of a global batch, on all ranks."""

    weight: float | Tensor
    """Sum of the weights; a tensor () on the rows' device where only the rows tell, as reading it would be a wait."""
    positives: Tensor | None
    """() Sum of the products of weight and label; None if the loss has no lists."""
    share: float = 1.0
    """Rows of the batch by those of a full one, to which its step is in proportion. The loss is a mean all the same."""


class MicroBatches(Protocol):
    """The pieces of a batch, which the dense network takes one by one."""

    sizes: list[int]
    """Rows of the pooled embeddings that belong to each piece alone."""
    shared: int
    """Rows behind these, which every piece reads."""

    def __call__(self, number: int, network: nn.Module, *pooled: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of piece `number` () and the logits of its rows, both float32.

        `pooled`: the pooled embeddings of its own rows, then those that all read, if there are any. The losses of the
        pieces of a global batch sum to its mean.
        """


class RowPieces:
    """Pieces of rows with labels; lists of rows that are compared stay whole."""

    shared = 0

    def __init__(self, batch: Batch, count: int, totals: BatchTotals, listwise: float) -> None:
        self.sizes = _sizes(batch, count, cuts_groups=not listwise)
        self._totals, self._listwise = totals, listwise
        self._columns = [column.split(self.sizes) for column in (batch.dense, batch.label, batch.weight)]
        self._groups = batch.group.split(self.sizes) if batch.group is not None else [None] * len(self.sizes)

    def __call__(self, number: int, network: nn.Module, *pooled: Tensor) -> tuple[Tensor, Tensor]:
        dense, label, weight = (column[number] for column in self._columns)
        logits = network(dense, *pooled).float()
        return batch_loss(logits, label, weight, self._groups[number], self._totals, self._listwise), logits


class WindowPieces:
    """Pieces of whole windows of events, which share the candidates; there are no rows that have logits."""

    def __init__(self, batch: NextItemBatch, count: int, totals: BatchTotals) -> None:
        windows, length = batch.event_ids.shape
        self._ids = batch.event_ids.split(-(-windows // count))
        self._weights = batch.weight[: windows * length].view(windows, length).split(-(-windows // count))
        self.sizes = [ids.numel() for ids in self._ids]
        self.shared = len(batch.candidate_ids)
        self._batch, self._totals = batch, totals

    def __call__(self, number: int, network: nn.Module, *pooled: Tensor) -> tuple[Tensor, Tensor]:
        own, shared = pooled
        ids, batch = self._ids[number], self._batch
        events = own.view(*ids.shape, -1)
        loss = network(events, ids, self._weights[number], shared, batch.candidate_ids, batch.log_counts)
        return loss / self._totals.weight, loss.new_empty(0)


def _sizes(batch: Batch, count: int, *, cuts_groups: bool) -> list[int]:
    """Return the number of rows in each of `count` pieces, as even as possible."""
    size = -(-batch.size // count)
    ends = [*range(size, batch.size, size), batch.size]
    if not cuts_groups and len(ends) > 1:
        assert batch.group is not None
        numbers = group_numbers(batch.group)
        # To the end of the group that a piece would cut.
        last_rows = torch.tensor([end - 1 for end in ends], device=numbers.device)
        ends = torch.searchsorted(numbers, numbers[last_rows], right=True).unique().tolist()
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def batch_loss(
    logits: Tensor, label: Tensor, weight: Tensor, group: Tensor | None, totals: BatchTotals, listwise: float
) -> Tensor:
    """Return () float32: these rows' share of the loss; the shares of a global batch, which cut no group, sum to it.

    All tensors are (B,), logits float32. With logits s, labels y and weights w over the B rows of a global batch, a
    share a of `listwise`, and for a row i the rows G(i) of its group that have weight:

        row_i  = -y_i ln sigmoid(s_i) - (1 - y_i) ln(1 - sigmoid(s_i))
        list_i = ln(sum over j in G(i) of exp s_j) - s_i
        loss   = (1 - a) * sum(w_i row_i) / sum(w_i)  +  a * sum(w_i y_i list_i) / sum(w_i y_i)

    `list_i` is ListNet's loss with one true item (Cao et al. 2007, "Learning to Rank: From Pairwise Approach to
    Listwise Approach", equation 4 with top-one probabilities), and the log likelihood of a multinomial logit, where one
    of the rows that are shown together is chosen. It is the same for all scores of a group raised by any number, so
    with a = 1 sigmoid(s) is no probability; the rows' term keeps it one.
    """
    of_rows = F.binary_cross_entropy_with_logits(logits, label, weight, reduction="sum") / totals.weight
    if not listwise:
        return of_rows
    assert group is not None and totals.positives is not None
    # A batch without a positive has no list to learn from.
    positives = totals.positives.masked_fill(totals.positives == 0, 1.0)
    of_lists = softmax_cross_entropy(logits, label, weight, group) / positives
    return (1 - listwise) * of_rows + listwise * of_lists


def softmax_cross_entropy(logits: Tensor, label: Tensor, weight: Tensor, group: Tensor) -> Tensor:
    """Return () the sum of w_i y_i list_i over (B,) rows; those of a group are adjacent, weight 0 means absent."""
    counted = weight > 0
    scores = logits.masked_fill(~counted, -torch.inf)
    list_of = group_numbers(group)
    with torch.no_grad():
        highest = torch.full_like(scores, -torch.inf).scatter_reduce(0, list_of, scores, "amax")
        highest = highest.masked_fill(highest.isinf(), 0.0)  # lists without a row that counts, and places of no list
    sums = torch.zeros_like(scores).index_add(0, list_of, (scores - highest[list_of]).exp())
    # Not 0 where nothing counts: the logarithm's gradient would be infinite, and times 0 no number.
    logs = highest + sums.clamp_min(torch.finfo(sums.dtype).tiny).log()
    return (weight * label * (logs[list_of] - logits)).sum()
