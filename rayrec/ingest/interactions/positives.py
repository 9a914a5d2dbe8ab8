"""The positives of a split as tensors on the device, which are filled once and kept for all epochs."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rayrec.features.schema import InteractionColumns, Schema
from rayrec.ingest.batch_order import BatchOrder, Units
from rayrec.ingest.dataset import Dataset
from rayrec.ingest.reader import RowPacker, id_type
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
        by_ray_data: bool = False,
        world_size: int = 1,
        task_cpus: int | None = None,
    ) -> "Positives":
        """Read the rows from Parquet: at once if `in_memory`, otherwise streamed (`rayrec.ingest.reads.stream_reads`).

        `by_ray_data`: tasks of Ray Data stream instead of threads. `world_size`: the number of workers that do the same
        at this time; each holds every row. `task_cpus`: see `IngestConfig`. Takes the host memory of a few row groups
        besides the tensors.
        """
        info, schema, columns = dataset.split(split), dataset.schema, interaction_columns(dataset.schema)
        if in_memory:
            reads = RowPacker.of(dataset).read_split(info, threads=True)
        else:
            # One batch of all rows, in one lane, gives the row groups whole and in order.
            units = Units.of(info.parts)
            order = BatchOrder(units=units, global_batch_size=info.rows, read_streams=1, shuffle="none")
            stream = stream_reads(dataset, order, by_ray_data=by_ray_data, executions=world_size, task_cpus=task_cpus)
            reads = chain.from_iterable(stream)
        one_hot = [f.name for f in schema.categorical if f.kind == "categorical"]
        user, item = one_hot.index(columns.user), one_hot.index(columns.item)
        ids_are = getattr(torch, id_type(schema).name)
        users, items = (torch.empty(info.rows, dtype=ids_are, device=device) for _ in range(2))
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
    """Return the user and item columns of a schema that is known to have them."""
    assert schema.interactions is not None, "what needs them is refused for other datasets before workers start"
    return schema.interactions


def num_item_rows(schema: Schema) -> int:
    """Return the number of rows of the items' table."""
    (items,) = (f.cardinality for f in schema.categorical if f.name == interaction_columns(schema).item)
    return items


def positive_pairs(dataset: Dataset, split: str) -> Iterator[NDArray[np.int64]]:
    """Yield the positive rows of each row group as pairs: user * items + item, without those of unknown users and
    items.
    """
    interactions = interaction_columns(dataset.schema)
    names = [feature.name for feature in dataset.schema.categorical]
    packer = RowPacker.of(dataset)
    for rows in packer.read_split(dataset.split(split)):
        user, item = (
            rows.one_hot[names.index(name)].astype(np.int64) for name in (interactions.user, interactions.item)
        )
        known = (rows.label > 0.5) & (user > 0) & (item > 0)
        yield user[known] * num_item_rows(dataset.schema) + item[known]
