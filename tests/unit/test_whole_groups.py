"""Batches of whole groups: every group in one batch, on one rank, in an order that no number of workers changes."""

from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from rayrec.common.errors import ConfigError, UserError
from rayrec.config.train import IngestConfig
from rayrec.ingest.dataset import Dataset
from rayrec.ingest.loader import open_batches
from rayrec.models.common.batch import Batch
from rayrec.training.run.preflight import require_trainable
from tests.builders import make_dataset, make_recipe

SIZES = (3, 1, 5, 2, 12, 4, 1, 1, 7)
IN_MEMORY = IngestConfig(in_memory=True, read_streams=4)

Rows = list[tuple[int, float]]
"""(group, a number that tells the row)."""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("groups") / "data"
    return make_dataset(folder, 1_000, numeric=1, categorical=1, group_sizes=SIZES, rows_per_row_group=60)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Eleven turns of the sizes: enough to be cut anywhere, few enough to be read by eight ranks in batches of 7."""
    folder = tmp_path_factory.mktemp("small") / "data"
    return make_dataset(folder, 400, numeric=1, categorical=1, group_sizes=SIZES, rows_per_row_group=60)


def batches(dataset: Dataset, **order: Any) -> list[Batch]:
    order = {"global_batch_size": 100, "seed": 3, "drop_last": False, **order}
    with open_batches(dataset, "train", IN_MEMORY, whole_groups=True, **order) as loader:
        assert loader.row_count(0) is None
        return list(loader)


def rows_of(batch: Batch) -> Rows:
    counted = batch.weight > 0
    assert batch.group is not None
    return list(zip(batch.group[counted].tolist(), batch.dense[counted, 0].tolist(), strict=True))


def of_files(dataset: Dataset) -> dict[int, Rows]:
    table = pq.read_table(dataset.folder / "train")
    rows = list(zip(table["group"].to_pylist(), table["I1"].to_pylist(), strict=True))
    return {group: list(found) for group, found in groupby(rows, key=lambda row: row[0])}


@pytest.mark.parametrize("shuffle", ["none", "row_groups", "rows"])
@pytest.mark.parametrize("size", [7, 100, 1_000])
def test_every_group_is_in_one_batch_of_one_rank(small: Dataset, size: int, shuffle: str) -> None:
    one = [rows_of(batch) for batch in batches(small, global_batch_size=size, shuffle=shuffle)]
    groups = of_files(small)
    for world_size in (1, 2, 3, 8):
        order = {"global_batch_size": size, "shuffle": shuffle, "world_size": world_size}
        ranks = [batches(small, rank=rank, **order) for rank in range(world_size)]
        seen: list[Rows] = []
        for number, parts in enumerate(zip(*ranks, strict=True)):
            assert len({part.size for part in parts}) == 1, "ranks are padded alike"
            rows = [rows_of(part) for part in parts]
            assert [row for of_part in rows for row in of_part] == one[number], world_size
            for of_part in rows:
                seen += [list(found) for _, found in groupby(of_part, key=lambda row: row[0])]
        assert sorted(seen) == sorted(groups.values()), "each whole, once, its rows in their order"


def test_batches_have_about_their_size(dataset: Dataset) -> None:
    rows = [len(rows_of(batch)) for batch in batches(dataset)]
    assert len(rows) == 10 and sum(rows) == 1_000
    assert all(abs(count - 100) <= 4 * (max(SIZES) - 1) for count in rows)


def test_epochs_differ_and_a_seed_repeats_them(dataset: Dataset) -> None:
    def order(**changes: int) -> list[Rows]:
        return [rows_of(batch) for batch in batches(dataset, **changes)]

    assert order() == order()
    assert order() != order(epoch=1)
    assert order() != order(seed=4)
    neighbours = {pair for rows in order() for pair in pairwise(dict.fromkeys(group for group, _ in rows))}
    assert len({pair for pair in neighbours if pair[1] == pair[0] + 1}) < 0.1 * len(neighbours), "groups are shuffled"


@pytest.mark.parametrize("rank", [0, 1])
def test_resuming_gives_the_rest(dataset: Dataset, rank: int) -> None:
    order = {"world_size": 2, "rank": rank}
    whole, rest = batches(dataset, **order), batches(dataset, start_batch=6, **order)
    assert [rows_of(batch) for batch in whole[6:]] == [rows_of(batch) for batch in rest]


def test_padding_stays_out(dataset: Dataset) -> None:
    (batch,) = batches(dataset, global_batch_size=1_000)
    assert batch.size > 1_000
    assert batch.weight.tolist() == [1.0] * 1_000 + [0.0] * (batch.size - 1_000)
    assert torch.equal(batch.dense[1_000:], batch.dense[:1].expand(batch.size - 1_000, 1))


def test_other_datasets_are_refused(tmp_path: Path) -> None:
    cut = make_dataset(tmp_path / "cut", 100, group=True)
    with pytest.raises(UserError, match="the rows of a group are not kept together in split 'train'; preprocess again"):
        batches(cut)
    recipe = make_recipe(train={"loss": {"listwise": 0.5}, "device": "cpu"})
    with pytest.raises(ConfigError, match="listwise: the rows of a group are not kept together in 'train' of"):
        require_trainable(recipe, cut, "cpu")
    with pytest.raises(ValueError, match=r"loss.listwise needs groups"):
        make_recipe(train={"loss": {"listwise": 0.5}, "negatives": {}})


def test_the_longest_group_is_known(dataset: Dataset) -> None:
    assert dataset.split("train").longest_group == max(SIZES)
    *full, last = dataset.split("train").parts[0].row_groups
    assert all(60 <= rows < 60 + max(SIZES) for rows in full) and sum(full) + last == 1_000
