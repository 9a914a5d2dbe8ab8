"""What ingest must give, computed the slow way: whole row groups with plain pyarrow, rows picked one by one."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from rayrec.features.schema import VectorFeature
from rayrec.ingest.dataset import Dataset
from rayrec.ingest.order import BatchOrder
from rayrec.models.common.batch import Batch


def expected_rows(dataset: Dataset, plan: BatchOrder) -> Iterator[pa.Table]:
    """Yield the rows of each of the rank's batches, in order, without padding."""
    tables = dict[int, pa.Table]()
    for batch in range(plan.start_batch, plan.num_batches):
        parts = []
        for number, start, stop in plan.slices(batch):
            if number not in tables:
                place = plan.row_groups[number]
                tables[number] = pq.ParquetFile(dataset.folder / place.path).read_row_group(place.number)
            table = tables[number]
            order = np.arange(table.num_rows)[plan.row_order.rows(number, table.num_rows, None)]
            parts.append(table.take(pa.array(order[start:stop])))
        yield pa.concat_tables(parts) if parts else pa.table({})


def rows_of(dataset: Dataset, batch: Batch) -> list[dict[str, Any]]:
    """A batch, its padding included, as one dict a row with the names and Python values of the dataset's columns."""
    schema = dataset.schema
    columns: dict[str, list[Any]] = {}
    weighted = {f.name for f in schema.weighted}
    sizes = [f.size if isinstance(f, VectorFeature) else 1 for f in schema.dense]
    for feature, numbers in zip(schema.dense, batch.dense.split(sizes, dim=1), strict=True):
        columns[feature.name] = (numbers if isinstance(feature, VectorFeature) else numbers[:, 0]).tolist()
    for feature, jagged in batch.sparse.to_dict().items():
        lengths = jagged.lengths().tolist()
        lists: list[list[Any]] = [values.tolist() for values in torch.split(jagged.values(), lengths)]
        if feature in weighted:
            weights = [values.tolist() for values in torch.split(jagged.weights(), lengths)]
            pairs = [zip(ids, of_ids, strict=True) for ids, of_ids in zip(lists, weights, strict=True)]
            lists = [[{"id": id_, "weight": weight} for id_, weight in row] for row in pairs]
        else:
            assert not weighted or (jagged.weights() == 1).all(), feature
        columns[feature] = lists if feature.startswith("M") else [ids for (ids,) in lists]
    columns[schema.label] = batch.label.tolist()
    if schema.group:
        columns[schema.group] = batch.group.tolist()
    columns[schema.weight or "weight"] = batch.weight.tolist()
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def padded(dataset: Dataset, table: pa.Table, size: int) -> list[dict[str, Any]]:
    """Return the rows of `table` as `rows_of` gives them, padded as documented in Batch."""
    schema = dataset.schema
    rows = [{**row, schema.weight or "weight": row.get(schema.weight, 1.0)} for row in table.to_pylist()]
    blank: dict[str, Any] = {f.name: 0 for f in schema.features} | {schema.label: 0.0}
    blank |= {f.name: [0.0] * f.size for f in schema.dense if isinstance(f, VectorFeature)}
    blank |= {schema.group: 0} if schema.group else {}
    padding = dict(rows[0] if rows else blank) | {schema.weight or "weight": 0.0}
    padding |= {f.name: [] for f in schema.categorical if f.kind == "multi_hot"}
    return rows + [padding] * (size - len(rows))
