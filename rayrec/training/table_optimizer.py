"""Optimizers of the embedding tables: fused into the backward pass, and a dense twin for data-parallel tables."""

from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.optim import RowWiseAdagrad

from rayrec.config.train import EmbeddingOptimizerConfig
from rayrec.training.sharding import TablePlan

_FUSED = {
    "sgd": EmbOptimType.EXACT_SGD,
    "adagrad": EmbOptimType.EXACT_ADAGRAD,
    "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    "adam": EmbOptimType.ADAM,
    "lamb": EmbOptimType.LAMB,
}


def fused_parameters(config: EmbeddingOptimizerConfig) -> dict[str, Any]:
    """What the sharder hands to FBGEMM's table-batched embeddings."""
    parameters: dict[str, Any] = {"optimizer": _FUSED[config.kind], "learning_rate": config.lr}
    if config.kind != "sgd":
        parameters["eps"] = config.eps
    if config.kind in {"adam", "lamb"}:
        parameters |= {"beta1": config.betas[0], "beta2": config.betas[1], "weight_decay": config.weight_decay}
    return parameters


class TableOptimizer:
    """One learning rate and one state dict over all tables, wherever the plan put them."""

    def __init__(self, config: EmbeddingOptimizerConfig, tables: DistributedModelParallel, plan: TablePlan) -> None:
        self._fused = tables.fused_optimizer
        replicated = {s.table for s in plan.shards if s.sharding == "data_parallel"}
        parameters = dict(tables.named_parameters())
        self._replicated: dict[str, nn.Parameter] = {
            name: parameters[f"embeddings.embedding_bags.{name}.weight"] for name in sorted(replicated)
        }
        self._dense = _dense_twin(config, list(self._replicated.values())) if replicated else None

    def set_lr(self, lr: float) -> None:
        """Must be called before the backward pass that it is meant for."""
        for group in self._fused.param_groups:
            group["lr"] = lr
        # Hands the rate to the kernels; there are no gradients to clear.
        self._fused.zero_grad()
        if self._dense is not None:
            for group in self._dense.param_groups:
                group["lr"] = lr

    def step(self) -> None:
        """Update the data-parallel tables; the others were updated in the backward pass."""
        if self._dense is not None:
            self._dense.step()
            self._dense.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """`<table>.<moment>` -> the tensor that holds it, or this rank's part of it as a ShardedTensor.

        The same names and shapes whether a table is sharded or data-parallel, but for dense Adam's own step.
        Loading happens in place.
        """
        state: dict[str, Any] = {}
        for moments in self._fused.state_dict()["state"].values():
            state |= moments
        if self._dense is not None:
            for name, parameter in self._replicated.items():
                moments = self._dense.state[parameter]
                if isinstance(self._dense, torch.optim.AdamW):
                    state[f"{name}.momentum1"] = moments["exp_avg"]
                    state[f"{name}.exp_avg_sq"] = moments["exp_avg_sq"]
                    state[f"{name}.step"] = moments["step"]
                elif "sum" in moments:
                    # Row-wise Adagrad keeps (rows, 1); its fused twin has (rows,).
                    is_rowwise = isinstance(self._dense, RowWiseAdagrad)
                    state[f"{name}.momentum1"] = moments["sum"].view(-1) if is_rowwise else moments["sum"]
        return state

    def restore_step(self, step: int) -> None:
        """Set the count of steps that the bias correction of fused Adam and LAMB uses; dense Adam's is in its state."""
        self._fused.set_optimizer_step(step)


def _dense_twin(config: EmbeddingOptimizerConfig, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """The torch optimizer with the update rule of the fused one."""
    match config.kind:
        case "sgd":
            return torch.optim.SGD(parameters, lr=config.lr)
        case "adagrad":
            return torch.optim.Adagrad(parameters, lr=config.lr, eps=config.eps)
        case "rowwise_adagrad":
            return RowWiseAdagrad(parameters, lr=config.lr, eps=config.eps)
        case "adam":
            return _dense_adam(config, parameters)
        case other:
            raise AssertionError(f"the planner does not replicate tables under {other}")


def _dense_adam(config: EmbeddingOptimizerConfig, parameters: list[nn.Parameter]) -> torch.optim.AdamW:
    """AdamW, as the weight decay of FBGEMM's Adam is decoupled; its state is there from the start, to be loaded into.

    It is the fused one's twin in the update of a row, not in which rows it updates: all of them at every step.
    """
    optimizer = torch.optim.AdamW(
        parameters, lr=config.lr, betas=config.betas, eps=config.eps, weight_decay=config.weight_decay, fused=True
    )
    for parameter in parameters:
        optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer
