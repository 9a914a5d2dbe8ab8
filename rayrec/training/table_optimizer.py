"""The optimizers of all embedding tables: those that are fused into the backward pass, and torch's."""

from collections.abc import Callable
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torchrec.distributed.model_parallel import DistributedModelParallel

from rayrec.config import TrainConfig
from rayrec.config.train import EmbeddingOptimizerConfig
from rayrec.models.common.tables import EmbeddingTable, Part
from rayrec.training.dense_optimizer import build_wide_optimizer
from rayrec.training.schedule import LearningRates
from rayrec.training.sharding import TablePlan
from rayrec.training.stepped_tables import SteppedTables, build_table_optimizer

_FUSED = {
    "sgd": EmbOptimType.EXACT_SGD,
    "adagrad": EmbOptimType.EXACT_ADAGRAD,
    "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    "adam": EmbOptimType.ADAM,
    "lamb": EmbOptimType.LAMB,
}


def fused_parameters(config: EmbeddingOptimizerConfig) -> dict[str, Any]:
    """What the sharder hands to FBGEMM's table-batched embeddings; nothing where no table has a fused kernel."""
    if config.kind not in _FUSED:
        return {}
    parameters: dict[str, Any] = {"optimizer": _FUSED[config.kind], "learning_rate": config.lr}
    if config.kind != "sgd":
        parameters["eps"] = config.eps
    if config.kind in {"adam", "lamb"}:
        parameters |= {"beta1": config.betas[0], "beta2": config.betas[1], "weight_decay": config.weight_decay}
    return parameters


class TableOptimizer:
    """One state dict over all tables, wherever the plan put them, and a learning rate for each part."""

    def __init__(
        self, config: TrainConfig, tables: DistributedModelParallel, stated: tuple[EmbeddingTable, ...], plan: TablePlan
    ) -> None:
        self._fused = tables.fused_optimizer
        _fill_accumulators(self._fused, config.embedding_optimizer)
        dense = {s.table for s in plan.shards if s.kernel == "dense"}
        builders: dict[Part, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
            "deep": lambda parameters: build_table_optimizer(config.embedding_optimizer, parameters),
            "wide": lambda parameters: build_wide_optimizer(config.wide_optimizer, parameters),
        }
        self._stepped = {
            part: SteppedTables([t.name for t in stated if t.part == part and t.name in dense], tables, build)
            for part, build in builders.items()
        }

    def set_lrs(self, rates: LearningRates) -> None:
        """Must be called before the backward pass that they are meant for."""
        for group in self._fused.param_groups:
            group["lr"] = rates.embeddings
        # Hands the rate to the kernels; there are no gradients to clear.
        self._fused.zero_grad()
        self._stepped["deep"].set_lr(rates.embeddings)
        self._stepped["wide"].set_lr(rates.wide)

    def step(self) -> None:
        """Update the tables with a dense kernel; the others were updated in the backward pass."""
        for stepped in self._stepped.values():
            stepped.step()
        # Only now: TorchRec may keep tables of both parts, and so their gradients, in one tensor.
        for stepped in self._stepped.values():
            stepped.clear_gradients()

    def state_dict(self) -> dict[str, Any]:
        """`<table>.<moment>` -> the tensor that holds it, or this rank's part of it as a ShardedTensor.

        The same names and shapes whether a table is sharded or data-parallel, but for dense Adam's own step.
        Loading happens in place.
        """
        state: dict[str, Any] = {}
        for moments in self._fused.state_dict()["state"].values():
            state |= moments
        for stepped in self._stepped.values():
            state |= stepped.state
        return state

    def restore_step(self, step: int) -> None:
        """Set the count of steps that the bias correction of fused Adam and LAMB uses; dense Adam's is in its state."""
        self._fused.set_optimizer_step(step)


def _fill_accumulators(fused: Any, config: EmbeddingOptimizerConfig) -> None:
    """Begin the sums of squared gradients as the recipe says: FBGEMM's begin at 0."""
    if config.kind not in {"adagrad", "rowwise_adagrad"} or not config.initial_accumulator:
        return
    for moments in fused.state_dict()["state"].values():
        for value in moments.values():
            for shard in value.local_shards():
                shard.tensor.fill_(config.initial_accumulator)
