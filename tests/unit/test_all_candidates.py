"""Full ranking: each user of a split meets each item that it has not seen, once, on any number of ranks."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from rayrec.ingest.dataset import Dataset
from rayrec.ingest.interactions import AllCandidates
from tests.builders import users_and_items, write_dataset

SCHEMA = users_and_items(8, 6, item_first=True)
"""The item first: the order of the features is the schema's, not that of user and item."""
TRAIN = [(1, 1, 1), (1, 2, 1), (3, 5, 1), (3, 4, 0), (4, 1, 1), (7, 3, 1)]
TEST = [(1, 3, 1), (1, 5, 0), (3, 1, 1), (3, 2, 1), (7, 3, 1), (0, 2, 1), (5, 0, 1)]
"""(user, item, label): a negative; one that was trained on; an unknown user and an unknown item."""
EXPECTED = {
    (1, 3, 1.0), (1, 4, 0.0), (1, 5, 0.0),
    (3, 1, 1.0), (3, 2, 1.0), (3, 3, 0.0), (3, 4, 0.0),
    *((7, item, float(item == 3)) for item in range(1, 6)),
}  # fmt: skip


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    tables = {split: _table(rows) for split, rows in (("train", TRAIN), ("test", TEST))}
    return write_dataset(tmp_path_factory.mktemp("pairs") / "data", SCHEMA, tables, rows_per_row_group=2)


def _table(rows: list[tuple[int, int, int]]) -> pa.Table:
    user, item, label = (np.array(column, np.int32) for column in zip(*rows, strict=True))
    return pa.table({"item": item, "user": user, "label": label.astype(np.float32)})


@pytest.mark.parametrize("size", [1, 4, 5, 100])
@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_every_candidate_once(dataset: Dataset, world_size: int, size: int) -> None:
    found, batches_of_rank = [], []
    for rank in range(world_size):
        candidates = AllCandidates.read(dataset, "test", rank=rank, world_size=world_size)
        batches = list(candidates.batches(size, torch.device("cpu")))
        batches_of_rank.append(len(batches))
        for batch in batches:
            assert (batch.size, batch.sparse.keys(), batch.dense.shape) == (size, ["item", "user"], (size, 0))
            user, item = (batch.sparse[name].values() for name in ("user", "item"))
            assert user.dtype == torch.int32 and user.max() < 8 and item.max() < 6
            assert torch.equal(batch.group, user.long())
            real = batch.weight > 0
            columns = (column[real].tolist() for column in (user, item, batch.label))
            found += list(zip(*columns, strict=True))
    assert len(set(batches_of_rank)) == 1, "look-ups in sharded tables are collectives"
    assert sorted(found) == sorted(EXPECTED)


def test_a_split_of_unknown_users_has_no_candidate(tmp_path: Path) -> None:
    tables = {"train": _table(TRAIN), "test": _table([(0, 2, 1)])}
    data = write_dataset(tmp_path / "data", SCHEMA, tables)
    assert list(AllCandidates.read(data, "test").batches(4, torch.device("cpu"))) == []
