"""Batches of sampled interactions: an epoch's samples, each once, whatever the workers, the chunks and the start."""

import itertools
from collections import Counter

import pyarrow as pa
import pytest
import torch

from rayrec.common.errors import ConfigError, UserError
from rayrec.config.train import IngestConfig, NegativesConfig, RecencyConfig
from rayrec.features.schema import CategoricalFeature, InteractionColumns, Schema
from rayrec.ingest import interactions as loader_module
from rayrec.training.loop.splits import SplitReader
from rayrec.training.parallel.ranks import RankContext
from rayrec.training.run.preflight import require_trainable
from tests.builders import make_dataset, users_and_items, write_dataset
from tests.training_runs import recipe

SCHEMA = users_and_items(12, 21, group="group", item_first=True)
"""The item first: ids lie in the schema's order."""
NEGATIVES = NegativesConfig()


@pytest.fixture
def dataset(tmp_path):
    pairs = [(user, 1 + (user * k) % 20) for user in range(1, 12) for k in range(1, 10)]
    users, items = zip(*pairs, strict=True)
    table = pa.table({
        "item": pa.array(items, pa.int32()), "user": pa.array(users, pa.int32()),
        "label": pa.array([1.0] * len(pairs), pa.float32()), "group": pa.array(users, pa.int64()),
    })  # fmt: skip
    return write_dataset(tmp_path / "data", SCHEMA, {"train": table}, rows_per_part=40, rows_per_row_group=7)


def batches_of(dataset, *, rank=0, world_size=1, negatives=NEGATIVES, recency=None, drop_last=False, **order):
    place = RankContext(rank=rank, world_size=world_size, local_world_size=world_size, device=torch.device("cpu"))
    reader = SplitReader(dataset, IngestConfig(in_memory=True), place, negatives, recency)
    loader = reader.open("train", global_batch_size=32, drop_last=drop_last, **order)
    with loader:
        batches = list(loader)
    return batches, loader


def rows(batches):
    """(user, item, label) of the rows that count, in order."""
    result = []
    for batch in batches:
        ids = {name: jagged.values().tolist() for name, jagged in batch.sparse.to_dict().items()}
        assert batch.sparse.keys() == ["item", "user"] and batch.dense.shape == (batch.size, 0)
        assert batch.sparse.lengths().tolist() == [1] * (2 * batch.size)
        assert batch.group.tolist() == ids["user"] and batch.group.dtype == torch.int64
        kept = (batch.weight > 0).tolist()
        columns = zip(ids["user"], ids["item"], batch.label.tolist(), kept, strict=True)
        result.append([row[:3] for row in columns if row[3]])
    return result


def test_an_epoch_is_every_positive_and_its_negatives(dataset):
    known = {(u, 1 + (u * k) % 20) for u in range(1, 12) for k in range(1, 10)}
    seen = []
    for epoch in (0, 1):
        batches, loader = batches_of(dataset, epoch=epoch, negatives=NegativesConfig(per_positive=3))
        samples = [row for batch in rows(batches) for row in batch]
        assert len(samples) == 99 * 4 == sum(loader.row_count(b) for b in range(loader.num_batches))
        positives = Counter((user, item) for user, item, label in samples if label == 1)
        assert positives == Counter((u, 1 + (u * k) % 20) for u in range(1, 12) for k in range(1, 10))
        negatives = [(user, item) for user, item, label in samples if label == 0]
        assert Counter(user for user, _ in negatives) == dict.fromkeys(range(1, 12), 27)
        assert not known & set(negatives) and {item for _, item in negatives} <= set(range(1, 21))
        seen.append(samples)
    assert seen[0] != seen[1] and Counter(seen[0]) != Counter(seen[1])  # another order, other negatives
    assert loader.rows_dropped == 0 and loader.wait_seconds > 0


@pytest.mark.parametrize("recency", [None, RecencyConfig(half_life=3)])
@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_global_batches_do_not_depend_on_workers_chunks_or_start(dataset, world_size, recency, monkeypatch):
    expected = rows(batches_of(dataset, seed=4, recency=recency)[0])
    monkeypatch.setattr(loader_module, "_AHEAD", {"cpu": 40})
    monkeypatch.setattr(loader_module, "_BLOCK_ON_CPU", 7)
    ranks = [
        batches_of(dataset, rank=r, world_size=world_size, seed=4, start_batch=3, recency=recency)[0]
        for r in range(world_size)
    ]
    assert len({tuple(batch.size for batch in batches) for batches in ranks}) == 1
    merged = [list(itertools.chain(*parts)) for parts in zip(*(rows(batches) for batches in ranks), strict=True)]
    assert merged == expected[3:]
    assert rows(batches_of(dataset, seed=5, recency=recency)[0]) != expected


def test_the_last_partial_batch_can_be_left_out(dataset):
    batches, loader = batches_of(dataset, drop_last=True)
    assert [batch.size for batch in batches] == [32] * 15 and loader.rows_dropped == 99 * 5 - 15 * 32
    with pytest.raises(UserError, match=r"global_batch_size.*495 samples"):
        place = RankContext(rank=0, world_size=1, local_world_size=1, device=torch.device("cpu"))
        reader = SplitReader(dataset, IngestConfig(in_memory=True), place, NegativesConfig())
        reader.open("train", global_batch_size=1_000, drop_last=True)


def test_negatives_are_refused_where_they_cannot_be_drawn(dataset, tmp_path):
    negatives = recipe(negatives={"per_positive": 2})
    require_trainable(negatives, dataset, "cpu")
    with pytest.raises(ConfigError, match=r"^train\.negatives: .*is not a dataset of interactions"):
        require_trainable(negatives, make_dataset(tmp_path / "plain", 100), "cpu")
    labels = pa.table({
        "item": pa.array([1, 2], pa.int32()), "user": pa.array([1, 2], pa.int32()),
        "label": pa.array([1.0, 0.0], pa.float32()), "group": pa.array([1, 2], pa.int64()),
    })  # fmt: skip
    with pytest.raises(ConfigError, match=r"1 rows of split 'train' have a label of 0"):
        require_trainable(negatives, write_dataset(tmp_path / "labels", SCHEMA, {"train": labels}), "cpu")
    wide = SCHEMA.model_copy(update={"features": (*SCHEMA.features, CategoricalFeature(name="age", cardinality=3))})
    with pytest.raises(ConfigError, match="has no 'age'"):
        require_trainable(
            negatives,
            write_dataset(tmp_path / "wide", wide, {"train": labels.append_column("age", labels["item"])}),
            "cpu",
        )


@pytest.mark.parametrize(
    ("columns", "message"),
    [({"user": "user", "item": "price"}, "'price' is not a categorical"), ({"user": "user", "item": "user"}, "both")],
)
def test_interactions_name_two_categorical_features(columns, message):
    with pytest.raises(ValueError, match=message):
        Schema(label="label", features=SCHEMA.features, interactions=InteractionColumns(**columns))
