"""One optimizer step, with the loss that it minimizes and the scale of the loss in float16.

The backward pass is cut at the pooled embeddings: the dense network's runs first, then, once its gradients are known
to be finite and are unscaled, the tables', which updates them. So fused optimizers see true gradients under loss
scaling, an overflow on any rank changes nothing anywhere, and gradient accumulation runs the dense network on
micro-batches but updates each table once, exactly as without it.

While the dense network computes, the ids of the next batch set out to the ranks that hold their tables.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

from rayrec.config.optimizers import LearningRates, OptimizerConfig
from rayrec.config.train import TrainConfig
from rayrec.internals import foreach
from rayrec.models.common.batch import Batch, NextItemBatch
from rayrec.models.common.initialization import derived_seed
from rayrec.models.common.layers import drawing_dropout_from
from rayrec.models.common.precision import Precision
from rayrec.training.loop.micro_batches import BatchTotals, MicroBatches, RowPieces, WindowPieces
from rayrec.training.optimizers import build_optimizer
from rayrec.training.parallel.parallel_model import ParallelModel, SentIds


@dataclass(frozen=True)
class StepOutcome:
    """The result of one step."""

    loss: Tensor
    """() float32: this rank's weighted sum of row losses / the weight of the whole global batch; sums to the mean."""
    overflow: Tensor
    """() float32: 1 where gradients overflowed, and nothing was changed; else 0."""
    logits: Tensor
    """(B,) float32: those of this rank's rows before the update, without gradients; of next items there are none."""


class TrainStep:
    """Forward, backward and update on one batch; every rank calls it with its share of the same global batch."""

    def __init__(self, model: ParallelModel, config: TrainConfig, precision: Precision, steps_per_epoch: int) -> None:
        """Prepare the optimizers; `steps_per_epoch` counts the steps of a whole epoch, for schedules in epochs."""
        self.model = model
        self._steps_per_epoch = steps_per_epoch
        self._config = config
        self._precision = precision
        self._world_size = dist.get_world_size()
        # float16 gradients underflow without loss scaling; bfloat16 has float32's range.
        self.loss_scale = LossScale.of(config.loss_scale, model.device) if precision.name == "fp16" else None
        self._no_overflow = torch.zeros((), device=model.device)
        self._skips_on_device = self.loss_scale is None or _skips_on_device(config)
        self.dense_optimizers = {
            part: build_optimizer(config.by_part[part].dense_optimizer, parameters)
            for part, parameters in model.dense_parameters.items()
            if parameters
        }
        """The optimizers of the dense network by part; those of the tables are in the model's table optimizer."""
        self._has_dropout = any(isinstance(m, nn.Dropout) and m.p > 0 for m in model.dense_network.modules())
        self._sent: SentIds | None = None
        """The ids of the batch that was named as the next one."""

    def __call__(self, batch: Batch, totals: BatchTotals, step: int, following: Batch | None = None) -> StepOutcome:
        """Do optimizer step `step`, counted from 1; `totals` are those of the global batch.

        `following`: the batch of the next step, if it is there: its ids are sent meanwhile. Every rank names one, or
        none does. What is computed is the same.
        """
        self._set_learning_rates(step)
        # Masks depend on no earlier step, so that a resumed run repeats them; each rank draws its own.
        self._dropout_seed = derived_seed(self._config.seed, "dropout", step, dist.get_rank())

        # Look up the batch, whose ids may have been sent during the last step, and send those of the next one.
        sent = self._sent if self._sent is not None and self._sent.batch is batch else None
        self._sent = None if following is None else self.model.send_ids(following)
        with torch.set_grad_enabled(self.model.trains_tables):
            pooled = self.model.pooled(batch, sent)

        # The dense network, forward and backward, as far as the pooled embeddings.
        boundary = pooled.detach().requires_grad_(self.model.trains_tables)
        loss, logits = self._dense_passes(batch, boundary, totals)
        overflow = self._unscale(boundary)

        # The tables, backward, which updates them, and the updates of the dense network; nothing after an overflow.
        if self._skips_on_device or not overflow.item():
            if self.model.trains_tables:
                gradient = self._with_penalty(boundary, batch.weight, totals)
                pooled.backward(self._zeroed(gradient, overflow))
                self.model.table_optimizer.step()
            for optimizer in self.dense_optimizers.values():
                optimizer.step()
        for optimizer in self.dense_optimizers.values():
            optimizer.zero_grad(set_to_none=True)
        return StepOutcome(loss, overflow, logits)

    def learning_rates(self, step: int) -> dict[str, LearningRates]:
        """Return the rates of step `step` by part."""
        return self._config.learning_rates(step, self._steps_per_epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint holds of the model and its optimizers; shares memory with them, except dense
        optimizers.
        """
        network = self.model.dense_network
        return {
            "model": self.model.state_dict(),
            "table_optimizer": self.model.table_optimizer.state_dict(),
            "dense_optimizer": {n: get_optimizer_state_dict(network, o) for n, o in self.dense_optimizers.items()},
        }

    def finish_loading(self, state: dict[str, Any], step: int, loss_scale: dict[str, float] | None) -> None:
        """Take over what is not loaded in place, once `state` holds that of a checkpoint.

        `step`: the optimizer steps that led to it, those of earlier runs among them.
        """
        for part, optimizer in self.dense_optimizers.items():
            states = state["dense_optimizer"][part]
            set_optimizer_state_dict(self.model.dense_network, optimizer, optim_state_dict=states)
        self.model.table_optimizer.restore_step(step)
        if self.loss_scale is not None and loss_scale is not None:
            self.loss_scale.load_state_dict(loss_scale)

    def _set_learning_rates(self, step: int) -> None:
        rates = self.learning_rates(step)
        self.model.table_optimizer.set_lrs(rates)
        for part, optimizer in self.dense_optimizers.items():
            for group in optimizer.param_groups:
                group["lr"] = rates[part].dense

    def _dense_passes(self, batch: Batch, boundary: Tensor, totals: BatchTotals) -> tuple[Tensor, Tensor]:
        """Run the dense network forward and backward on micro-batches; gradients end in its parameters and `boundary`.

        Return the loss and the logits, as `StepOutcome` has them.
        """
        pieces = self._cut(batch, totals)

        def forward(number: int, network: nn.Module, *pooled: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            """Return the loss and the logits of a micro-batch, and the number to go backward from."""
            with self._precision.autocast(), drawing_dropout_from(self._seeded_dropout(number)):
                loss, logits = pieces(number, network, *pooled)
            # Both DDP and TorchRec average gradients over ranks; the loss is a sum over them. The mean of a small
            # batch is mostly noise: a step by it as long as a full one would undo what the others have shown.
            scaled = loss * (self._world_size * totals.share)
            if self.loss_scale is not None:
                scaled = scaled * self.loss_scale.scale
            return loss.detach(), logits.detach(), scaled

        # On a CPU, threads take micro-batches beside each other: the first `beside` ones.
        total, logits = torch.zeros((), device=self.model.device), []
        beside, count = 0, len(pieces.sizes)
        if self.model.has_threads and count > 1:
            # DDP sums gradients over the ranks in the backward pass of the last one, which therefore comes by itself.
            beside = count - (self.model.dense is not self.model.dense_network)
            for loss, of_rows in self._passes_of_threads(forward, boundary, pieces, beside):
                total += loss
                logits.append(of_rows)
            if beside == count and self._sent is not None:
                self._sent.send()

        # The others come one after the other: on a GPU all, on CPUs of several ranks the last one.
        rows, shared = _split(boundary, pieces)
        for number in range(beside, count):
            last = number == count - 1
            with nullcontext() if last else self.model.without_dense_sync():
                loss, of_rows, scaled = forward(number, self.model.dense, rows[number], *shared)
                if number == beside and self._sent is not None:
                    # By now their numbers are known, and until the backward pass no other collective is due.
                    self._sent.send()
                if scaled.requires_grad:
                    scaled.backward()
            total += loss
            logits.append(of_rows)
        return total, torch.cat(logits)

    def _cut(self, batch: Batch, totals: BatchTotals) -> MicroBatches:
        """Cut a batch: for gradient accumulation, or for threads."""
        accumulated = self._config.gradient_accumulation
        if isinstance(batch, NextItemBatch):
            compared = len(batch.candidate_ids)
            count = max(accumulated, self.model.micro_batches(batch.size - compared, compared))
            return WindowPieces(batch, count, totals)
        count = max(accumulated, self.model.micro_batches(batch.size))
        return RowPieces(batch, count, totals, self._config.loss.listwise)

    def _passes_of_threads(
        self,
        forward: Callable[..., tuple[Tensor, Tensor, Tensor]],
        boundary: Tensor,
        pieces: MicroBatches,
        count: int,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield loss and logits of the first `count` micro-batches, which threads take beside each other.

        Gradients are summed in the order of the micro-batches, whichever was there first.
        """
        # Each thread has a gradient of its own for the network and for shared rows, and writes that of its rows into
        # one for all.
        parameters = [p for of_part in self.model.dense_parameters.values() for p in of_part]
        rows, shared = _split(boundary.detach(), pieces)
        of_rows: Sequence[Tensor] = []
        of_shared: Sequence[Tensor] = []
        if boundary.requires_grad:
            boundary.grad = torch.empty_like(boundary)
            of_rows, of_shared = _split(boundary.grad, pieces)
            shared = [some.requires_grad_() for some in shared]

        def passes_of(number: int) -> tuple[Tensor, Tensor, list[Tensor]]:
            pooled = rows[number].requires_grad_(boundary.requires_grad)
            loss, logits, scaled = forward(number, self.model.dense_network, pooled, *shared)
            inputs = [*parameters, *shared, pooled] if of_rows else parameters
            found = list(torch.autograd.grad(scaled, inputs, materialize_grads=True)) if inputs else []
            if of_rows:
                of_rows[number].copy_(found.pop())
            return loss, logits, found

        sums: list[Tensor] = []
        for loss, logits, found in self.model.threads.map(passes_of, range(count)):
            sums = [a + b for a, b in zip(sums, found, strict=True)] if sums else found
            yield loss, logits
        for parameter, gradient in zip(parameters, sums, strict=False):
            parameter.grad = gradient
        for target, gradient in zip(of_shared, sums[len(parameters) :], strict=True):
            target.copy_(gradient)
        for remaining in of_rows[count:]:
            remaining.zero_()

    def _seeded_dropout(self, number: int) -> torch.Generator | None:
        """Seed the masks of a micro-batch; return a generator for them where threads draw beside each other."""
        if not self._has_dropout:
            return None
        seed = derived_seed(self._dropout_seed, number) if number else self._dropout_seed
        if self.model.has_threads:
            return torch.Generator().manual_seed(seed)
        is_cuda = self.model.device.type == "cuda"
        own = torch.cuda.default_generators[self.model.device.index or 0] if is_cuda else torch.default_generator
        own.manual_seed(seed)
        return None

    def _with_penalty(self, boundary: Tensor, weight: Tensor, totals: BatchTotals) -> Tensor:
        """Return the gradient of `boundary` with that of the L2 penalty, whose own value the reported loss
        leaves out.
        """
        gradient = boundary.grad
        assert gradient is not None
        for columns, penalty in self.model.penalties:
            factors = weight * (penalty * self._world_size * totals.share / totals.weight)
            gradient[:, columns].addcmul_(boundary.detach()[:, columns], factors.unsqueeze(1))
        return gradient

    def _unscale(self, boundary: Tensor) -> Tensor:
        """Divide all gradients by the loss scale; return `StepOutcome.overflow`."""
        if self.loss_scale is None:
            return self._no_overflow
        trained = (p for parameters in self.model.dense_parameters.values() for p in parameters)
        gradients = [p.grad for p in trained if p.grad is not None]
        of_tables = [] if boundary.grad is None else [boundary.grad]
        overflow = self.loss_scale.unscale_(gradients + of_tables)
        for gradient in gradients:
            self._zeroed(gradient, overflow)
        for optimizer in self.dense_optimizers.values():
            if isinstance(optimizer, torch.optim.Adam):
                # The mark by which torch's own loss scaling tells a fused optimizer to leave a step out.
                optimizer.found_inf = overflow  # type: ignore[attr-defined]
        return overflow

    def _zeroed(self, gradient: Tensor, overflow: Tensor) -> Tensor:
        """Return the gradient, all 0 from now on where there was an overflow."""
        return gradient if self.loss_scale is None else gradient.masked_fill_(overflow > 0, 0.0)


def _split(pooled: Tensor, pieces: MicroBatches) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Return views of the rows of each piece, and of those that all share, if there are any."""
    sizes = [*pieces.sizes, pieces.shared] if pieces.shared else pieces.sizes
    # The backward pass of a split copies the gradient, even where there is one.
    views = pooled.split(sizes) if len(sizes) > 1 else [pooled]
    return views[: len(pieces.sizes)], views[len(pieces.sizes) :]


def _skips_on_device(config: TrainConfig) -> bool:
    """Return whether no optimizer changes anything in a step whose gradients are all 0, or that is marked as an
    overflow.

    Adam of the dense network takes the mark. Others move by their moments or by weight decay; the host must leave their
    step out, and so has to wait for the device.
    """

    def is_idle(optimizer: OptimizerConfig) -> bool:
        return optimizer.kind in {"sgd", "adagrad", "rowwise_adagrad"} and not optimizer.weight_decay

    return all(
        is_idle(part.embedding_optimizer)
        and (
            part.dense_optimizer.kind in {"adam", "adamw"}
            or (is_idle(part.dense_optimizer) and not part.dense_optimizer.momentum)
        )
        for part in config.by_part.values()
    )


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
            foreach.unscale_(gradients, overflow, self.scale.reciprocal())
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(overflow, op=dist.ReduceOp.MAX)
        if self._dynamic:
            foreach.update_scale_(self.scale, self._clean_steps, overflow, 2.0, 0.5, self._growth_interval)
        return overflow

    def state_dict(self) -> dict[str, float]:
        return {"scale": self.scale.item(), "clean_steps": int(self._clean_steps.item())}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Go on as another scale was; one that is not dynamic stays."""
        if self._dynamic:
            self.scale.fill_(state["scale"])
            self._clean_steps.fill_(int(state["clean_steps"]))
