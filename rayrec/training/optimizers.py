"""Updates of parameters, by the recipe's settings.

Tables are updated by FBGEMM inside the backward pass where it has the optimizer; those that leave a dense gradient, and
the dense network, by torch's optimizers. `TableOptimizer` is both kinds of tables in one state dict.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import Tensor, nn
from torch.optim import Optimizer
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizer

from cuda_ops import rmsprop_
from rayrec.config.optimizers import DenseOptimizerConfig, EmbeddingOptimizerConfig, LearningRates
from rayrec.config.train import TrainConfig
from rayrec.internals import foreach
from rayrec.internals.torchrec import local_shards, set_fused_parameters, sharded_like
from rayrec.models.common.embedding_tables import EmbeddingTable

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
            optimizer = settings.embedding_optimizer
            if optimizer.kind in {"adagrad", "rowwise_adagrad"} and optimizer.initial_accumulator:
                # FBGEMM's sums of squared gradients begin at 0.
                for kernel in kernels:
                    for moments in kernel.state_dict()["state"].values():
                        for value in moments.values():
                            for shard in value.local_shards():
                                shard.tensor.fill_(optimizer.initial_accumulator)
            self._by_part[part] = kernels
            self._add_stepped(part, [n for n in names if n in with_dense_kernel], tables, optimizer)

    def _add_stepped(
        self, part: str, names: Sequence[str], tables: DistributedModelParallel, config: EmbeddingOptimizerConfig
    ) -> None:
        """Give this rank's shards of the tables `names` to a torch optimizer."""
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
        # One optimizer steps all of them; a checkpoint sees its moments as shards of whole tables.
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
        """Return by `<table>.<moment>` the tensor that holds it, or this rank's shards of it as a ShardedTensor.

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


def build_optimizer(
    config: DenseOptimizerConfig | EmbeddingOptimizerConfig, parameters: Sequence[nn.Parameter]
) -> torch.optim.Optimizer:
    """Return the optimizer over `parameters`; its learning rate is set before every step.

    For tables it has the update rule of FBGEMM's fused optimizer, if there is one, and its state exists from the start,
    so that a checkpoint can be loaded into it.
    """
    is_table = isinstance(config, EmbeddingOptimizerConfig)
    momentum = 0.0 if isinstance(config, EmbeddingOptimizerConfig) else config.momentum
    lr, eps, decay, accumulator = config.lr, config.eps, config.weight_decay, config.initial_accumulator
    match config.kind:
        case "sgd":
            return torch.optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=decay)
        case "adagrad":
            return torch.optim.Adagrad(
                parameters, lr=lr, eps=eps, weight_decay=decay, initial_accumulator_value=accumulator
            )
        case "rowwise_adagrad":
            return RowWiseAdagrad(parameters, lr=lr, eps=eps, initial_accumulator_value=accumulator)
        case "rmsprop":
            kind = RMSpropOfTables if is_table else torch.optim.RMSprop
            rmsprop = kind(parameters, lr=lr, alpha=config.rho, eps=eps, momentum=momentum, weight_decay=decay)
            return _with_state(rmsprop, parameters, "square_avg") if is_table else rmsprop
        case "adam" | "adamw":
            # For tables AdamW, as the weight decay of FBGEMM's Adam is decoupled. It updates a row as the fused one
            # does, but all rows at every step. `fused` here: a loop over small parameters took as long as the tables.
            rule = torch.optim.Adam if config.kind == "adam" and not is_table else torch.optim.AdamW
            adam = rule(parameters, lr=lr, betas=config.betas, eps=eps, weight_decay=decay, fused=True)
            return _with_state(adam, parameters, "exp_avg", "exp_avg_sq") if is_table else adam
        case "ftrl":
            return FTRL(
                parameters,
                lr=lr,
                lr_power=config.lr_power,
                initial_accumulator=accumulator,
                l1=config.l1,
                l2=config.l2,
                beta=config.beta,
            )


class RMSpropOfTables(torch.optim.RMSprop):
    """torch's RMSprop without momentum, in one pass over each table (`cuda_ops.rmsprop`)."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient; without a closure."""
        for group in self.param_groups:
            settings = {name: group[name] for name in ("lr", "alpha", "eps", "weight_decay")}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    rmsprop_(parameter, self.state[parameter]["square_avg"], parameter.grad, **settings)


def table_moments(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, Tensor]:
    """Return the optimizer's state of one table as a checkpoint keeps it, by FBGEMM's names if FBGEMM has the
    optimizer.
    """
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
        case torch.optim.SGD():
            return {}
        case _:
            raise AssertionError(f"the state of {type(optimizer).__name__} has no names in checkpoints")


def _with_state(
    optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter], *moments: str
) -> torch.optim.Optimizer:
    """Set the state that torch would make at the first step."""
    for parameter in parameters:
        optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            **{name: torch.zeros_like(parameter) for name in moments},
        }
    return optimizer


class FTRL(Optimizer):
    """FTRL-proximal, for parameters that start at 0; it keeps two moments a coordinate.

    McMahan et al. 2013, "Ad click prediction: a view from the trenches", algorithm 1, as TensorFlow defines it
    (`tf.raw_ops.ResourceApplyFtrlV2`).

    With gradient g, weight w, and n starting at `initial_accumulator`, z at 0:

        n' = n + g^2
        z' = z + g - (n'^-p - n^-p) / lr * w
        w' = (l1 sign(z') - z') / ((n'^-p + beta) / lr + 2 l2) where |z'| > l1, else 0

    where p = `lr_power`, -0.5 in the paper. So w' minimizes the sum of all gradients' linear approximations, each with
    its proximal term, plus l1 |w| + l2 w^2. A coordinate without a gradient keeps its weight while `lr` does: the dense
    update is then that of the coordinates that occur. At `lr` 0 nothing changes.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        *,
        lr: float,
        lr_power: float = -0.5,
        initial_accumulator: float = 0.1,
        l1: float = 0.0,
        l2: float = 0.0,
        beta: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "lr_power": lr_power, "l1": l1, "l2": l2, "beta": beta})
        for group in self.param_groups:
            for parameter in group["params"]:
                # From the start, so that a checkpoint can be loaded into them.
                self.state[parameter] = {
                    "accumulator": torch.full_like(parameter, initial_accumulator),
                    "linear": torch.zeros_like(parameter),
                }

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient; `closure`, if given, computes the loss first."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters and group["lr"] > 0:
                self._update(parameters, group)
        return loss

    def _update(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """Update the parameters by operations over the whole list, as there may be many small tables."""
        lr, l1, power = group["lr"], group["l1"], -group["lr_power"]
        gradients = [cast(Tensor, p.grad) for p in parameters]
        accumulators = [self.state[p]["accumulator"] for p in parameters]
        linears = [self.state[p]["linear"] for p in parameters]

        shifts = _power(accumulators, power)
        foreach.addcmul_(accumulators, gradients, gradients)
        rates = _power(accumulators, power)
        foreach.sub_(shifts, rates)
        foreach.mul_(shifts, parameters)
        foreach.add_(linears, gradients)
        foreach.add_(linears, shifts, alpha=1 / lr)

        foreach.add_(rates, group["beta"])
        foreach.div_(rates, lr)
        foreach.add_(rates, 2 * group["l2"])
        # A coordinate that never had a gradient may have none of these: 0 / 0.
        foreach.clamp_min_(rates, torch.finfo(rates[0].dtype).tiny)
        weights = foreach.clamp_min(linears, -l1)
        foreach.clamp_max_(weights, l1)
        foreach.sub_(weights, linears)
        foreach.div_(weights, rates)
        foreach.copy_(parameters, weights)


def _power(tensors: list[Tensor], exponent: float) -> list[Tensor]:
    return list(foreach.sqrt(tensors) if exponent == 0.5 else foreach.pow(tensors, exponent))
