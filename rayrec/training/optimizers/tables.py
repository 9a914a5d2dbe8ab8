"""The optimizers of all embedding tables: those that are fused into the backward pass, and torch's."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizer

from rayrec.config.train import EmbeddingOptimizerConfig, TrainConfig
from rayrec.internals.torchrec import set_fused_parameters
from rayrec.models.common.tables import EmbeddingTable
from rayrec.training.optimizers.build import build_optimizer
from rayrec.training.optimizers.schedule import LearningRates
from rayrec.training.optimizers.stepped import SteppedTables

_FUSED = {
    "sgd": EmbOptimType.EXACT_SGD,
    "adagrad": EmbOptimType.EXACT_ADAGRAD,
    "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    "adam": EmbOptimType.ADAM,
    "lamb": EmbOptimType.LAMB,
}


def set_fused_optimizers(
    embeddings: EmbeddingBagCollection, with_fused_kernel: Iterable[EmbeddingTable], config: TrainConfig
) -> None:
    """Set on tables of a collection, before it is sharded, how FBGEMM updates them in the backward pass."""
    for table in with_fused_kernel:
        part = config.trained_part(table.part)
        parameters = _fused_parameters(config.by_part[part].embedding_optimizer)
        set_fused_parameters(embeddings.embedding_bags[table.name].weight, part, parameters)


def _fused_parameters(config: EmbeddingOptimizerConfig) -> dict[str, Any]:
    """What FBGEMM's table-batched embeddings take."""
    parameters: dict[str, Any] = {"optimizer": _FUSED[config.kind], "learning_rate": config.lr}
    if config.kind != "sgd":
        parameters["eps"] = config.eps
    if config.kind in {"adam", "lamb"}:
        parameters |= {"beta1": config.betas[0], "beta2": config.betas[1], "weight_decay": config.weight_decay}
    return parameters


class TableOptimizer:
    """One state dict over all tables, wherever the sharding plan put them, and learning rates by part."""

    def __init__(
        self,
        config: TrainConfig,
        tables: DistributedModelParallel,
        stated: Sequence[EmbeddingTable],
        with_dense_kernel: set[str],
    ) -> None:
        self._fused: CombinedOptimizer = tables.fused_optimizer
        names = {part: [t.name for t in stated if config.trained_part(t.part) == part] for part in config.by_part}
        # A kernel holds tables of one part, and has an optimizer of its own.
        self._kernels = {
            part: [o for o in _leaves(self._fused) if any(key.split(".")[-2] in of_part for key in o.params)]
            for part, of_part in names.items()
        }
        self._stepped = {
            part: SteppedTables(
                [name for name in of_part if name in with_dense_kernel],
                tables,
                partial(build_optimizer, config.by_part[part].embedding_optimizer),
            )
            for part, of_part in names.items()
        }
        for part, kernels in self._kernels.items():
            _fill_accumulators(kernels, config.by_part[part].embedding_optimizer)

    def set_lrs(self, rates: Mapping[str, LearningRates]) -> None:
        """Set the rates by part; must be called before the backward pass that they are meant for."""
        for part, rate in rates.items():
            for kernel in self._kernels[part]:
                for group in kernel.param_groups:
                    group["lr"] = rate.embeddings
            self._stepped[part].set_lr(rate.embeddings)
        # Hands the rates to the kernels; there are no gradients to clear.
        self._fused.zero_grad()

    def step(self) -> None:
        """Update the tables with a dense kernel; the others were updated in the backward pass."""
        for stepped in self._stepped.values():
            stepped.step()
        # Only now: TorchRec may keep tables of two parts, and so their gradients, in one tensor.
        for stepped in self._stepped.values():
            stepped.clear_gradients()

    def state_dict(self) -> dict[str, Any]:
        """`<table>.<moment>` -> the tensor that holds it, or this rank's part of it as a ShardedTensor.

        Names and shapes are the same whether a table is sharded or data-parallel, except for dense Adam's own step.
        Loading happens in place.
        """
        state: dict[str, Any] = {}
        for moments in self._fused.state_dict()["state"].values():
            state |= moments
        for stepped in self._stepped.values():
            state |= stepped.state
        return state

    def restore_step(self, step: int) -> None:
        """Set the count of steps for the bias correction of fused Adam and LAMB; dense Adam's is in its state."""
        self._fused.set_optimizer_step(step)


def _leaves(optimizer: KeyedOptimizer) -> list[KeyedOptimizer]:
    """The optimizers of single kernels within a combined one."""
    if not isinstance(optimizer, CombinedOptimizer):
        return [optimizer]
    return [leaf for _, inner in optimizer.optimizers for leaf in _leaves(inner)]


def _fill_accumulators(kernels: list[KeyedOptimizer], config: EmbeddingOptimizerConfig) -> None:
    """Begin the sums of squared gradients as the recipe says; FBGEMM's begin at 0."""
    if config.kind not in {"adagrad", "rowwise_adagrad"} or not config.initial_accumulator:
        return
    for kernel in kernels:
        for moments in kernel.state_dict()["state"].values():
            for value in moments.values():
                for shard in value.local_shards():
                    shard.tensor.fill_(config.initial_accumulator)
