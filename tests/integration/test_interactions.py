"""Positives through Ray Data are those of the files, in their order."""

import pyarrow as pa
import pytest
import torch

from rayrec.ingest.interactions import Positives
from tests.builders import users_and_items, write_dataset

pytestmark = pytest.mark.usefixtures("ray_cluster")


def test_streamed_positives_are_the_rows_in_the_order_of_the_parts(tmp_path):
    schema = users_and_items(5_001, 101)
    users, items = torch.arange(5_000, dtype=torch.int32), torch.arange(5_000, dtype=torch.int32) % 101
    table = pa.table({"user": users.numpy(), "item": items.numpy(), "label": torch.ones(5_000).numpy()})
    dataset = write_dataset(tmp_path / "data", schema, {"train": table}, rows_per_part=900, rows_per_row_group=130)
    for in_memory in (False, True):
        positives = Positives.read(dataset, "train", torch.device("cpu"), in_memory=in_memory, world_size=2)
        assert torch.equal(positives.users, users) and torch.equal(positives.items, items)
