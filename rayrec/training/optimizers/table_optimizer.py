"""The optimizers of all embedding tables: those that are fused into the backward pass, and torch's."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizer

from rayrec.config.optimizers import EmbeddingOptimizerConfig, LearningRates
from rayrec.config.train import TrainConfig
from rayrec.internals.torchrec import local_shards, set_fused_parameters, sharded_like
from rayrec.models.common.embedding_tables import EmbeddingTable
from rayrec.training.optimizers.torch_optimizers import build_optimizer, table_moments

FUSED_OPTIMIZERS = {
    "sgd": EmbOptimType.EXACT_SGD,
    "adagrad": EmbOptimType.EXACT_ADAGRAD,
    "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    "adam": EmbOptimType.ADAM,
}
"""The kinds of optimizers that FBGEMM runs inside the backward pass, by `EmbeddingOptimizerConfig.kind`."""


def set_fused_optimizers(
    embeddings: EmbeddingBagCollection, with_fused_kernel: Iterable[EmbeddingTable], train: TrainConfig
) -> None:
    """Set on tables of a collection, before it is sharded, how FBGEMM updates them in the backward pass."""
    for table in with_fused_kernel:
        part = train.trained_part(table.part)
        config = train.by_part[part].embedding_optimizer
        parameters: dict[str, Any] = {"optimizer": FUSED_OPTIMIZERS[config.kind], "learning_rate": config.lr}
        if config.kind != "sgd":
            parameters["eps"] = config.eps
        if config.kind == "adam":
            parameters |= {"beta1": config.betas[0], "beta2": config.betas[1], "weight_decay": config.weight_decay}
        set_fused_parameters(embeddings.embedding_bags[table.name].weight, part, parameters)


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
        self._by_part: dict[str, list[torch.optim.Optimizer]] = {}
        # torch's optimizers of tables whose kernel leaves a dense gradient, and pairs of TorchRec's parameter, which
        # gets the gradient, and a plain one that shares its memory.
        self._stepped: list[torch.optim.Optimizer] = []
        self._pairs: list[tuple[nn.Parameter, nn.Parameter]] = []
        self._stepped_state: dict[str, Any] = {}
        for part, settings in config.by_part.items():
            names = [table.name for table in stated if config.trained_part(table.part) == part]
            # A kernel holds tables of one part, and has an optimizer of its own.
            kernels = [o for o in _leaves(self._fused) if any(key.split(".")[-2] in names for key in o.params)]
            _fill_accumulators(kernels, settings.embedding_optimizer)
            self._by_part[part] = kernels
            self._add_stepped(part, [n for n in names if n in with_dense_kernel], tables, settings.embedding_optimizer)

    def _add_stepped(
        self, part: str, names: Sequence[str], tables: DistributedModelParallel, config: EmbeddingOptimizerConfig
    ) -> None:
        """Give this rank's parts of the tables `names` to a torch optimizer."""
        # Plain parameters over the memory of this rank's shards: torch's optimizers know no ShardedTensor.
        weights, parameters = tables.state_dict(), dict(tables.named_parameters())
        held: list[tuple[str, Any, nn.Parameter]] = []
        for name in names:
            key = f"embeddings.embedding_bags.{name}.weight"
            for tensor, _, _ in local_shards(weights[key]):  # one, or none where other ranks hold the table
                own = nn.Parameter(tensor)
                self._pairs.append((parameters[key], own))
                held.append((name, weights[key], own))
        if not held:
            return
        # One optimizer steps all of them; a checkpoint sees its moments as parts of whole tables.
        optimizer = build_optimizer(config, [own for _, _, own in held])
        self._stepped.append(optimizer)
        self._by_part[part].append(optimizer)
        for name, weight, own in held:
            for moment, value in table_moments(optimizer, own).items():
                self._stepped_state[f"{name}.{moment}"] = sharded_like(value, weight)

    def set_lrs(self, rates: Mapping[str, LearningRates]) -> None:
        """Set the rates by part; must be called before the backward pass that they are meant for."""
        for part, rate in rates.items():
            for optimizer in self._by_part[part]:
                for group in optimizer.param_groups:
                    group["lr"] = rate.embeddings
        # Hands the rates to the kernels; there are no gradients to clear.
        self._fused.zero_grad()

    def step(self) -> None:
        """Update the tables with a dense kernel; the others were updated in the backward pass."""
        for theirs, own in self._pairs:
            own.grad = theirs.grad
        for optimizer in self._stepped:
            optimizer.step()
        # Only now: TorchRec may keep tables of two parts, and so their gradients, in one tensor.
        for theirs, own in self._pairs:
            theirs.grad = own.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Return by `<table>.<moment>` the tensor that holds it, or this rank's part of it as a ShardedTensor.

        Names and shapes are the same whether a table is sharded or data-parallel, except for dense Adam's own step.
        Loading happens in place.
        """
        state: dict[str, Any] = {}
        for moments in self._fused.state_dict()["state"].values():
            state |= moments
        return state | self._stepped_state

    def restore_step(self, step: int) -> None:
        """Set the count of steps for the bias correction of fused Adam; dense Adam's is in its state."""
        self._fused.set_optimizer_step(step)


def _leaves(optimizer: KeyedOptimizer) -> list[KeyedOptimizer]:
    """Return the optimizers of single kernels within a combined one."""
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
