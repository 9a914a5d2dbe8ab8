"""Learning rates by step: linear warm-up, then pieces times polynomial decay."""

from dataclasses import dataclass

from rayrec.config import TrainConfig
from rayrec.config.train import ScheduleConfig


@dataclass(frozen=True)
class LearningRates:
    """Of one step."""

    embeddings: float
    dense: float
    wide: float


def learning_rates(config: TrainConfig, step: int, steps_per_epoch: int) -> LearningRates:
    """At optimizer step `step`, counted from 1."""
    factor = lr_factor(config.schedule, step, steps_per_epoch)
    return LearningRates(
        embeddings=config.embedding_optimizer.lr * factor,
        dense=config.dense_optimizer.lr * factor,
        wide=config.wide_optimizer.lr * lr_factor(config.wide_schedule, step, steps_per_epoch),
    )


def lr_factor(config: ScheduleConfig, step: int, steps_per_epoch: int) -> float:
    """The factor of a schedule (see `ScheduleConfig`) at optimizer step `step`, counted from 1."""
    warmup = config.warmup_steps or config.warmup_epochs * steps_per_epoch
    if step <= warmup:
        return step / warmup
    begun = [piece.factor for piece in config.pieces if step > piece.from_epoch * steps_per_epoch]
    factor = begun[-1] if begun else 1.0
    if config.decay_start is not None and step >= config.decay_start:
        left = max(0.0, (config.decay_start + config.decay_steps - step) / config.decay_steps)
        factor *= max(left**config.decay_power, config.end_factor)
    return factor
