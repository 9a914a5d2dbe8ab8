"""A split on a device gives the batches of one in the host's memory, bit for bit; here the device is a CPU."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rayrec.config.train import IngestConfig
from rayrec.ingest.batches import InMemorySplit, ResidentSplit
from rayrec.ingest.dataset import Dataset
from rayrec.ingest.loader import open_batches
from rayrec.models.common.batch import Batch
from tests.builders import make_dataset

DATASETS: dict[str, dict[str, Any]] = {
    "plain": {"rows": 700},
    "lists": {"rows": 300, "multi_hot": 2},
    "weighted lists": {"rows": 300, "multi_hot": 3, "weighted": ("M1", "M3")},
    "lists only": {"rows": 300, "categorical": 0, "multi_hot": 2},
    "further columns": {"rows": 300, "weight": True, "group": True, "vector": 3},
    "no numeric": {"rows": 300, "numeric": 0},
    "no categorical": {"rows": 300, "categorical": 0},
    "tiny row groups": {"rows": 150, "rows_per_row_group": 3, "rows_per_part": 31},
    "one row": {"rows": 1, "multi_hot": 1},
    "whole groups": {"rows": 400, "multi_hot": 1, "group_sizes": (7, 2, 5, 12, 1), "rows_per_row_group": 40},
}


@pytest.fixture(scope="module", params=DATASETS)
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return make_dataset(tmp_path_factory.mktemp("resident") / "data", **DATASETS[request.param])


@pytest.mark.parametrize("shuffle", ["rows", "none"])
@pytest.mark.parametrize("world_size", [1, 3])
def test_batches_are_the_same(dataset: Dataset, world_size: int, shuffle: str) -> None:
    info = dataset.split("train")
    split = InMemorySplit.read(dataset, "train")
    resident = ResidentSplit(split, dataset.schema, torch.device("cpu"))
    for rank in range(world_size):
        order = {"global_batch_size": min(64, info.rows), "rank": rank, "world_size": world_size, "seed": 3}
        order |= {"drop_last": False, "shuffle": shuffle, "epoch": 1, "start_batch": int(info.rows > 128)}
        whole_groups = info.longest_group is not None
        found, expected = (
            _batches(dataset, store, whole_groups=whole_groups, **order) for store in (resident, split)
        )  # fmt: skip
        assert len(found) == len(expected) > 0
        for one, other in zip(found, expected, strict=True):
            for name, value in _tensors(other).items():
                assert _tensors(one)[name].dtype == value.dtype, name
                assert _tensors(one)[name].equal(value), name
            assert one.sparse.keys() == other.sparse.keys() and one.sparse.stride() == other.sparse.stride()
            assert one.sparse.length_per_key() == other.sparse.length_per_key()
            assert one.sparse.offset_per_key() == other.sparse.offset_per_key()


def _batches(dataset: Dataset, store: InMemorySplit | ResidentSplit, **options: Any) -> list[Batch]:
    with open_batches(dataset, "train", IngestConfig(read_streams=4), store=store, **options) as loader:
        return list(loader)


def _tensors(batch: Batch) -> dict[str, Tensor]:
    sparse = batch.sparse
    tensors = {"dense": batch.dense, "label": batch.label, "weight": batch.weight, "group": batch.group}
    tensors |= {"ids": sparse.values(), "lengths": sparse.lengths(), "id_weights": sparse.weights_or_none()}
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def test_a_split_is_as_large_as_its_columns(tmp_path: Path) -> None:
    split = InMemorySplit.read(make_dataset(tmp_path / "data", 100, weight=True), "train")
    assert split.bytes == 100 * 4 * (3 + 4 + 1 + 1)
