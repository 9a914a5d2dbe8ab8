"""The positives of a split as tensors on the device, which are filled once and kept for all epochs."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rayrec.features.schema import InteractionColumns, Schema
from rayrec.ingest.batch_order import BatchOrder, Units
from rayrec.ingest.dataset import Dataset
from rayrec.ingest.reader import PackedRows, RowPacker
from rayrec.ingest.reads import stream_reads


@dataclass(frozen=True, eq=False)
class Positives:
    """Every row of a split, in the order of its parts."""

    users: Tensor
    """(rows,) int32, or int64 if a table has more rows than int32 can count."""
    items: Tensor
    """(rows,) of the same type."""

    def __len__(self) -> int:
        return len(self.users)

    @classmethod
    def read(
        cls,
        dataset: Dataset,
        split: str,
        device: torch.device,
        *,
        in_memory: bool = False,
        world_size: int = 1,
        task_cpus: int | None = None,
    ) -> "Positives":
        """Read the rows from Parquet: in this process if `in_memory`, otherwise through Ray Data in a Ray session.

        `world_size`: the number of workers that do the same at this time; each holds every row. `task_cpus`: see
        `IngestConfig`. Takes the host memory of a few row groups besides the tensors.
        """
        packer = RowPacker(dataset.folder, dataset.schema)
        reads = (
            packer.read_split(dataset.split(split), threads=True)
            if in_memory
            else _stream(dataset, split, world_size, task_cpus)
        )
        columns = interaction_columns(dataset.schema)
        user, item = (_one_hot_index(dataset.schema, name) for name in (columns.user, columns.item))
        id_type = torch.int32 if packer.id_type == np.int32 else torch.int64
        users, items = (torch.empty(dataset.split(split).rows, dtype=id_type, device=device) for _ in range(2))
        filled = 0
        for rows in reads:
            place = slice(filled, filled + len(rows))
            # The rows may be read-only views of Ray's memory, which torch does not accept.
            users[place] = torch.from_numpy(rows.one_hot[user].copy())
            items[place] = torch.from_numpy(rows.one_hot[item].copy())
            filled += len(rows)
        assert filled == len(users), (filled, len(users))
        return cls(users, items)


def interaction_columns(schema: Schema) -> InteractionColumns:
    """The user and item columns of a schema that is known to have them."""
    assert schema.interactions is not None, "negatives are refused for other datasets before workers start"
    return schema.interactions


def _stream(dataset: Dataset, split: str, world_size: int, task_cpus: int | None) -> Iterator[PackedRows]:
    units = Units.of(dataset.split(split).parts)
    # One batch of all rows, in one lane, gives the row groups whole and in order.
    rows = dataset.split(split).rows
    order = BatchOrder(units=units, global_batch_size=rows, read_streams=1, shuffle="none")
    return stream_reads(dataset, order, executions=world_size, task_cpus=task_cpus)


def _one_hot_index(schema: Schema, name: str) -> int:
    return [f.name for f in schema.categorical if f.kind == "categorical"].index(name)
