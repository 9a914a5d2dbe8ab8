"""Eight ranks as if on two nodes of four: torch compares the order and the shapes of all collectives on all ranks."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing import ProcessRaisedException
from torchrec.distributed import dist_data

from rayrec.ingest.dataset import Dataset
from rayrec.models.common.precision import resolve_precision
from rayrec.recipes import Recipe
from rayrec.training.loop.micro_batches import BatchTotals
from rayrec.training.loop.splits import SplitReader
from rayrec.training.loop.step import TrainStep
from rayrec.training.parallel.parallel_model import ParallelModel
from rayrec.training.parallel.ranks import RankContext
from tests.builders import make_dataset
from tests.ranks import run_ranks
from tests.training_runs import recipe

PLACES = {
    "C1": "row_wise",
    "C2": "table_row_wise",
    "C3": "grid_shard",
    "C4": "data_parallel",
    "M1": "table_row_wise",
    "M2": "column_wise",
}
STEPS = 6


def _join(rank: int, ranks: int, rendezvous: str) -> None:
    torch.set_num_threads(1)
    # As TORCH_DISTRIBUTED_DEBUG=DETAIL, which the server that this process is forked from would have had to see.
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    # torch 2.13 and TorchRec 1.8 take the group that compares for one of gloo, and for one of NCCL.
    dist.Logger.set_construction_data_and_log = lambda *_: None  # type: ignore[method-assign]
    dist_data._check_pg_for_nccl_error = lambda _: None
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks)


def _in_another_order(rank: int, rendezvous: str) -> None:
    _join(rank, 2, rendezvous)
    value = torch.ones(2)
    if rank == 0:
        dist.all_reduce(value)
    else:
        dist.broadcast(value, 0)


def test_another_order_is_found(tmp_path: Path) -> None:
    with pytest.raises(ProcessRaisedException, match="mismatch between collectives"):
        run_ranks(_in_another_order, str(tmp_path / "rendezvous"), ranks=2)


def _train(rank: int, ranks: int, folder: str, content: dict[str, Any], wires: list[str]) -> None:
    _join(rank, ranks, f"{folder}/rendezvous-{ranks}")
    context = RankContext(rank, ranks, min(ranks, 4), torch.device("cpu"))
    config, dataset = Recipe.model_validate(content), Dataset.open(f"{folder}/data")
    found = {}
    for wire in wires:
        model = ParallelModel(config, dataset.schema, context, getattr(torch, wire))
        step = TrainStep(model, config.train, resolve_precision("fp32", "cpu"), steps_per_epoch=STEPS)
        splits = SplitReader(dataset, config.train.ingest, context)
        with splits.open("train", global_batch_size=64, drop_last=True, seed=1) as loader:
            losses = torch.stack(
                [
                    step(batch, BatchTotals(64, None), number, following).loss
                    for number, (batch, following) in enumerate(model.with_next(loader), 1)
                ]
            )
        dist.all_reduce(losses)
        found[wire] = losses.tolist()
    if rank == 0:
        (Path(folder) / f"losses-{ranks}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


@pytest.mark.minutes
def test_collectives_are_in_one_order_on_all_ranks(tmp_path: Path) -> None:
    """With ids sent ahead, tables of every sharding, gradients summed over parts, and bfloat16 on the wire."""
    # FBGEMM's kernels for CPUs need a row of each row-wise table on every rank.
    make_dataset(tmp_path / "data", 64 * STEPS, multi_hot=2, seed=4, cardinalities=(67, 101, 1_009, 33))
    train: dict[str, Any] = {
        "model": {"kind": "dlrm", "embedding_dim": 16, "bottom_mlp": [8, 16], "top_mlp": [8]},
        "embedding_optimizer": {"kind": "adagrad", "lr": 0.1},
        "dense_optimizer": {"kind": "adam", "lr": 0.01},
        "gradient_accumulation": 2,
    }
    spread = recipe(**train, sharding={"tables": PLACES, "memory_per_worker": "1GB"}).model_dump(mode="json")
    run_ranks(_train, 1, str(tmp_path), recipe(**train).model_dump(mode="json"), ["float32"], ranks=1)
    run_ranks(_train, 8, str(tmp_path), spread, ["float32", "bfloat16"], ranks=8)
    expected = json.loads((tmp_path / "losses-1.json").read_text())["float32"]
    found = json.loads((tmp_path / "losses-8.json").read_text())
    assert len(expected) == STEPS and found["float32"] == pytest.approx(expected, rel=1e-5)
    assert found["bfloat16"] == pytest.approx(expected, rel=1e-2) and found["bfloat16"] != found["float32"]
