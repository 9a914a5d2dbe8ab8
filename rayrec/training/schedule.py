"""The learning-rate schedule: linear warm-up, constant, polynomial decay."""

from rayrec.config.train import ScheduleConfig


def lr_factor(config: ScheduleConfig, step: int) -> float:
    """The factor on every learning rate at optimizer step `step`, counted from 1.

    step <= warmup_steps: step / warmup_steps. step >= decay_start: max(0, (decay_start + decay_steps - step) /
    decay_steps)^decay_power, at least end_factor. In between: 1.
    """
    if step <= config.warmup_steps:
        return step / config.warmup_steps
    if config.decay_start is not None and step >= config.decay_start:
        left = max(0.0, (config.decay_start + config.decay_steps - step) / config.decay_steps)
        return max(left**config.decay_power, config.end_factor)
    return 1.0
