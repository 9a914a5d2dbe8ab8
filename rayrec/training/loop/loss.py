"""Loss that training minimizes: cross-entropy of each row, of each list of rows, or both.

With logits s, labels y and weights w over the B rows of a global batch, a share a of `listwise`, and for a row
i the rows G(i) of its group that have weight:

    row_i  = -y_i ln sigmoid(s_i) - (1 - y_i) ln(1 - sigmoid(s_i))
    list_i = ln(sum over j in G(i) of exp s_j) - s_i
    loss   = (1 - a) * sum(w_i row_i) / sum(w_i)  +  a * sum(w_i y_i list_i) / sum(w_i y_i)

`list_i` is ListNet's loss with one true item (Cao et al. 2007, "Learning to Rank: From Pairwise Approach to Listwise
Approach", equation 4 with top-one probabilities), and the log likelihood of a multinomial logit, where one of the
rows that are shown together is chosen. It is the same for all scores of a group raised by any number, so with a = 1
sigmoid(s) is no probability; the rows' part keeps it one.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from rayrec.models.common.batch import group_numbers


@dataclass(frozen=True)
class BatchTotals:
    """Sums over all rows of a global batch, on all ranks."""

    weight: float | Tensor
    """Sum of the weights; a tensor () on the rows' device where only the rows tell, as reading it would be a wait."""
    positives: Tensor | None
    """() Sum of the products of weight and label; None if no lists take part in the loss."""
    share: float = 1.0
    """Rows of the batch by those of a full one, to which its step is in proportion. The loss is a mean all the same."""


def batch_loss(
    logits: Tensor, label: Tensor, weight: Tensor, group: Tensor | None, totals: BatchTotals, listwise: float
) -> Tensor:
    """() float32: these rows' part of the loss; the parts of a global batch, which cut no group, sum to it.

    All tensors are (B,), logits float32. `listwise` is the share of the lists, which need groups.
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
    """(): the sum of w_i y_i list_i over (B,) rows, where those of a group are adjacent and weight 0 means absent."""
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
