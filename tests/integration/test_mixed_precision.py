"""float16 and bfloat16: the tables see unscaled gradients, an overflow on one rank changes nothing on any."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from rayrec.config.train import IngestConfig
from rayrec.ingest.dataset import Dataset
from rayrec.ingest.loader import open_batches
from rayrec.models.common.precision import resolve_precision
from rayrec.training.loop.micro_batches import BatchTotals
from rayrec.training.loop.step import TrainStep
from rayrec.training.parallel.parallel_model import ParallelModel
from rayrec.training.parallel.ranks import RankContext
from rayrec.training.run.folder import checkpoint_name
from tests.builders import make_dataset
from tests.ranks import run_ranks
from tests.training_runs import Case, logits_under, losses, recipe, run_cases

FTRL = {"kind": "ftrl", "lr": 0.2, "initial_accumulator": 0.1}
SHARDING = {"tables": {"C1": "row_wise", "C2": "data_parallel"}, "default": "table_wise", "memory_per_worker": "1GB"}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("precision") / "data"
    make_dataset(folder, {"train": 2_000, "test": 100}, numeric=3, categorical=4, seed=2)
    return folder


def test_losses_follow_those_of_float32(dataset: Path, tmp_path: Path) -> None:
    """With the loss scaled by 65,536, tables that saw scaled gradients would be far off after one step."""
    cases = {name: recipe(precision=name, max_steps=10, sharding=SHARDING) for name in ("fp32", "fp16", "bf16")}
    run_cases(2, dataset, [Case(tmp_path / name, case) for name, case in cases.items()])
    expected = losses(tmp_path / "fp32")
    assert losses(tmp_path / "fp16") == pytest.approx(expected, rel=5e-3)
    assert losses(tmp_path / "bf16") == pytest.approx(expected, rel=3e-2)
    assert losses(tmp_path / "fp16") != expected


def test_pooled_embeddings_travel_in_half(dataset: Path, tmp_path: Path) -> None:
    """Losses and weights are near those of float32 on the wire, not the same; evaluations are those of float32."""
    adagrad = {"embedding_optimizer": {"kind": "adagrad", "lr": 0.1}, "max_steps": 10}
    cases = {name: recipe(sharding={**SHARDING, "wire": name}, **adagrad) for name in ("fp32", "bf16", "auto")}
    run_cases(2, dataset, [Case(tmp_path / name, case) for name, case in cases.items()])
    expected = losses(tmp_path / "fp32")
    assert losses(tmp_path / "bf16") == pytest.approx(expected, rel=1e-2) and losses(tmp_path / "bf16") != expected
    assert losses(tmp_path / "auto") == expected, "a CPU has nothing to gain"
    checkpoint = tmp_path / "bf16" / "checkpoints" / checkpoint_name(10)
    logits = []
    for name in ("fp32", "bf16"):
        (tmp_path / f"logits-{name}").mkdir()
        logits += logits_under([cases[name]], 2, dataset, checkpoint, tmp_path / f"logits-{name}")
    assert torch.equal(*logits)


def test_pooled_embeddings_are_used_in_half(dataset: Path, tmp_path: Path) -> None:
    """As on GPUs, with penalties and the columns of padded tables: near float32 in training, exact in evaluations."""
    run_ranks(_used_in_half, str(tmp_path / "rendezvous"), str(dataset), ranks=2)


def _used_in_half(rank: int, rendezvous: str, data: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    dataset, context = Dataset.open(data), RankContext(rank, 2, 2, torch.device("cpu"))
    wide_deep = {"kind": "wide_deep", "embedding_dim": 8, "mlp": [16]}
    wide = {"wide": {"embedding_optimizer": {"kind": "adagrad", "lr": 0.1}, "embedding_l2": 0.0}}
    sharding = {"tables": {"C1": "row_wise"}, "default": "table_wise", "memory_per_worker": "1GB"}
    config = recipe(model=wide_deep, precision="bf16", parts=wide, sharding=sharding, **PENALIZED)
    formats = {"float32": (torch.float32, torch.float32), "half": (torch.bfloat16, torch.bfloat16)}
    losses: dict[str, list[float]] = {}
    scores = {}
    for name, (wire, pooled) in formats.items():
        model = ParallelModel(config, dataset.schema, context, wire, pooled)
        step = TrainStep(model, config.train, resolve_precision("bf16", "cpu"), steps_per_epoch=31)
        with open_batches(
            dataset, "train", config.train.ingest, global_batch_size=64, rank=rank, world_size=2, drop_last=True
        ) as loader:
            batches = list(loader)
        scores[name] = model.logits(batches[0])
        assert model.pooled(batches[0]).dtype == pooled
        losses[name] = [
            step(batch, BatchTotals(64, None), number).loss.item() for number, batch in enumerate(batches[:10], 1)
        ]
    assert scores["half"].equal(scores["float32"])
    assert losses["half"] == pytest.approx(losses["float32"], rel=2e-2) and losses["half"] != losses["float32"]
    dist.destroy_process_group()


def _overflow(rank: int, rendezvous: str, data: str, changes: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    dataset = Dataset.open(data)
    config = recipe(precision="fp16", **changes)
    context = RankContext(rank=rank, world_size=2, local_world_size=2, device=torch.device("cpu"))
    model = ParallelModel(config, dataset.schema, context)
    step = TrainStep(model, config.train, resolve_precision("fp16", "cpu"), steps_per_epoch=31)
    reader = open_batches(
        dataset, "train", IngestConfig(in_memory=True), global_batch_size=64, rank=rank, world_size=2, drop_last=True
    )

    def everything() -> dict[str, torch.Tensor]:
        tensors = {**model.state_dict(), **model.table_optimizer.state_dict()}
        for part, optimizer in step.dense_optimizers.items():
            for number, state in enumerate(optimizer.state.values()):
                # torch's Adagrad counts its steps, though without a decay of the rate nothing depends on them.
                left_out = {"step"} if isinstance(optimizer, torch.optim.Adagrad) else set()
                tensors |= {f"{part}.{number}.{name}": state[name] for name in state.keys() - left_out}
        return {
            name: (value.local_shards()[0].tensor if value.local_shards() else torch.empty(0)).clone()
            if hasattr(value, "local_shards")
            else value.clone()
            for name, value in tensors.items()
        }

    def changed(before: dict[str, torch.Tensor]) -> set[str]:
        return {name for name, value in everything().items() if name not in before or not value.equal(before[name])}

    with reader as batches:
        good, bad, again = (batch for batch, _ in zip(batches, range(3), strict=False))
    if rank == 1:
        bad.dense[3, 0] = 1e30
    before = everything()
    assert step(good, BatchTotals(64, None), 1).overflow == 0
    assert changed(before), "a good step changes this rank's part"
    before = everything()
    assert step(bad, BatchTotals(64, None), 2).overflow == 1, "rank 0 must notice what only rank 1 met"
    assert not changed(before)
    expected = 32768.0 if config.train.loss_scale == "dynamic" else config.train.loss_scale
    assert step.loss_scale is not None and step.loss_scale.scale.item() == expected
    assert step(again, BatchTotals(64, None), 3).overflow == 0
    assert changed(before)
    dist.destroy_process_group()


PENALIZED: dict[str, Any] = {"embedding_optimizer": {"kind": "rowwise_adagrad", "lr": 0.1}, "embedding_l2": 0.1}
"""The penalty has a gradient whether or not there is an overflow."""
OVERFLOWS = {
    "dlrm": {"sharding": SHARDING, "embedding_optimizer": {"kind": "adagrad", "lr": 0.1}},
    "dense adam": {"sharding": SHARDING, **PENALIZED, "dense_optimizer": {"kind": "adamw", "lr": 0.1}},
    "dense adagrad": {"sharding": SHARDING, **PENALIZED, "dense_optimizer": {"kind": "adagrad", "lr": 0.1}},
    "static scale": {"sharding": SHARDING, "loss_scale": 1024.0},
    "dense momentum": {"sharding": SHARDING, "dense_optimizer": {"kind": "sgd", "lr": 0.1, "momentum": 0.9}},
    "wide_deep": {
        "model": {"kind": "wide_deep", "embedding_dim": 8, "mlp": [16]},
        "sharding": {**SHARDING, "tables": {"C1": "row_wise", "C2_wide": "data_parallel", "C3_wide": "row_wise"}},
        "embedding_optimizer": {"kind": "rmsprop", "lr": 0.1},
        "dense_optimizer": {"kind": "rmsprop", "lr": 0.1},
        "parts": {"wide": {"embedding_optimizer": FTRL, "dense_optimizer": FTRL}},
    },
}


@pytest.mark.parametrize("case", OVERFLOWS)
def test_an_overflow_changes_nothing_on_any_rank(dataset: Path, tmp_path: Path, case: str) -> None:
    run_ranks(_overflow, str(tmp_path / "rendezvous"), str(dataset), OVERFLOWS[case], ranks=2)


class _Waits(TorchDispatchMode):
    """Counts what would wait for a GPU: numbers of tensors that the host reads."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("precision", "changes", "waits"),
    [
        ("fp16", {}, 0),
        ("fp16", {"embedding_l2": 0.1, "dense_optimizer": {"kind": "adam", "lr": 0.1}, "gradient_accumulation": 2}, 0),
        ("bf16", {"dense_optimizer": {"kind": "rmsprop", "lr": 0.1}, "loss": {"listwise": 0.5}}, 0),
        ("fp16", {"dense_optimizer": {"kind": "sgd", "lr": 0.1, "momentum": 0.9}}, 1),
    ],
)
def test_a_step_waits_for_the_device_only_if_the_host_must_know(
    tmp_path: Path, precision: Any, changes: dict[str, Any], waits: int
) -> None:
    dataset = make_dataset(tmp_path / "data", 200, group_sizes=(3, 5), weight=True)
    config = recipe(precision=precision, **changes)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        context = RankContext(rank=0, world_size=1, local_world_size=1, device=torch.device("cpu"))
        model = ParallelModel(config, dataset.schema, context)
        step = TrainStep(model, config.train, resolve_precision(precision, "cpu"), steps_per_epoch=3)
        with open_batches(
            dataset, "train", config.train.ingest, global_batch_size=64, drop_last=True, whole_groups=True
        ) as loader:
            first, second, third = loader
        totals = BatchTotals(torch.tensor(60.0), torch.tensor(20.0))
        step(first, totals, 1, second)
        with _Waits() as waited:
            step(second, totals, 2, third)
    finally:
        dist.destroy_process_group()
    assert waited.count == waits
