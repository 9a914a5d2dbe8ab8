"""The learning-rate schedules at their corners."""

import pytest

from rayrec.config import TrainConfig
from rayrec.config.optimizers import LearningRatePiece, LearningRates, ScheduleConfig
from rayrec.recipes import load_recipe

PUBLISHED = ScheduleConfig(warmup_steps=8000, decay_start=48000, decay_steps=24000, decay_power=2)
PIECES = ScheduleConfig(
    warmup_epochs=1.5,
    pieces=(LearningRatePiece(from_epoch=2, factor=0.5), LearningRatePiece(from_epoch=3.5, factor=0.1)),
)
STEPS_PER_EPOCH, ALL_STEPS = 10, 100
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
    # NVIDIA's DLRM: 1 - (8000 - step) / (8000 * 2^warmup_factor).
    (PUBLISHED.model_copy(update={"warmup_factor": 1}), 1, 0.5 + 0.5 / 8000),
    (PUBLISHED.model_copy(update={"warmup_factor": 2}), 4000, 0.875),
    (PUBLISHED.model_copy(update={"warmup_factor": 2}), 8000, 1.0),
    (ScheduleConfig(decay_start=10, decay_steps=10, decay_power=1, end_factor=0.3), 15, 0.5),
    (ScheduleConfig(decay_start=10, decay_steps=10, decay_power=1, end_factor=0.3), 20, 0.3),
    (ScheduleConfig(decay_start=10, decay_steps=10, decay_power=1, end_factor=0.3), 30, 0.3),
    # The last part of the run, however long it is.
    (ScheduleConfig(warmup_steps=20, decay_share=1.0, decay_power=1), 20, 1.0),
    (ScheduleConfig(warmup_steps=20, decay_share=1.0, decay_power=1), 60, 0.5),
    (ScheduleConfig(warmup_epochs=2, decay_share=0.25, decay_power=1), 80, 1.0),
    (ScheduleConfig(warmup_epochs=2, decay_share=0.25, decay_power=1), 95, 0.25),
    (ScheduleConfig(warmup_epochs=2, decay_share=0.25, decay_power=1), 100, 0.0),
    (PIECES, 1, 1 / 15),
    (PIECES, 15, 1.0),
    (PIECES, 16, 1.0),
    (PIECES, 20, 1.0),
    (PIECES, 21, 0.5),
    (PIECES, 35, 0.5),
    (PIECES, 36, 0.1),
    (PIECES, 10**6, 0.1),
    (PIECES.model_copy(update={"decay_start": 30, "decay_steps": 10, "decay_power": 1}), 35, 0.25),
    (PIECES.model_copy(update={"warmup_epochs": 2.2}), 21, 21 / 22),
]


@pytest.mark.parametrize(("config", "step", "factor"), CASES)
def test_factor(config: ScheduleConfig, step: int, factor: float) -> None:
    assert config.factor(step, STEPS_PER_EPOCH, ALL_STEPS) == pytest.approx(factor, rel=2e-3, abs=1e-12)


def test_each_optimizer_has_its_rate() -> None:
    train = TrainConfig.model_validate({
        "embedding_optimizer": {"lr": 2.0},
        "dense_optimizer": {"lr": 3.0},
        "schedule": {"warmup_steps": 4},
        "parts": {
            "wide": {
                "embedding_optimizer": {"lr": 5.0},
                "dense_optimizer": {"lr": 6.0},
                "schedule": {"pieces": [{"from_epoch": 0.1, "factor": 0.5}]},
            },
            "other": {"dense_optimizer": {"lr": 8.0}},
        },
    })  # fmt: skip
    expected = {
        1: {"main": LearningRates(0.5, 0.75), "wide": LearningRates(5.0, 6.0), "other": LearningRates(0.5, 2.0)},
        4: {"main": LearningRates(2.0, 3.0), "wide": LearningRates(2.5, 3.0), "other": LearningRates(2.0, 8.0)},
    }
    assert {step: train.learning_rates(step, STEPS_PER_EPOCH) for step in expected} == expected


@pytest.mark.parametrize(
    ("rows", "drop_last", "steps", "after"),
    [
        (100, True, 3, {1: 30, 3: 90, 4: 120, 6: 180}),
        (100, False, 4, {1: 30, 3: 90, 4: 100, 5: 130, 8: 200}),
        (90, False, 3, {3: 90, 4: 120}),
        (7, False, 1, {1: 7, 2: 14}),
    ],
)
def test_steps_and_samples(rows: int, drop_last: bool, steps: int, after: dict[int, int]) -> None:
    train = TrainConfig.model_validate({"global_batch_size": 30, "ingest": {"drop_last": drop_last}})
    assert train.steps_per_epoch(rows) == steps
    assert {step: train.samples_after(step, rows) for step in after} == after


@pytest.mark.parametrize(
    ("per_epoch", "after", "expected"),
    [
        (0, 0, []),
        (1, 0, [7, 14, 21, 28, 35, 42]),
        (2, 0, [4, 7, 11, 14, 18, 21, 25, 28, 32, 35, 39, 42]),
        (0.5, 0, [14, 28, 42]),
        (0.3333, 0, [21, 42]),
        (2, 1.25, [11, 14, 18, 21, 25, 28, 32, 35, 39, 42]),
        (1, 4.0, [28, 35, 42]),
        (100, 5.5, [39, 40, 41, 42]),
    ],
)
def test_when_evaluations_are_due(per_epoch: float, after: float, expected: list[int]) -> None:
    """Six epochs of seven batches."""
    fields = {"epochs": 6, "evaluations_per_epoch": per_epoch, "evaluate_after_epochs": after}
    train = TrainConfig.model_validate(fields)
    assert [batches for batches in range(1, 43) if train.evaluates_after(batches, 7)] == expected
    if per_epoch <= 7:
        assert train.most_evaluations == len(expected)


@pytest.mark.parametrize(("every", "after", "expected"), [(1, 5.5, [39, 40, 41, 42]), (10, 0, [10, 20, 30, 40])])
def test_evaluations_may_be_counted_in_steps(every: int, after: float, expected: list[int]) -> None:
    """Six epochs of seven batches, whatever `evaluations_per_epoch` says."""
    fields = {"epochs": 6, "evaluate_every_steps": every, "evaluate_after_epochs": after, "evaluations_per_epoch": 0}
    train = TrainConfig.model_validate(fields | {"early_stop": {"target": 0.8}})
    assert [batches for batches in range(1, 43) if train.evaluates_after(batches, 7)] == expected


@pytest.mark.parametrize(
    ("per_epoch", "after", "evaluations"), [(0.4, 0, 3), (0.1, 0, 1), (2, 9, 1), (2, 5.5, 2), (2, 5.6, 1)]
)
def test_the_end_of_training_is_evaluated(per_epoch: float, after: float, evaluations: int) -> None:
    fields = {"epochs": 6, "evaluations_per_epoch": per_epoch, "evaluate_after_epochs": after}
    assert TrainConfig.model_validate(fields).most_evaluations == evaluations


@pytest.mark.parametrize(
    ("order", "epochs", "shuffle", "read_streams"),
    [({}, 1, "none", 1), ({"epochs": 2}, 2, "none", 1), ({"shuffle": "row_groups"}, 1, "row_groups", 7)],
)
def test_a_warm_start_changes_the_order(order: dict[str, object], epochs: int, shuffle: str, read_streams: int) -> None:
    train = TrainConfig.model_validate({
        "epochs": 9,
        "seed": 3,
        "ingest": {"shuffle": "rows", "read_streams": 7, "in_memory": True},
        "initial_weights": {"sources": {"gmf": "run"}},
        "warm_start": order,
    })  # fmt: skip
    warm = train.warm_started()
    assert (warm.epochs, warm.ingest.shuffle, warm.ingest.read_streams) == (epochs, shuffle, read_streams)
    assert warm.progressive and not warm.drops_last and warm.initial_weights is None
    assert warm.ingest.in_memory and warm.seed == 3
    assert warm.warm_started() == warm == TrainConfig.model_validate(warm.model_dump())


@pytest.mark.parametrize(
    ("drop_last", "cold", "warm"), [(None, True, False), (True, True, True), (False, False, False)]
)
def test_which_runs_leave_out_the_last_rows(drop_last: bool | None, cold: bool, warm: bool) -> None:
    train = TrainConfig.model_validate({"ingest": {"drop_last": drop_last}})
    assert (train.drops_last, train.warm_started().drops_last) == (cold, warm)


@pytest.mark.parametrize(
    ("epoch", "factor"),
    [(1, 1 / 6), (3, 0.5), (6, 1.0), (6 + 1 / 457, 0.25), (13, 0.25), (13 + 1 / 457, 0.125), (20, 0.125)],
)
def test_the_published_schedule_of_lean_wide_and_deep(epoch: float, factor: float) -> None:
    """At the last step of an epoch, and at the first of the next; 457 steps an epoch."""
    rates = load_recipe("wide-deep-outbrain-lean").train.learning_rates(round(epoch * 457), 457)
    assert rates["main"].embeddings == rates["main"].dense == pytest.approx(1.2e-4 * factor)
    assert rates["wide"] == LearningRates(0.02, 0.02)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"warmup_steps": 3, "warmup_epochs": 1.0}, "warmup_steps or warmup_epochs, not both"),
        ({"pieces": [{"from_epoch": 2, "factor": 1}, {"from_epoch": 1, "factor": 0.1}]}, "in the order"),
        ({"pieces": [{"from_epoch": 2, "factor": 1}, {"from_epoch": 2, "factor": 0.1}]}, "in the order"),
    ],
)
def test_what_is_no_schedule(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ScheduleConfig.model_validate(changes)
