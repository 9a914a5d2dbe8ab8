"""Learning rates by step: linear warm-up, then pieces times polynomial decay."""

from dataclasses import dataclass

from rayrec.config.train import PartConfig, ScheduleConfig, TrainConfig


@dataclass(frozen=True)
class LearningRates:
    """The rates of one part of a model in one step."""

    embeddings: float
    dense: float


def learning_rates(train: TrainConfig, step: int, steps_per_epoch: int) -> dict[str, LearningRates]:
    """The rates of every part at optimizer step `step`, counted from 1."""

    def rates(part: PartConfig) -> LearningRates:
        factor = lr_factor(part.schedule, step, steps_per_epoch)
        return LearningRates(part.embedding_optimizer.lr * factor, part.dense_optimizer.lr * factor)

    return {name: rates(part) for name, part in train.by_part.items()}


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
