"""Shardings of several nodes, and tables in the host's memory, compute what one worker computes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from rayrec.ingest.dataset import Dataset
from rayrec.models.registry import build_model
from rayrec.recipes import Recipe
from rayrec.training.loop.worker import train_worker
from rayrec.training.parallel.ranks import RankContext
from rayrec.training.run.folder import RunFolder
from tests.builders import make_dataset
from tests.ranks import run_ranks
from tests.training_runs import Case, losses, recipe, require_same_training, run_cases

STEPS = 12
FTRL = {"kind": "ftrl", "lr": 0.2, "initial_accumulator": 0.1}
NODES = {"C1": "table_row_wise", "C3": "grid_shard", "C4": "row_wise", "M1": "grid_shard", "M2": "table_row_wise"}
ONE_NODE = {table: {"table_row_wise": "row_wise", "grid_shard": "column_wise"}.get(s, s) for table, s in NODES.items()}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("placement") / "data"
    make_dataset(folder, {"train": 1_000, "test": 100}, categorical=4, multi_hot=2, seed=1)
    return folder


def _recipe(tables: dict[str, str] | None = None, **train: Any) -> Recipe:
    sharding = {"default": "table_wise", "tables": tables or {}, "memory_per_worker": "1GB"}
    common = {"embedding_optimizer": {"kind": "adagrad", "lr": 0.1}, "max_steps": STEPS, "sharding": sharding}
    return recipe(**{**common, **train})


def test_two_nodes_of_two_workers_train_as_one_worker(dataset: Path, tmp_path: Path) -> None:
    """Also where optimizer state is resumed on one worker, from two nodes and back."""
    ftrl = {"embedding_optimizer": FTRL}
    rows = dict.fromkeys(NODES, "table_row_wise")
    runs = {"two-nodes": (_recipe(NODES), 4), "ftrl-two-nodes": (_recipe(rows, **ftrl), 4)}
    references = {"two-nodes": _recipe(), "ftrl-two-nodes": _recipe(**ftrl)}
    run_cases(1, dataset, [Case(tmp_path / f"{name}-1", case) for name, case in references.items()])
    two_nodes = [Case(tmp_path / name, case) for name, (case, _) in runs.items()]
    run_cases(4, dataset, [*two_nodes, Case(tmp_path / "back", _recipe(NODES, max_steps=4))], workers_per_node=2)
    plan = json.loads((tmp_path / "two-nodes" / "plan.json").read_text())
    assert {shard["table"]: shard["sharding"] for shard in plan["shards"]}.items() >= NODES.items()
    run_cases(2, dataset, [Case(tmp_path / "back", _recipe(ONE_NODE, max_steps=8))])
    run_cases(4, dataset, [Case(tmp_path / "back", _recipe(NODES))], workers_per_node=2)
    for run, reference in (
        ("two-nodes", "two-nodes-1"),
        ("ftrl-two-nodes", "ftrl-two-nodes-1"),
        ("back", "two-nodes-1"),
    ):
        assert sorted(losses(tmp_path / reference)) == list(range(1, STEPS + 1))
        require_same_training(tmp_path / run, tmp_path / reference, STEPS)


class _BesideHostMemory(RankContext):
    """A rank on a CPU that plans as one with a GPU does."""

    def host_memory_per_worker(self) -> int:
        return 10**9


def _train_in_host_memory(rank: int, rendezvous: str, data: str, run: str, content: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    dataset = Dataset.open(data)
    context = _BesideHostMemory(rank=rank, world_size=2, local_world_size=2, device=torch.device("cpu"))
    for steps in (4, STEPS):  # a checkpoint is resumed, too
        content["train"]["max_steps"] = steps
        case = Recipe.model_validate(content)
        if rank == 0:
            if steps == STEPS:
                RunFolder.resume(run, case, dataset)
            else:
                RunFolder.create(run, case, dataset, build_model(case.model, dataset.schema, "meta").schema)
        dist.barrier()
        train_worker(case, dataset, RunFolder.open(run), context)
    dist.destroy_process_group()


def test_tables_planned_for_host_memory_train_alike(dataset: Path, tmp_path: Path) -> None:
    """A CPU has no cache to fill, but plan, optimizers, checkpoints and what empties caches are those of a GPU."""
    plain = _recipe()
    run_cases(2, dataset, [Case(tmp_path / "plain", plain)])
    content = plain.model_dump(mode="json")
    content["train"]["sharding"] = {"memory_per_worker": "40KB"}
    run_ranks(
        _train_in_host_memory, str(tmp_path / "rendezvous"), str(dataset), str(tmp_path / "run"), content, ranks=2
    )
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    kernels = {shard["kernel"] for shard in plan["shards"]}
    assert {"fused", "fused_uvm_caching"} <= kernels and sum(plan["host_bytes_by_rank"]) > 0
    assert losses(tmp_path / "run") == pytest.approx(losses(tmp_path / "plain"), rel=1e-5, abs=1e-6)
