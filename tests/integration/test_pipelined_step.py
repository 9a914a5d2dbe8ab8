"""Sending the ids of the next batch ahead changes no bit of what a step computes, for any model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from rayrec.ingest.dataset import Dataset
from rayrec.models.common.batch import Batch
from rayrec.models.common.precision import resolve_precision
from rayrec.recipes import Recipe
from rayrec.training.loop.micro_batches import BatchTotals
from rayrec.training.loop.splits import SplitReader, evaluate_split
from rayrec.training.loop.step import TrainStep
from rayrec.training.parallel.parallel_model import ParallelModel
from rayrec.training.parallel.ranks import RankContext
from tests.builders import make_dataset, make_pairs_dataset
from tests.ranks import run_ranks
from tests.training_runs import Case, recipe, require_same_bits, run_cases

STEPS = 6
OVERFLOWS_AT = 3
EVALUATED_AFTER = 4
ADAGRAD = {"kind": "adagrad", "lr": 0.1}
FTRL = {"kind": "ftrl", "lr": 0.2, "initial_accumulator": 0.1}
MIXED = {"C1": "row_wise", "C2": "data_parallel", "C3": "column_wise", "M1": "row_wise"}


def _sharding(**tables: str) -> dict[str, Any]:
    return {"default": "table_wise", "tables": tables, "memory_per_worker": "1GB"}


MODELS: dict[str, dict[str, Any]] = {
    "dlrm": {"sharding": _sharding(**MIXED), "gradient_accumulation": 3},
    "dcnv2": {
        "model": {
            "kind": "dcnv2",
            "embedding_dim": 8,
            "bottom_mlp": [8],
            "cross_layers": 2,
            "cross_rank": 4,
            "top_mlp": [8],
        },
        "sharding": _sharding(**MIXED),
        "dense_optimizer": {"kind": "adam", "lr": 0.01},
    },
    "wide_deep": {
        "model": {"kind": "wide_deep", "embedding_dim": 8, "mlp": [16], "dropout": 0.5},
        "sharding": _sharding(C1="row_wise", C2_wide="data_parallel", C3_wide="row_wise", M1_wide="row_wise"),
        "parts": {"wide": {"embedding_optimizer": FTRL, "dense_optimizer": FTRL}},
        "gradient_accumulation": 2,
    },
    "neumf": {
        "model": {"kind": "neumf", "factors": 4, "mlp": [8, 4], "dropout": 0.5},
        "source": "interactions",
        "embedding_optimizer": ADAGRAD,
        "dense_optimizer": {"kind": "adamw", "lr": 0.01},
        "sharding": _sharding(item="row_wise"),
    },
}
"""Recipes with shardings of all kinds, of which some gather gradients in parts."""


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pipelined")
    make_dataset(folder / "rows", {"train": 1_000, "test": 200}, categorical=4, multi_hot=2, seed=1)
    make_pairs_dataset(folder / "pairs", {"train": 1_000, "test": 200})
    return {name: folder / ("pairs" if name == "neumf" else "rows") for name in MODELS}


def _recipe(model: str, **train: Any) -> Recipe:
    return recipe(**{"embedding_optimizer": ADAGRAD, "max_steps": STEPS, **MODELS[model], **train})


@pytest.mark.parametrize("model", MODELS)
def test_equals_the_plain_step(datasets: dict[str, Path], tmp_path: Path, model: str) -> None:
    """In float16, with a batch that overflows on one rank and an evaluation between two steps."""
    content = _recipe(model, precision="fp16").model_dump(mode="json")
    run_ranks(_compare, str(tmp_path / "rendezvous"), str(datasets[model]), content, ranks=2)


def _compare(rank: int, rendezvous: str, data: str, content: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    dataset, config = Dataset.open(data), Recipe.model_validate(content)
    context = RankContext(rank=rank, world_size=2, local_world_size=2, device=torch.device("cpu"))
    splits = SplitReader(dataset, config.train.ingest, context)
    with splits.open("train", global_batch_size=64, drop_last=True, seed=1) as loader:
        batches = [batch for batch, _ in zip(loader, range(STEPS), strict=False)]
    plain = _train(config, dataset, context, splits, batches, ahead=False)
    pipelined = _train(config, dataset, context, splits, batches, ahead=True)
    assert plain.keys() == pipelined.keys()
    for name, value in plain.items():
        assert value.equal(pipelined[name]), name
    dist.destroy_process_group()


def _train(
    config: Recipe,
    dataset: Dataset,
    context: RankContext,
    splits: SplitReader,
    batches: Sequence[Batch],
    *,
    ahead: bool,
) -> dict[str, Tensor]:
    """Train on `batches`; this rank's part of all that a checkpoint holds, and what the steps returned."""
    model = ParallelModel(config, dataset.schema, context)
    step = TrainStep(model, config.train, resolve_precision(config.train.precision, "cpu"), steps_per_epoch=15)
    sent_at_once = []
    model.tables.register_forward_pre_hook(lambda *_: sent_at_once.append(model.dense_network.training))
    results: dict[str, Tensor] = {}
    for number, (batch, following) in enumerate(model.with_next(batches), 1):
        assert batch is batches[number - 1]
        label = batch.label
        if number == OVERFLOWS_AT and context.rank == 1:
            batch.label = label * 1e38
        outcome = step(batch, BatchTotals(64, None), number, following if ahead else None)
        batch.label = label
        results |= {f"loss {number}": outcome.loss, f"overflow {number}": outcome.overflow}
        if number == EVALUATED_AFTER:
            metrics = evaluate_split(model, splits, "test", config.evaluate)
            results["log loss"] = torch.tensor(metrics["log_loss"])
    # Evaluation apart, only the first batch finds its ids where it was read.
    assert sum(sent_at_once) == (1 if ahead else STEPS)
    assert [n for n in range(1, STEPS + 1) if results[f"overflow {n}"]] == [OVERFLOWS_AT]
    state = step.state_dict()
    for kind in ("model", "table_optimizer"):
        for name, value in state[kind].items():
            shards = value.local_shards() if hasattr(value, "local_shards") else None
            parts = [value] if shards is None else [shard.tensor for shard in shards]
            results |= {f"{kind} {name} {number}": part.clone() for number, part in enumerate(parts)}
    for part, states in state["dense_optimizer"].items():
        for name, moments in states["state"].items():
            results |= {f"{part} {name} {key}": torch.as_tensor(value).clone() for key, value in moments.items()}
    return results


@pytest.mark.parametrize("model", MODELS)
def test_a_run_that_was_stopped_continues_to_the_same_bits(
    datasets: dict[str, Path], tmp_path: Path, model: str
) -> None:
    """It stops while the ids of its next batch are under way, and once more after an evaluation reached its target."""
    halves = {"evaluations_per_epoch": 5, "max_steps": 9}
    stopping = {**halves, "early_stop": {"metric": "log_loss", "target": 1e9}}
    run_cases(
        2,
        datasets[model],
        [
            Case(tmp_path / "whole", _recipe(model, max_steps=9)),
            Case(tmp_path / "stopped", _recipe(model, max_steps=5)),
            Case(tmp_path / "stopped", _recipe(model, **halves)),
            Case(tmp_path / "reached", _recipe(model, **stopping)),
            Case(tmp_path / "reached", _recipe(model, **halves)),
        ],
    )
    for run in ("stopped", "reached"):
        require_same_bits(tmp_path / run, tmp_path / "whole", 9)
