"""Training with a compiled dense network: the losses of the eager one, and no compilation after the first step."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._inductor import config as inductor

from rayrec.ingest.dataset import Dataset
from rayrec.models.common.precision import resolve_precision
from rayrec.recipes import Recipe
from rayrec.training.loop.micro_batches import BatchTotals
from rayrec.training.loop.splits import SplitReader
from rayrec.training.loop.step import TrainStep
from rayrec.training.parallel.parallel_model import ParallelModel
from rayrec.training.parallel.ranks import RankContext
from tests.builders import make_dataset, make_pairs_dataset
from tests.ranks import run_ranks
from tests.training_runs import recipe

BATCH = 64
ROWS = 4 * BATCH + 40
"""Each epoch ends with a smaller batch."""
TOLERANCE = {"fp32": 1e-5, "bf16": 2e-2}
"""Of losses, relative to those of the eager network in the same format: eager bfloat16 rounds after every operator, a
compiled kernel once at its end."""
ADAGRAD = {"kind": "adagrad", "lr": 0.05}
MODELS: dict[str, dict[str, Any]] = {
    "dlrm": {},
    "dcnv2": {
        "model": {
            "kind": "dcnv2",
            "embedding_dim": 8,
            "bottom_mlp": [8],
            "cross_layers": 2,
            "cross_rank": 4,
            "top_mlp": [8],
        }
    },
    "wide_deep": {
        "model": {"kind": "wide_deep", "embedding_dim": 8, "mlp": [16, 8], "dropout": 0.3},
        "gradient_accumulation": 2,
        "embedding_l2": 0.01,
    },
    "neumf": {"model": {"kind": "neumf", "factors": 4, "mlp": [8, 4], "dropout": 0.3}, "source": "interactions"},
}


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("compiled")
    make_dataset(folder / "rows", {"train": ROWS, "test": 50}, numeric=3, categorical=3, multi_hot=1, seed=1)
    make_pairs_dataset(folder / "pairs", {"train": ROWS, "test": 50})
    return {name: folder / ("pairs" if name == "neumf" else "rows") for name in MODELS}


def _losses(config: Recipe, data: str, context: RankContext, *, epochs: int = 2) -> list[float]:
    """The losses of all ranks, by step. Fails where the second epoch compiles anything."""
    dataset = Dataset.open(data)
    model = ParallelModel(config, dataset.schema, context)
    step = TrainStep(model, config.train, resolve_precision(config.train.precision, "cpu"), steps_per_epoch=5)
    splits = SplitReader(dataset, config.train.ingest, context)
    found, number = [], 0
    for epoch in range(epochs):
        torch.compiler.set_stance("default" if epoch == 0 else "fail_on_recompile")
        with splits.open("train", global_batch_size=BATCH, drop_last=False, seed=1) as loader:
            for batch in loader:
                number += 1
                rows = BATCH if number % 5 else ROWS % BATCH
                loss = step(batch, BatchTotals(rows, None), number).loss.clone()
                dist.all_reduce(loss)
                found.append(loss.item())
    torch.compiler.set_stance("default")
    return found


def _compare(rank: int, ranks: int, rendezvous: str, data: str, contents: list[dict[str, Any]]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks)
    context = RankContext(rank=rank, world_size=ranks, local_world_size=ranks, device=torch.device("cpu"))
    for content in contents:
        config = Recipe.model_validate(content)
        train = {mode: config.train.model_copy(update={"compile": mode}) for mode in (False, True)}
        eager, compiled = (config.model_copy(update={"train": train[mode]}) for mode in (False, True))
        with inductor.patch(fallback_random=True):  # draws as the eager network does
            expected, found = _losses(eager, data, context), _losses(compiled, data, context)
        assert found == pytest.approx(expected, rel=TOLERANCE[config.train.precision]), config.train.precision
        assert len(set(expected)) == len(expected) == 10
    dist.destroy_process_group()


@pytest.mark.minutes
@pytest.mark.parametrize(("model", "ranks"), [*((model, 1) for model in MODELS), ("wide_deep", 2)])
def test_losses_are_those_of_the_eager_network(
    datasets: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, ranks: int
) -> None:
    """In both formats, with dropout, parts of batches and a smaller last batch; on two ranks gradients are summed."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    contents = [
        recipe(precision=precision, embedding_optimizer=ADAGRAD, **MODELS[model]).model_dump(mode="json")
        for precision in TOLERANCE
    ]
    run_ranks(_compare, ranks, str(tmp_path / "rendezvous"), str(datasets[model]), contents, ranks=ranks)


def _masks(rank: int, rendezvous: str, data: str, content: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=1)
    context = RankContext(rank=0, world_size=1, local_world_size=1, device=torch.device("cpu"))
    config = Recipe.model_validate(content)
    first, again = (_losses(config, data, context, epochs=1) for _ in range(2))
    assert first == again
    rates = config.model_dump(mode="json")
    rates["train"]["embedding_optimizer"]["lr"] = rates["train"]["dense_optimizer"]["lr"] = 1e-30
    still = Recipe.model_validate(rates)
    dataset = Dataset.open(data)
    model = ParallelModel(still, dataset.schema, context)
    step = TrainStep(model, still.train, resolve_precision("fp32", "cpu"), steps_per_epoch=5)
    with SplitReader(dataset, still.train.ingest, context).open(
        "train", global_batch_size=BATCH, drop_last=True, seed=1
    ) as loader:
        batch = next(iter(loader))
    by_step = {number: step(batch, BatchTotals(BATCH, None), number).loss.item() for number in (1, 2, 3)}
    assert len(set(by_step.values())) == 3, "each step draws masks of its own"
    assert step(batch, BatchTotals(BATCH, None), 2).loss.item() == pytest.approx(by_step[2], rel=1e-6)
    dist.destroy_process_group()


@pytest.mark.minutes
def test_dropout_follows_from_the_step(
    datasets: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the compiler draws it: a resumed run repeats the masks of its steps."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    content = recipe(compile=True, **MODELS["neumf"]).model_dump(mode="json")
    run_ranks(_masks, str(tmp_path / "rendezvous"), str(datasets["neumf"]), content, ranks=1)
