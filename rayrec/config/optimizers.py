"""Optimizers and schedules of learning rates: how each part of a model is trained."""

from typing import Annotated, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from rayrec.config.base import Config


class OptimizerConfig(Config):
    """The settings of every kind of optimizer; a kind reads those that its equation has."""

    _without_weight_decay: ClassVar[frozenset[str]] = frozenset({"ftrl"})

    kind: str
    lr: PositiveFloat = 24.0
    """Learning rate, before the factor of the schedule; a recipe has the default of its model (`model`)."""
    eps: PositiveFloat = 1e-8
    """Constant that keeps adaptive kinds from dividing by 0."""
    rho: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the mean of squared gradients in `rmsprop`."""
    initial_accumulator: NonNegativeFloat = 0.0
    """Start of the sum of squared gradients in `adagrad`, `rowwise_adagrad` and `ftrl`; TensorFlow has 0.1."""
    weight_decay: NonNegativeFloat = 0.0
    """Weight of |w|^2 / 2 in the objective. Decoupled in `adamw`, and in `adam` of tables."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decays of the means of gradients and of their squares in `adam` and `adamw`."""
    lr_power: Annotated[float, Field(le=0)] = -0.5
    """Exponent of the sum of squared gradients in `ftrl`."""
    l1: NonNegativeFloat = 0.0
    """Weight of |w| in `ftrl`."""
    l2: NonNegativeFloat = 0.0
    """Weight of w^2 in `ftrl`, as in TensorFlow; half of McMahan's lambda_2."""
    beta: NonNegativeFloat = 0.0
    """Constant added to the root of the sum of squared gradients in `ftrl`."""

    @model_validator(mode="after")
    def _decays_weights_where_it_can(self) -> Self:
        if self.weight_decay and self.kind in self._without_weight_decay:
            raise ValueError(f"weight_decay is not available for '{self.kind}' here; set it to 0")
        return self


class EmbeddingOptimizerConfig(OptimizerConfig):
    """The optimizer of embedding tables.

    It runs inside the backward pass where FBGEMM has a kernel. Data-parallel tables, and all under `rmsprop` and
    `ftrl`, get dense gradients and torch's optimizer with the same rule. `adam` on a CPU needs `sharding.default:
    data_parallel` and is then dense: it also moves rows that the batch does not use, as in the published NCF; fused, it
    updates the batch's rows only. `weight_decay` of `sgd` and `adagrad` needs `data_parallel` too, as it shrinks every
    row at every step. `ftrl` is FTRL-proximal (McMahan et al. 2013).
    """

    _without_weight_decay: ClassVar[frozenset[str]] = frozenset({"rowwise_adagrad", "ftrl"})

    kind: Literal["sgd", "adagrad", "rowwise_adagrad", "rmsprop", "adam", "ftrl"] = "sgd"
    """Update rule; `rowwise_adagrad` keeps one sum for each row of a table."""


class DenseOptimizerConfig(OptimizerConfig):
    """The optimizer of everything but the embedding tables."""

    kind: Literal["sgd", "adagrad", "rmsprop", "adam", "adamw", "ftrl"] = "sgd"
    """Update rule."""
    momentum: NonNegativeFloat = 0.0
    """Momentum of `sgd` and `rmsprop`."""


class LearningRatePiece(Config):
    """A factor on learning rates from some epoch on."""

    from_epoch: NonNegativeFloat
    """Epochs done when it begins; 6.5 is the middle of the seventh."""
    factor: NonNegativeFloat
    """Factor from then on."""


class ScheduleConfig(Config):
    """Factor on learning rates: linear warm-up, then pieces times polynomial decay.

    At step s of N, with n steps an epoch, w = warmup_steps or warmup_epochs * n, and b = 1 - 2^-warmup_factor:
    b + (1 - b) * s/w up to w. Then the factor of the last piece that began (1 before the first) times, from decay_start
    on, max(((decay_start + decay_steps - s) / decay_steps)^decay_power, end_factor). With decay_share d, decay_steps is
    d * (N - w), and the decay reaches 0 at N.
    """

    warmup_steps: NonNegativeInt = 0
    """Steps until the factor is 1."""
    warmup_epochs: NonNegativeFloat = 0.0
    """Epochs until the factor is 1, instead of `warmup_steps`."""
    warmup_factor: NonNegativeFloat = 0.0
    """Start of the warm-up, as in NVIDIA's DLRM: 0 begins at 0, 1 at 1/2, 2 at 3/4."""
    pieces: tuple[LearningRatePiece, ...] = ()
    """Factors by epoch, in order."""
    decay_start: PositiveInt | None = None
    """Step at which the decay begins; `null`: no decay."""
    decay_steps: PositiveInt = 24_000
    """Steps from `decay_start` until 0."""
    decay_share: Annotated[float, Field(gt=0, le=1)] | None = None
    """Fraction of the steps after the warm-up that decay, instead of the two above."""
    decay_power: PositiveFloat = 2.0
    """Exponent of the decay; 1 is linear."""
    end_factor: NonNegativeFloat = 0.0
    """Least factor of the decay."""

    @model_validator(mode="after")
    def _is_one_schedule(self) -> "ScheduleConfig":
        if self.warmup_steps and self.warmup_epochs:
            raise ValueError("give warmup_steps or warmup_epochs, not both")
        if self.decay_start is not None and self.decay_share is not None:
            raise ValueError("give decay_start or decay_share, not both")
        begins = [piece.from_epoch for piece in self.pieces]
        if begins != sorted(set(begins)):
            raise ValueError("pieces must be in the order of their from_epoch, each of which differs")
        return self

    def factor(self, step: int, steps_per_epoch: int, all_steps: int) -> float:
        """Return the factor at optimizer step `step`, counted from 1, of a run of `all_steps`."""
        # Warm-up: linear from its beginning to 1.
        warmup = self.warmup_steps or self.warmup_epochs * steps_per_epoch
        if step <= warmup:
            begin = 1 - 2**-self.warmup_factor
            return begin + (1 - begin) * step / warmup
        # The last piece that has begun.
        begun = [piece.factor for piece in self.pieces if step > piece.from_epoch * steps_per_epoch]
        factor = begun[-1] if begun else 1.0
        # Polynomial decay: given in steps, or as a share of the run, at whose end it is over.
        start: float | None = self.decay_start
        steps: float = self.decay_steps
        if self.decay_share is not None:
            steps = self.decay_share * max(1, all_steps - warmup)
            start = all_steps - steps
        if start is not None and step >= start:
            left = max(0.0, (start + steps - step) / steps)
            factor *= max(left**self.decay_power, self.end_factor)
        return factor


MAIN_PART = "main"
"""The part of a model that belongs to no other part."""


class LearningRates(NamedTuple):
    """The rates of one part of a model in one step."""

    embeddings: float
    dense: float


class PartConfig(Config):
    """Training of a part of the model."""

    embedding_optimizer: EmbeddingOptimizerConfig = EmbeddingOptimizerConfig()
    """Optimizer of the embedding tables."""
    dense_optimizer: DenseOptimizerConfig = DenseOptimizerConfig()
    """Optimizer of everything else."""
    schedule: ScheduleConfig = ScheduleConfig()
    """Factor on the learning rates of both optimizers."""
    embedding_l2: NonNegativeFloat = 0.0
    """L2 penalty on each row's pooled embeddings e: embedding_l2 / 2 * |e|^2 is added to its loss (Rendle et al.
    2020, arXiv:2005.09683).
    """
