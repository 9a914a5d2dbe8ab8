"""The model folder: all that prediction needs, in plain files.

    schema.json   vocabulary/   statistics/   config.yaml   metrics.json   MODEL_CARD.md   examples.json
    weights/dense.safetensors   weights/tables/<table>.safetensors

Loading one runs no pickle and no code from the folder. Tables and vocabularies are mapped from disk: a process holds
what it has looked up, and the replicas of a machine share it. There is no list of checksums: a safetensors file
declares its length, and a Parquet or Arrow file ends in its index, so a file that was cut short does not load.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from rayrec.common.errors import UserError
from rayrec.common.files import new_folder, write_atomically, write_json
from rayrec.features.schema import Schema
from rayrec.features.vocabulary import index_file
from rayrec.inference.folder.table_files import (
    DTYPES,
    METADATA,
    SCALE_TENSOR,
    TABLE_TENSOR,
    TABLES_FOLDER,
    MappedTable,
    for_each_table,
    is_model_folder,
    new_table,
    open_tensors,
    table_file,
)
from rayrec.models.common.tables import EmbeddingTable, PooledFeature, distinct_tables
from rayrec.models.registry import build_model
from rayrec.recipes import CONFIG_FILE, Recipe, dump_recipe, load_recipe
from rayrec.storage.staged import fetch

METRICS_FILE = "metrics.json"
CARD_FILE = "MODEL_CARD.md"
DENSE_FILE = "weights/dense.safetensors"

Metrics = dict[str, dict[str, float | None]]
"""Metrics by split, then by name; None if a metric is undefined."""


@contextmanager
def new_model_folder(
    output: Path,
    *,
    schema: Schema,
    tables: Sequence[EmbeddingTable],
    recipe: Recipe,
    metrics: Metrics,
    card: str,
    vocabularies_in: Path,
    dense: Mapping[str, Tensor],
    fill_table: Callable[[EmbeddingTable, Tensor], None],
) -> Iterator[Path]:
    """Yield a new model folder, to which the block adds what only some models have; it becomes `output`, or nothing.

    Args:
        schema: With every embedding dimension resolved.
        tables: The model's (`RankingModel.tables`).
        card: Text of MODEL_CARD.md.
        vocabularies_in: The folder that the schema's vocabulary files are relative to; they are copied.
        dense: State dict of the model's `dense_network`.
        fill_table: Called with each table and the (rows, columns) float32 tensor that its file is mapped to, in
            several threads at once; writes the weights into it. So no more than what it holds itself needs to fit in
            memory.
    """
    with new_folder(output) as folder:
        schema.save(folder)
        write_atomically(folder / CONFIG_FILE, dump_recipe(recipe))
        write_json(folder / METRICS_FILE, metrics)
        write_atomically(folder / CARD_FILE, card)
        for file in _vocabulary_files(schema):
            copy(vocabularies_in / file, folder / file)
            if not (folder / file).is_dir():
                copy(index_file(vocabularies_in / file), index_file(folder / file))
        (folder / TABLES_FOLDER).mkdir(parents=True)
        contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in dense.items()}
        save_file(contiguous, folder / DENSE_FILE, metadata=METADATA)

        def write(table: EmbeddingTable) -> None:
            with new_table(folder / table_file(table.name), table, "fp32") as tensors:
                fill_table(table, torch.from_numpy(tensors[TABLE_TENSOR]))

        for_each_table(write, tables)
        yield folder


@dataclass(frozen=True)
class ModelFolder:
    """A model folder whose parts were found to be there and to fit together; weights are read on demand."""

    folder: Path
    schema: Schema
    recipe: Recipe
    metrics: Metrics
    pooled: tuple[PooledFeature, ...]
    """The model's (`RankingModel.pooled`)."""

    @classmethod
    def open(cls, folder: str | Path) -> "ModelFolder":
        """Open a model folder, which is fetched whole to this node if it is staged.

        Raises UserError naming the file that is missing or does not fit.
        """
        folder = fetch(Path(folder).absolute(), whole=True)
        if not is_model_folder(folder):
            raise UserError(f"{folder}: not a model folder (no {TABLES_FOLDER}/); give the output of `rayrec export`")
        schema = Schema.load(folder)
        recipe = load_recipe(folder / CONFIG_FILE)
        model = build_model(recipe.model, schema, device="meta")
        if model.schema != schema:
            raise UserError(f"{folder}: config.yaml and schema.json disagree on embedding dimensions; export again")
        opened = cls(folder, schema, recipe, _read_metrics(folder / METRICS_FILE), model.pooled)
        for table in model.tables:
            opened._check_table(table)
        for file in _vocabulary_files(schema):
            for needed in (folder / file, index_file(folder / file)):
                if not needed.exists():
                    raise UserError(f"{needed}: missing; export the model again")
        return opened

    @property
    def tables(self) -> tuple[EmbeddingTable, ...]:
        """The embedding tables of the model."""
        return distinct_tables(self.pooled)

    def table(self, table: EmbeddingTable) -> Tensor:
        """The (rows, columns) float32 weights of a table: mapped from its file, or in memory if it is quantised."""
        path = self.folder / table_file(table.name)
        with open_tensors(path) as tensors:
            if tensors.get_slice(TABLE_TENSOR).get_dtype() == DTYPES["fp32"]:
                return tensors.get_tensor(TABLE_TENSOR)
        weights = np.empty(table.shape, np.float32)
        MappedTable(path, table.columns).read(np.arange(table.rows), weights)
        return torch.from_numpy(weights)

    def mapped_table(self, table: EmbeddingTable) -> MappedTable:
        """The table as rows that are looked up in its file."""
        return MappedTable(self.folder / table_file(table.name), table.dim)

    def table_bytes(self) -> int:
        """Size of all tables' files."""
        return sum((self.folder / table_file(table.name)).stat().st_size for table in self.tables)

    def dense(self) -> dict[str, Tensor]:
        """State dict of the model's `dense_network`."""
        with open_tensors(self.folder / DENSE_FILE) as tensors:
            names = tensors.keys()
            return {name: tensors.get_tensor(name) for name in names}

    def _check_table(self, table: EmbeddingTable) -> None:
        path = self.folder / table_file(table.name)
        with open_tensors(path) as tensors:
            names = tensors.keys()
            if TABLE_TENSOR not in names:
                raise UserError(f"{path}: no tensor '{TABLE_TENSOR}' in it; export the model again")
            found = tensors.get_slice(TABLE_TENSOR)
            shape, dtype = tuple(found.get_shape()), found.get_dtype()
            scale = tuple(tensors.get_slice(SCALE_TENSOR).get_shape()) if SCALE_TENSOR in names else None
        if shape != table.shape or dtype not in DTYPES.values():
            wanted = f"{' or '.join(DTYPES.values())} {table.shape}"
            raise UserError(f"{path}: holds {dtype} {shape}, the schema wants {wanted}; export the model again")
        if scale != ((table.rows,) if dtype == DTYPES["int8"] else None):
            raise UserError(f"{path}: its scales do not fit its weights; export the model again")


def _vocabulary_files(schema: Schema) -> list[str]:
    """Relative paths of the schema's vocabularies. Raises UserError on one that would leave the folder."""
    files = {feature.vocabulary.file for feature in schema.categorical if feature.vocabulary is not None}
    for file in files:
        path = PurePosixPath(file)
        if path.is_absolute() or ".." in path.parts:
            raise UserError(f"schema: vocabulary file '{file}' lies outside the folder; use a path below it")
    return sorted(files)


def copy(source: Path, target: Path) -> None:
    """Copy without hard links: a model must not change when somebody writes into the dataset that it came from."""
    if not source.exists():
        raise UserError(f"{source}: missing; the dataset that the model was trained on must still be there")
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, copy_function=shutil.copyfile)
    else:
        shutil.copyfile(source, target)


def _read_metrics(path: Path) -> Metrics:
    try:
        metrics = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{path}: missing; export the model again") from None
    except ValueError:
        raise UserError(f"{path}: not JSON; export the model again") from None
    if not isinstance(metrics, dict):
        raise UserError(f"{path}: not a mapping of splits to metrics; export the model again")
    return metrics
