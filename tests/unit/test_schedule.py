"""The learning-rate schedule at its corners."""

import pytest

from rayrec.config.train import ScheduleConfig
from rayrec.training.schedule import lr_factor

PUBLISHED = ScheduleConfig(warmup_steps=8000, decay_start=48000, decay_steps=24000, decay_power=2)
CASES = [
    (ScheduleConfig(), 1, 1.0),
    (ScheduleConfig(), 10**9, 1.0),
    (PUBLISHED, 1, 1 / 8000),
    (PUBLISHED, 8000, 1.0),
    (PUBLISHED, 47999, 1.0),
    (PUBLISHED, 48000, 1.0),
    (PUBLISHED, 60000, 0.25),
    # As published: one epoch of Criteo Terabyte ends at step 64,014 with a learning rate of 2.66 out of 24.
    (PUBLISHED, 64014, 2.66 / 24),
    (PUBLISHED, 72000, 0.0),
    (PUBLISHED, 80000, 0.0),
    (ScheduleConfig(decay_start=10, decay_steps=10, decay_power=1, end_factor=0.3), 15, 0.5),
    (ScheduleConfig(decay_start=10, decay_steps=10, decay_power=1, end_factor=0.3), 20, 0.3),
    (ScheduleConfig(decay_start=10, decay_steps=10, decay_power=1, end_factor=0.3), 30, 0.3),
]


@pytest.mark.parametrize(("config", "step", "factor"), CASES)
def test_factor(config: ScheduleConfig, step: int, factor: float) -> None:
    assert lr_factor(config, step) == pytest.approx(factor, rel=2e-3, abs=1e-12)
