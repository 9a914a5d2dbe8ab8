"""Small inputs that tests share: dataset folders written directly, without Spark.

dataset = make_dataset(tmp_path / "data", {"train": 5_000, "test": 1_000}, numeric=3, categorical=4, multi_hot=1)
schema = make_schema(numeric=3, categorical=4)
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rayrec.config.preprocess import ShardLayoutConfig
from rayrec.config.table import HistoryConfig, TakeLast
from rayrec.features.raw_columns import History, RawColumn, Taken
from rayrec.features.schema import (
    CategoricalFeature,
    InteractionColumns,
    MultiHotFeature,
    NumericFeature,
    Schema,
    VectorFeature,
)
from rayrec.features.transforms import with_weights
from rayrec.ingest.dataset import Dataset, DatasetManifest, PartInfo, SplitInfo
from rayrec.models.dlrm.config import DLRMConfig
from rayrec.preprocessing import parts as shards
from rayrec.recipes import Recipe
from rayrec.sources.criteo.config import CriteoSourceConfig
from rayrec.sources.table.config import TableConfig

CRITEO = Schema(
    label="label",
    features=(
        *(NumericFeature(name=f"I{i}") for i in range(1, 14)),
        *(CategoricalFeature(name=f"C{i}", cardinality=10) for i in range(1, 27)),
    ),
)
"""Criteo's columns, with small tables."""


def make_schema(
    numeric: int = 3,
    categorical: int = 4,
    multi_hot: int = 0,
    *,
    cardinalities: Sequence[int] = (11, 101, 1_009, 23),
    group: bool = False,
    weight: bool = False,
    vector: int = 0,
    shared: Mapping[str, str] | None = None,
    weighted: Collection[str] = (),
) -> Schema:
    """Features I1.., C1.., M1.. in this order; label `label`, optional `group` and `weight` columns.

    Table i, multi-hot ones counted after the categorical ones, has `cardinalities[i % len(cardinalities)]` rows.
    `vector`: the size of a feature V1 that stands before all others. `shared`: the feature whose table another reads.
    `weighted`: the multi-hot features whose ids have weights.
    """
    shared = shared or {}
    sizes = [cardinalities[i % len(cardinalities)] for i in range(categorical + multi_hot)]
    schema = Schema(
        label="label",
        group="group" if group else None,
        weight="weight" if weight else None,
        features=(
            *((VectorFeature(name="V1", size=vector),) if vector else ()),
            *(NumericFeature(name=f"I{i + 1}") for i in range(numeric)),
            *(
                CategoricalFeature(name=f"C{i}", cardinality=n, table=shared.get(f"C{i}"))
                for i, n in enumerate(sizes[:categorical], 1)
            ),
            *(
                MultiHotFeature(
                    name=f"M{i}", cardinality=n, hotness=4, pooling=("mean", "sum")[i % 2], table=shared.get(f"M{i}")
                )
                for i, n in enumerate(sizes[categorical:], 1)
            ),
        ),
    )
    if not weighted:
        return schema
    weights = tuple(RawColumn(name=f"{name}_weights", type="numbers") for name in weighted)
    features = [
        feature.model_copy(update={"inputs": (feature.name, f"{feature.name}_weights")})
        if feature.name in weighted
        else feature
        for feature in schema.features
    ]
    return Schema.model_validate({**dict(schema), "features": features, "columns": (*schema.raw_columns, *weights)})


def with_history(schema: Schema, name: str, lists: Mapping[str, str], length: int = 4) -> Schema:
    """Return the schema with multi-hot features as `lists` of a history: newest values of the columns they map to."""
    takes = tuple(Taken(column=column, op="last", of=of, length=length) for column, of in lists.items())
    history = History(name=name, keys=("who",), time="when", takes=takes)
    columns = {column.name: column for column in schema.raw_columns}
    columns |= {"who": RawColumn(name="who", type="text"), "when": RawColumn(name="when", type="time")}
    update = {"columns": tuple(columns.values()), "lookups": (*schema.lookups, history)}
    return Schema.model_validate({**dict(schema), **update})


def history_source(schema: Schema) -> TableConfig:
    """Return the source of a recipe whose histories are those of `with_history`."""
    histories = {
        history.name: HistoryConfig(
            by=history.keys, take=tuple(TakeLast(column=t.of or "", length=t.length) for t in history.takes)
        )
        for history in schema.histories
    }
    return TableConfig(label="label", time="when", features=(), histories=histories)


def users_and_items(users: int, items: int, *, group: str | None = None, item_first: bool = False) -> Schema:
    """Return a schema of interactions: ids below `users` and `items`, of which 0 is unknown."""
    features = [CategoricalFeature(name="user", cardinality=users), CategoricalFeature(name="item", cardinality=items)]
    return Schema(
        label="label",
        group=group,
        features=tuple(features[::-1] if item_first else features),
        interactions=InteractionColumns(user="user", item="item"),
    )


WITH_SHARED_TABLES = make_schema(
    numeric=2,
    categorical=3,
    multi_hot=2,
    cardinalities=(11, 101),
    vector=3,
    shared={"C3": "C1", "M1": "C2", "M2": "C1"},
)
"""A vector, and tables that one-hot and multi-hot features read besides the feature that they belong to."""


def make_recipe(**sections: Any) -> Recipe:
    """Return a recipe of a small source and model unless `sections` say otherwise."""
    return Recipe(**{"name": "test", "source": CriteoSourceConfig(), "model": DLRMConfig(), **sections})


def make_rows(schema: Schema, rows: int, seed: int) -> pa.Table:
    """`rows` encoded rows: standard normal numbers, skewed ids, labels that depend on the first of each.

    The types are those of a dataset folder. Rows of a group (7 of them) follow each other.
    """
    rng = np.random.default_rng([seed, rows])
    columns: dict[str, pa.Array] = {}
    score = np.full(rows, -0.5)
    for index, number in enumerate(schema.numeric):
        values = rng.standard_normal(rows).astype(np.float32)
        columns[number.name] = pa.array(values)
        if index == 0:
            score += values
    for dense in schema.dense:
        if isinstance(dense, VectorFeature):
            numbers = rng.standard_normal(rows * dense.size).astype(np.float32)
            columns[dense.name] = pa.FixedSizeListArray.from_arrays(pa.array(numbers), dense.size)
    one_hot_seen = False
    for feature in schema.categorical:
        if isinstance(feature, MultiHotFeature):
            lengths = rng.integers(0, feature.hotness + 1, rows)
            offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
            ids = _skewed_ids(rng, feature.cardinality, int(offsets[-1]))
            elements = pa.array(ids)
            if feature.weights is not None:
                # Some rows weigh nothing at all.
                drawn = rng.exponential(size=len(ids)) * np.repeat(rng.random(rows) < 0.9, lengths)
                elements = with_weights(ids, np.where(rng.random(len(ids)) < 0.1, 0.0, drawn).astype(np.float32))
            columns[feature.name] = pa.ListArray.from_arrays(pa.array(offsets), elements)
        else:
            ids = _skewed_ids(rng, feature.cardinality, rows)
            columns[feature.name] = pa.array(ids)
            if not one_hot_seen:
                score += np.where(ids % 2 == 0, 1.0, -1.0)
                one_hot_seen = True
    labels = rng.random(rows) < 1.0 / (1.0 + np.exp(-score))
    columns[schema.label] = pa.array(labels.astype(np.float32))
    if schema.group:
        columns[schema.group] = pa.array(np.arange(rows, dtype=np.int64) // 7)
    if schema.weight:
        columns[schema.weight] = pa.array(rng.integers(0, 5, rows).astype(np.float32) / 2)
    return pa.table(columns)


def make_pairs_dataset(folder: Path, rows: Mapping[str, int], users: int = 40, items: int = 30) -> Dataset:
    """Write a finished dataset of random users, items and labels, in splits of so many rows, and open it."""
    rng = np.random.default_rng(2)
    tables = {
        split: pa.table({
            "user": rng.integers(1, users, count).astype(np.int32),
            "item": rng.integers(1, items, count).astype(np.int32),
            "label": rng.integers(0, 2, count).astype(np.float32),
        })
        for split, count in rows.items()
    }  # fmt: skip
    return write_dataset(folder, users_and_items(users, items), tables)


def make_dataset(
    folder: Path,
    rows: int | Mapping[str, int] = 2_000,
    numeric: int = 3,
    categorical: int = 4,
    multi_hot: int = 0,
    *,
    seed: int = 0,
    rows_per_part: int = 1_000,
    rows_per_row_group: int = 128,
    cardinalities: Sequence[int] = (11, 101, 1_009, 23),
    group: bool = False,
    weight: bool = False,
    vector: int = 0,
    shared: Mapping[str, str] | None = None,
    weighted: Collection[str] = (),
    recipe: Recipe | None = None,
    group_sizes: Sequence[int] = (),
) -> Dataset:
    """Write a finished dataset folder and open it.

    `rows`: rows of `train`, or rows by split. The feature columns are those of `make_schema`, the values those of
    `make_rows`; features have no transforms, so the folder has no vocabulary. `recipe` goes into the manifest.
    `group_sizes`: rows of the groups, in turn, which are then whole in row groups.
    """
    schema = make_schema(
        numeric,
        categorical,
        multi_hot,
        cardinalities=cardinalities,
        group=group or bool(group_sizes),
        weight=weight,
        vector=vector,
        shared=shared,
        weighted=weighted,
    )
    splits = {"train": rows} if isinstance(rows, int) else rows
    tables = {name: make_rows(schema, count, seed + i) for i, (name, count) in enumerate(splits.items())}
    if group_sizes:
        for name, table in tables.items():
            turns = -(-table.num_rows // sum(group_sizes))
            groups = np.repeat(np.arange(turns * len(group_sizes)), list(group_sizes) * turns)[: table.num_rows]
            tables[name] = table.set_column(table.column_names.index("group"), "group", pa.array(groups))
    return write_dataset(
        folder,
        schema,
        tables,
        rows_per_part=rows_per_part,
        rows_per_row_group=rows_per_row_group,
        recipe=recipe,
        whole_groups=bool(group_sizes),
    )


def write_dataset(
    folder: Path,
    schema: Schema,
    tables: Mapping[str, pa.Table],
    *,
    rows_per_part: int = 1_000,
    rows_per_row_group: int = 128,
    recipe: Recipe | None = None,
    whole_groups: bool = False,
) -> Dataset:
    """Write the encoded `tables` (by split) as a finished dataset folder and open it.

    `whole_groups`: a split is one part, as preprocessing writes it, whose row groups end with groups.
    """
    folder.mkdir(parents=True, exist_ok=True)
    splits = {}
    for name, table in tables.items():
        if whole_groups:
            (folder / name).mkdir()
            layout = ShardLayoutConfig(rows_per_row_group=rows_per_row_group)
            parts = [shards.write_part(folder, name, 0, schema.label, layout, table.to_batches(), schema.group).info]
        else:
            cuts = enumerate(range(0, table.num_rows, rows_per_part))
            parts = [
                write_part(
                    folder, f"{name}/part-{i:05d}.parquet", table.slice(start, rows_per_part), rows_per_row_group
                )
                for i, start in cuts
            ]
        positives = float(np.asarray(table[schema.label]).sum())
        splits[name] = SplitInfo(rows=table.num_rows, positives=positives, parts=tuple(parts))
    schema.save(folder)
    config = (recipe or make_recipe()).model_dump(mode="json")
    DatasetManifest(splits=splits, rejected={}, sources=(), config=config).save(folder)
    return Dataset.open(folder)


def write_part(folder: Path, path: str, rows: pa.Table, rows_per_row_group: int) -> PartInfo:
    """Write one Parquet part at `path`, relative to the dataset folder."""
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, folder / path, row_group_size=rows_per_row_group, compression="lz4")
    content = (folder / path).read_bytes()
    metadata = pq.read_metadata(folder / path)
    return PartInfo(
        path=path,
        rows=rows.num_rows,
        row_groups=tuple(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)),
        bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )


def _skewed_ids(rng: np.random.Generator, cardinality: int, count: int) -> np.ndarray:
    return np.minimum(cardinality * rng.random(count) ** 3, cardinality - 1).astype(np.int32)
