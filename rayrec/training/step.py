"""One optimizer step.

The backward pass is cut at the pooled embeddings: the dense network's runs first, then, once its gradients are known
to be finite and are unscaled, the tables', which updates them. So fused optimizers see true gradients under loss
scaling, an overflow on any rank changes nothing anywhere, and gradient accumulation runs the dense network in parts
but updates each table once, exactly as without it.
"""

from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rayrec.config import TrainConfig
from rayrec.models.common.batch import Batch
from rayrec.models.common.groups import group_numbers
from rayrec.models.common.initialization import derived_seed
from rayrec.training.dense_optimizer import build_dense_optimizer, build_wide_optimizer
from rayrec.training.loss import BatchTotals, batch_loss
from rayrec.training.loss_scale import LossScale
from rayrec.training.parallel_model import ParallelModel
from rayrec.training.precision import Precision
from rayrec.training.schedule import LearningRates, learning_rates


@dataclass(frozen=True)
class StepOutcome:
    """What one step gives back."""

    loss: Tensor
    """() float32: this rank's weighted sum of row losses / the weight of the whole global batch; sums to the mean."""
    updated: bool
    """False where gradients overflowed, and nothing was changed."""


class TrainStep:
    """Forward, backward and update on one batch; every rank calls it with its share of the same global batch."""

    def __init__(self, model: ParallelModel, config: TrainConfig, precision: Precision, steps_per_epoch: int) -> None:
        """`steps_per_epoch`: of a whole epoch, for schedules in epochs."""
        self._model = model
        self._steps_per_epoch = steps_per_epoch
        self._config = config
        self._precision = precision
        self._world_size = dist.get_world_size()
        self.loss_scale = LossScale(model.device) if precision.scales_loss else None
        deep, wide = model.deep_parameters, model.wide_parameters
        self.dense_optimizer = build_dense_optimizer(config.dense_optimizer, deep) if deep else None
        self.wide_optimizer = build_wide_optimizer(config.wide_optimizer, wide) if wide else None
        """Of the dense network's wide part; that of the wide tables is in the model's table optimizer."""
        self._optimizers = [o for o in (self.dense_optimizer, self.wide_optimizer) if o is not None]
        self._trained = [*deep, *wide]
        self._has_dropout = any(isinstance(m, nn.Dropout) and m.p > 0 for m in model.dense_network.modules())

    def __call__(self, batch: Batch, totals: BatchTotals, step: int) -> StepOutcome:
        """`totals`: of the global batch; `step` counts from 1."""
        self._set_lr(step)
        if self._has_dropout:
            # Masks depend on no earlier step, so that a resumed run repeats them; each rank draws its own.
            torch.manual_seed(derived_seed(self._config.seed, "dropout", step, dist.get_rank()))
        with torch.set_grad_enabled(self._model.trains_tables):
            pooled = self._model.pooled(batch)
        boundary = pooled.detach().requires_grad_(self._model.trains_tables)
        loss = self._dense_passes(batch, boundary, totals)
        updated = self._gradients_are_usable(boundary)
        if updated:
            if self._model.trains_tables:
                pooled.backward(self._with_penalty(boundary, batch.weight, totals.weight))
                self._model.table_optimizer.step()
            for optimizer in self._optimizers:
                optimizer.step()
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)
        return StepOutcome(loss, updated)

    def learning_rates(self, step: int) -> LearningRates:
        """Those of `step`."""
        return learning_rates(self._config, step, self._steps_per_epoch)

    def _set_lr(self, step: int) -> None:
        rates = self.learning_rates(step)
        self._model.table_optimizer.set_lrs(rates)
        for optimizer, rate in ((self.dense_optimizer, rates.dense), (self.wide_optimizer, rates.wide)):
            if optimizer is not None:
                for group in optimizer.param_groups:
                    group["lr"] = rate

    def _dense_passes(self, batch: Batch, boundary: Tensor, totals: BatchTotals) -> Tensor:
        """Forward and backward of the dense network, in parts; gradients end in its parameters and `boundary`."""
        listwise = self._config.loss.listwise
        sizes = _part_sizes(batch, self._config.gradient_accumulation, cuts_groups=not listwise)
        columns = (batch.dense, boundary, batch.label, batch.weight)
        chunks = list(zip(*(column.split(sizes) for column in columns), strict=True))
        groups = batch.group.split(sizes) if batch.group is not None else [None] * len(sizes)
        total = torch.zeros((), device=self._model.device)
        for index, ((dense, pooled, label, weight), group) in enumerate(zip(chunks, groups, strict=True)):
            last = index == len(chunks) - 1
            with nullcontext() if last else self._model.without_dense_sync():
                with self._precision.autocast():
                    logits = self._model.dense(dense, pooled)
                loss = batch_loss(logits.float(), label, weight, group, totals, listwise)
                # Both DDP and TorchRec average gradients over ranks; the loss is a sum over them.
                scaled = loss * self._world_size
                if self.loss_scale is not None:
                    scaled = scaled * self.loss_scale.scale
                if scaled.requires_grad:
                    scaled.backward()
            total += loss.detach()
        return total

    def _with_penalty(self, boundary: Tensor, weight: Tensor, total_weight: float) -> Tensor:
        """The gradient of `boundary` with that of the L2 penalty on the deep tables' part of it, whose own value the
        reported loss leaves out."""
        gradient = boundary.grad
        assert gradient is not None
        factor = self._config.embedding_l2 * self._world_size / total_weight
        if factor:
            deep = slice(self._model.deep_width)
            values = boundary.detach()[:, deep]
            gradient[:, deep].addcmul_(values, weight.unsqueeze(1).to(gradient.dtype), value=factor)
        return gradient

    def _gradients_are_usable(self, boundary: Tensor) -> bool:
        if self.loss_scale is None:
            return True
        gradients = [p.grad for p in self._trained if p.grad is not None]
        if boundary.grad is not None:
            gradients.append(boundary.grad)
        return self.loss_scale.unscale_(gradients)


def _part_sizes(batch: Batch, parts: int, *, cuts_groups: bool) -> list[int]:
    """Rows of each part, as even as may be."""
    size = -(-batch.size // parts)
    ends = [*range(size, batch.size, size), batch.size]
    if not cuts_groups and len(ends) > 1:
        assert batch.group is not None
        numbers = group_numbers(batch.group)
        # To the end of the group that a part would cut.
        last_rows = torch.tensor([end - 1 for end in ends], device=numbers.device)
        ends = torch.searchsorted(numbers, numbers[last_rows], right=True).unique().tolist()
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]
