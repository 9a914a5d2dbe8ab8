"""torch's optimizers over tables whose kernel leaves a dense gradient, and what a checkpoint keeps of their state."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.optim import RowWiseAdagrad

from rayrec.config.train import EmbeddingOptimizerConfig
from rayrec.training.ftrl import FTRL


class SteppedTables:
    """A torch optimizer over this rank's part of tables whose kernel leaves a dense gradient."""

    def __init__(
        self,
        names: list[str],
        tables: DistributedModelParallel,
        build: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    ) -> None:
        weights = tables.state_dict()
        parameters = dict(tables.named_parameters())
        # Pairs of TorchRec's parameter, which gets the gradient, and a plain one that shares its memory.
        self._pairs: list[tuple[nn.Parameter, nn.Parameter]] = []
        held: list[tuple[str, Tensor | ShardedTensor, nn.Parameter]] = []
        for name in names:
            key = f"embeddings.embedding_bags.{name}.weight"
            weight = weights[key]
            local = [s.tensor for s in weight.local_shards()] if isinstance(weight, ShardedTensor) else [weight]
            for tensor in local:  # one, or none where other ranks hold the table
                own = nn.Parameter(tensor)
                self._pairs.append((parameters[key], own))
                held.append((name, weight, own))
        self._optimizer = build([own for _, own in self._pairs]) if self._pairs else None
        self.state: dict[str, Tensor | ShardedTensor] = {}
        """`<table>.<moment>`, sharded as the weights are; shares memory with the optimizer."""
        if self._optimizer is not None:
            for name, weight, own in held:
                for moment, value in _moments(self._optimizer, own).items():
                    self.state[f"{name}.{moment}"] = _sharded_alike(value, weight)

    def set_lr(self, lr: float) -> None:
        if self._optimizer is not None:
            for group in self._optimizer.param_groups:
                group["lr"] = lr

    def step(self) -> None:
        if self._optimizer is None:
            return
        for theirs, own in self._pairs:
            own.grad = theirs.grad
        self._optimizer.step()

    def clear_gradients(self) -> None:
        for theirs, own in self._pairs:
            theirs.grad = own.grad = None


def _sharded_alike(moment: Tensor, weight: Tensor | ShardedTensor) -> Tensor | ShardedTensor:
    """A moment of this rank's one shard of `weight` as a part of the whole table's."""
    if not isinstance(weight, ShardedTensor) or moment.ndim == 0:
        return moment
    (shard,) = weight.local_shards()
    return ShardedTensor._init_from_local_shards_and_global_metadata(
        local_shards=[Shard(moment, shard.metadata)], sharded_tensor_metadata=weight.metadata()
    )


def build_table_optimizer(config: EmbeddingOptimizerConfig, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """The torch optimizer with the update rule of the fused one, or of the only one; its state is there from the start,
    to be loaded into."""
    match config.kind:
        case "sgd":
            return torch.optim.SGD(parameters, lr=config.lr)
        case "adagrad":
            return torch.optim.Adagrad(
                parameters, lr=config.lr, eps=config.eps, initial_accumulator_value=config.initial_accumulator
            )
        case "rowwise_adagrad":
            return RowWiseAdagrad(
                parameters, lr=config.lr, eps=config.eps, initial_accumulator_value=config.initial_accumulator
            )
        case "rmsprop":
            optimizer: torch.optim.Optimizer = torch.optim.RMSprop(
                parameters, lr=config.lr, alpha=config.rho, eps=config.eps
            )
            _start(optimizer, parameters, "square_avg")
            return optimizer
        case "adam":
            # AdamW, as the weight decay of FBGEMM's Adam is decoupled. It is the fused one's twin in the update of a
            # row, not in which rows it updates: all of them at every step.
            optimizer = torch.optim.AdamW(
                parameters,
                lr=config.lr,
                betas=config.betas,
                eps=config.eps,
                weight_decay=config.weight_decay,
                fused=True,
            )
            _start(optimizer, parameters, "exp_avg", "exp_avg_sq")
            return optimizer
        case other:
            raise AssertionError(f"the planner gives no table a dense kernel under {other}")


def _start(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], *moments: str) -> None:
    """Set the state that torch would make at the first step."""
    for parameter in parameters:
        optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            **{name: torch.zeros_like(parameter) for name in moments},
        }


def _moments(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, Tensor]:
    """What a checkpoint keeps of the optimizer's state for one table, by FBGEMM's names where it has the optimizer."""
    state = optimizer.state[parameter]
    match optimizer:
        case FTRL():
            return {"accumulator": state["accumulator"], "linear": state["linear"]}
        case torch.optim.RMSprop():
            return {"square_avg": state["square_avg"]}
        case torch.optim.AdamW():
            return {"momentum1": state["exp_avg"], "exp_avg_sq": state["exp_avg_sq"], "step": state["step"]}
        case RowWiseAdagrad():
            # It keeps (rows, 1); its fused twin has (rows,).
            return {"momentum1": state["sum"].view(-1)}
        case torch.optim.Adagrad():
            return {"momentum1": state["sum"]}
        case _:
            return {}
