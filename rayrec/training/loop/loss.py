"""Loss that training minimizes (cross-entropy of each row, of each list of rows, or both), and its scale in float16.

With logits s, labels y and weights w over the B rows of a global batch, a share a of `listwise`, and for a row
i the rows G(i) of its group that have weight:

    row_i  = -y_i ln sigmoid(s_i) - (1 - y_i) ln(1 - sigmoid(s_i))
    list_i = ln(sum over j in G(i) of exp s_j) - s_i
    loss   = (1 - a) * sum(w_i row_i) / sum(w_i)  +  a * sum(w_i y_i list_i) / sum(w_i y_i)

`list_i` is ListNet's loss with one true item (Cao et al. 2007, "Learning to Rank: From Pairwise Approach to Listwise
Approach", equation 4 with top-one probabilities), and the log likelihood of a multinomial logit, where one of the
rows that are shown together is chosen. It is the same for all scores of a group raised by any number, so with a = 1
sigmoid(s) is no probability; the rows' term keeps it one.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
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
    """Return () float32: these rows' share of the loss; the shares of a global batch, which cut no group, sum to it.

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


class LossScale:
    """A factor on the loss so that float16 gradients do not underflow; if dynamic, it halves when any overflows.

    Micikevicius et al. 2018, arXiv:1710.03740, section 3.2.

    torch's GradScaler cannot be used: it acts between backward and step, but the tables are updated inside backward.
    Everything stays on the device, so that nobody waits for it.
    """

    def __init__(
        self, device: torch.device, *, initial: float = 65536.0, growth_interval: int = 2000, dynamic: bool = True
    ) -> None:
        self.scale = torch.full((), initial, device=device)
        self._growth_interval, self._dynamic = growth_interval, dynamic
        self._clean_steps = torch.zeros((), dtype=torch.int32, device=device)

    @classmethod
    def of(cls, wanted: float | Literal["dynamic"], device: torch.device) -> "LossScale":
        """Return the scale that `TrainConfig.loss_scale` asks for."""
        return cls(device) if wanted == "dynamic" else cls(device, initial=wanted, dynamic=False)

    def unscale_(self, gradients: list[Tensor]) -> Tensor:
        """Divide `gradients` by the scale in place; () float32: 1 if a gradient of any rank is not finite, else 0.

        Must be called on every rank. Adapts a dynamic scale: half after an overflow, double after `growth_interval`
        steps without one.
        """
        overflow = torch.zeros((), device=self.scale.device)
        if gradients:
            torch._amp_foreach_non_finite_check_and_unscale_(gradients, overflow, self.scale.reciprocal())
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(overflow, op=dist.ReduceOp.MAX)
        if self._dynamic:
            torch._amp_update_scale_(self.scale, self._clean_steps, overflow, 2.0, 0.5, self._growth_interval)
        return overflow

    def state_dict(self) -> dict[str, float]:
        return {"scale": self.scale.item(), "clean_steps": int(self._clean_steps.item())}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Go on as another scale was; one that is not dynamic stays."""
        if self._dynamic:
            self.scale.fill_(state["scale"])
            self._clean_steps.fill_(int(state["clean_steps"]))
