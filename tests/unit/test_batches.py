"""Batches from memory equal what plain pyarrow reads by the plan, padding included."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from rayrec.common.errors import UserError
from rayrec.config.train import IngestConfig
from rayrec.features.transforms import with_weights
from rayrec.ingest.batches import InMemorySplit
from rayrec.ingest.dataset import Dataset
from rayrec.ingest.loader import open_batches
from rayrec.ingest.order import BatchOrder, row_groups_of
from rayrec.ingest.packed_rows import RowPacker, from_table, to_table
from tests.builders import make_dataset, make_schema, write_dataset
from tests.expected_batches import expected_rows, padded, rows_of

DATASETS = {
    "plain": {"rows": 400},
    "multi-hot": {"rows": 300, "multi_hot": 2},
    "weighted": {"rows": 300, "multi_hot": 3, "weighted": ("M1", "M3")},
    "multi-hot only": {"rows": 300, "categorical": 0, "multi_hot": 2},
    "further columns": {"rows": 300, "weight": True, "group": True},
    "no numeric": {"rows": 300, "numeric": 0},
    "no categorical": {"rows": 300, "categorical": 0},
    "tiny row groups": {"rows": 150, "rows_per_row_group": 3, "rows_per_part": 31},
    "one row": {"rows": 1, "multi_hot": 1},
}
IN_MEMORY = IngestConfig(in_memory=True, read_streams=4, prefetch_batches=2)


@pytest.fixture(scope="module", params=DATASETS)
def written(request, tmp_path_factory):
    return make_dataset(tmp_path_factory.mktemp("written") / "data", **DATASETS[request.param])


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_batches_hold_the_rows_of_the_plan(written, world_size, drop_last):
    dataset = written
    size = 64 if dataset.split("train").rows > 64 else 1
    for rank in range(world_size):
        order = {"global_batch_size": size, "rank": rank, "world_size": world_size, "seed": 3, "epoch": 1}
        plan = BatchOrder(
            row_groups=row_groups_of(dataset.split("train").parts), read_streams=4, drop_last=drop_last, **order
        )
        with open_batches(dataset, "train", IN_MEMORY, drop_last=drop_last, **order) as loader:
            batches = list(loader)
        assert len(batches) == loader.num_batches == plan.num_batches
        assert loader.rows_dropped == plan.rows_dropped
        for number, (batch, table) in enumerate(zip(batches, expected_rows(dataset, plan), strict=True)):
            assert batch.size == plan.local_size(number)
            assert rows_of(dataset, batch) == padded(dataset, table, batch.size)


def test_batch_tensors_have_the_documented_types_and_shapes(tmp_path):
    dataset = make_dataset(tmp_path / "data", 100, group=True, multi_hot=1)
    with open_batches(dataset, "train", IN_MEMORY, global_batch_size=32, drop_last=True) as loader:
        batch = next(iter(loader))
    assert (batch.dense.shape, batch.dense.dtype, batch.dense.is_contiguous()) == ((32, 3), torch.float32, True)
    assert batch.label.shape == batch.weight.shape == batch.group.shape == (32,)
    assert (batch.label.dtype, batch.weight.dtype, batch.group.dtype) == (torch.float32, torch.float32, torch.int64)
    assert batch.sparse.keys() == [f.name for f in dataset.schema.categorical]
    assert (batch.sparse.values().dtype, batch.sparse.stride()) == (torch.int32, 32)
    recomputed = batch.sparse.lengths().view(5, 32).sum(dim=1).tolist()
    assert batch.sparse.length_per_key() == recomputed
    assert batch.sparse.offset_per_key() == np.cumsum([0, *recomputed]).tolist()


def test_ids_beyond_int32_are_int64(tmp_path):
    schema = make_schema(1, 1, cardinalities=(2**33,))
    ids = pa.array([2**32, 5], pa.int64())
    rows = pa.table({"I1": pa.array([0.5, 1.5], pa.float32()), "C1": ids, "label": pa.array([0, 1], pa.float32())})
    dataset = write_dataset(tmp_path / "data", schema, {"train": rows})
    with open_batches(dataset, "train", IN_MEMORY, global_batch_size=2, drop_last=True, shuffle="none") as loader:
        (batch,) = loader
    assert batch.sparse.values().tolist() == [2**32, 5]


def test_one_store_serves_every_epoch(tmp_path):
    dataset = make_dataset(tmp_path / "data", 500)
    store = InMemorySplit.read(dataset, "train")
    for epoch in range(2):
        order = {"global_batch_size": 50, "epoch": epoch, "drop_last": True}
        with (
            open_batches(dataset, "train", IngestConfig(), store=store, **order) as shared,
            open_batches(dataset, "train", IngestConfig(in_memory=True), **order) as own,
        ):
            for one, other in zip(shared, own, strict=True):
                assert torch.equal(one.dense, other.dense)


def test_leaving_early_and_errors_stop_the_reading(tmp_path):
    dataset = make_dataset(tmp_path / "data", 2_000)
    order = {"global_batch_size": 10, "drop_last": True}
    with open_batches(dataset, "train", IN_MEMORY, **order) as loader:
        next(iter(loader))
    assert not loader._thread.is_alive()
    loader = open_batches(dataset, "train", IN_MEMORY, **order)
    with pytest.raises(RuntimeError, match="the consumer's"), loader:
        raise RuntimeError("the consumer's")
    assert not loader._thread.is_alive()


def _rewrite(folder: Path, change) -> None:
    path = next((folder / "train").iterdir())
    pq.write_table(change(pq.read_table(path)), path)


def _set(name: str, array: pa.Array):
    return lambda table: table.set_column(table.column_names.index(name), name, array)


def _weighted(weight: float) -> pa.Array:
    elements = with_weights(np.zeros(50, np.int32), np.full(50, weight, np.float32))
    return pa.ListArray.from_arrays(pa.array(range(51), pa.int32()), elements)


DAMAGES = {
    "missing part": (lambda folder: next((folder / "train").iterdir()).unlink(), "missing, though the manifest lists"),
    "no Parquet": (lambda folder: next((folder / "train").iterdir()).write_text("x" * 99), "damaged"),
    "missing column": (lambda folder: _rewrite(folder, lambda t: t.drop_columns("C2")), "no column 'C2'"),
    "nulls": (lambda folder: _rewrite(folder, _set("C1", pa.nulls(50, pa.int32()))), "column 'C1': 50 nulls"),
    "id beyond the table": (
        lambda folder: _rewrite(folder, _set("C1", pa.array([11] * 50, pa.int32()))),
        "column 'C1': ids 11 ... 11, the table has 11 rows",
    ),
    "negative id": (
        lambda folder: _rewrite(folder, _set("M1", pa.array([[-1]] * 50, pa.list_(pa.int32())))),
        "column 'M1': ids -1 ... -1",
    ),
    "list in place of an id": (
        lambda folder: _rewrite(folder, _set("C1", pa.array([[1]] * 50, pa.list_(pa.int32())))),
        "column 'C1': list<",
    ),
    "id in place of a list": (
        lambda folder: _rewrite(folder, _set("M1", pa.array([1] * 50, pa.int32()))),
        "column 'M1': int32, the schema says list<",
    ),
    "text in place of a number": (
        lambda folder: _rewrite(folder, _set("I1", pa.array(["x"] * 50))),
        "column 'I1': string",
    ),
}


WEIGHTED = {
    "ids without weights": (
        pa.array([[1]] * 50),
        "column 'M1': list<element: int64>, the schema says list<item: struct<",
    ),
    "weights below 0": (_weighted(-1.0), "column 'M1': weights that are not numbers of at least 0; "),
    "weights that are none": (_weighted(float("nan")), "column 'M1': weights that are not numbers of at least 0; "),
    "weights without an end": (_weighted(float("inf")), "column 'M1': weights that are not numbers of at least 0; "),
}


@pytest.mark.parametrize(("lists", "message"), WEIGHTED.values(), ids=WEIGHTED.keys())
def test_damaged_weights_are_named(tmp_path, lists, message):
    dataset = make_dataset(tmp_path / "data", 50, multi_hot=1, weighted=("M1",))
    _rewrite(tmp_path / "data", _set("M1", lists))
    with pytest.raises(UserError) as caught:
        InMemorySplit.read(dataset, "train")
    assert message in str(caught.value)


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_part_is_named(tmp_path, damage, message):
    dataset = make_dataset(tmp_path / "data", 50, multi_hot=1)
    damage(tmp_path / "data")
    with pytest.raises(UserError, match="preprocess") as caught:
        InMemorySplit.read(dataset, "train")
    assert message in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_split_smaller_than_a_batch_is_refused_in_training_only(tmp_path):
    dataset = make_dataset(tmp_path / "data", 50)
    with pytest.raises(UserError, match=r"50 rows, which fill no batch of 64; lower train\.global_batch_size"):
        open_batches(dataset, "train", IN_MEMORY, global_batch_size=64, drop_last=True)
    with open_batches(dataset, "train", IN_MEMORY, global_batch_size=64, drop_last=False) as loader:
        assert [batch.size for batch in loader] == [50]


def test_packed_rows_pass_through_arrow_unchanged(tmp_path):
    columns = {"multi_hot": 2, "group": True, "weight": True, "vector": 3, "weighted": ("M2",)}
    dataset: Dataset = make_dataset(tmp_path / "data", 90, **columns, rows_per_row_group=30)
    packer = RowPacker.of(dataset)
    packed = [packer.read("train/part-00000.parquet", group, slice(group, 20)) for group in range(3)]
    table = pa.concat_tables([to_table(rows) for rows in packed]).combine_chunks()
    for one, other in zip(packed, from_table(table), strict=True):
        for name in ("label", "dense", "one_hot", "weight", "group"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        for mine, theirs in zip(one.multi_hot, other.multi_hot, strict=True):
            np.testing.assert_array_equal(mine.offsets, theirs.offsets)
            np.testing.assert_array_equal(mine.values, theirs.values)
            np.testing.assert_array_equal(mine.weights, theirs.weights)
    assert packed[0].multi_hot[0].weights is None and packed[0].multi_hot[1].weights is not None


@pytest.mark.parametrize("rows_per_row_group", [10, 1_000], ids=["many row groups", "fewer than ranks"])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_contiguous_shares_are_runs_of_the_split(tmp_path, world_size, rows_per_row_group):
    """What ranking metrics rely on: inside a rank's share of a batch no group is cut."""
    schema = make_schema(numeric=1, categorical=1, group=True)
    rows = pa.table({
        "I1": pa.array(np.zeros(301, np.float32)),
        "C1": pa.array(np.zeros(301, np.int32)),
        "label": pa.array(np.zeros(301, np.float32)),
        "group": pa.array(np.arange(301, dtype=np.int64)),
    })  # fmt: skip
    dataset = write_dataset(tmp_path / "data", schema, {"train": rows}, rows_per_row_group=rows_per_row_group)
    seen = []
    for rank in range(world_size):
        order = {"global_batch_size": 64, "rank": rank, "world_size": world_size, "shuffle": "none"}
        with open_batches(dataset, "train", IN_MEMORY, drop_last=False, contiguous=True, **order) as loader:
            for batch in loader:
                places = batch.group[batch.weight > 0]
                assert (places.diff() == 1).all()
                seen += places.tolist()
    assert sorted(seen) == list(range(301))
