"""The model folder: all that prediction needs, in plain files.

    schema.json   vocabulary/   statistics/   config.yaml   metrics.json   MODEL_CARD.md   examples.json
    held_out_rows.json   weights/dense.safetensors   weights/tables/<table>.safetensors   manifest.json

or, as a delta of a whole one beside it (`rayrec.inference.folder.versions`), what differs from that one:

    schema.json   config.yaml   metrics.json   MODEL_CARD.md   examples.json
    weights/dense.safetensors   weights/rows.safetensors   vocabulary/changes.arrow   manifest.json

Loading one runs no pickle and no code from the folder. Tables and vocabularies are mapped from disk: a process holds
what it has looked up, and the replicas of a machine share it. So of a whole model only the sizes of the files are
compared with the manifest, and of a delta, which is small, the checksums.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from rayrec.common.disk_errors import naming
from rayrec.common.errors import UserError
from rayrec.features.histories import HistoryTable
from rayrec.features.history_changes import with_changes
from rayrec.features.lookup_table import LookupTable
from rayrec.features.lookups import lookup_folder
from rayrec.features.raw_columns import STATISTICS_FOLDER, History, Lookup
from rayrec.features.schema import CategoricalFeature, Schema
from rayrec.features.vocabulary import VocabularyLookup, index_file
from rayrec.inference.folder.table_files import (
    BLOCK_ROWS,
    DTYPES,
    SCALE_TENSOR,
    TABLE_TENSOR,
    TABLES_FOLDER,
    ChangedTable,
    MappedTable,
    StoredTable,
    TablePrecision,
    for_each_table,
    is_delta,
    is_model_folder,
    new_table,
    table_file,
)
from rayrec.inference.folder.tensor_files import open_tensors, save_tensors
from rayrec.inference.folder.versions import ROWS_FILE, Delta, ModelManifest
from rayrec.ingest.held_out_rows import HELD_OUT_ROWS_FILE
from rayrec.models.common.embedding_tables import EmbeddingTable, PooledFeature, distinct_tables
from rayrec.models.registry import build_model
from rayrec.recipes import CONFIG_FILE, Recipe, dump_recipe, load_recipe
from rayrec.store import files
from rayrec.store.artifact import MANIFEST_FILE, Parent, stored_files
from rayrec.store.files import files_below, is_output, write_atomically, write_json
from rayrec.store.folders import new_folder
from rayrec.store.node_copy import on_this_node
from rayrec.store.paths import to_path

METRICS_FILE = "metrics.json"
CARD_FILE = "MODEL_CARD.md"
EXAMPLES_FILE = "examples.json"
DENSE_FILE = "weights/dense.safetensors"

_EDITABLE = (CONFIG_FILE, CARD_FILE, HELD_OUT_ROWS_FILE)
"""What an operator may edit in a whole model, of the configuration its section `serve`, or remove."""

ManifestT = TypeVar("ManifestT", bound=ModelManifest)
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
    made_of: Mapping[str, Parent] | None = None,
    data_time: float | None = None,
) -> Iterator[Path]:
    """Yield a new model folder, to which the block adds what only some models have; it becomes `output`, or nothing.

    The block opens it by `ModelFolder.open_unfinished`; the manifest is written when the block ends.

    Args:
        schema: With every embedding dimension resolved.
        tables: The model's (`RankingModel.tables`).
        card: Text of MODEL_CARD.md.
        vocabularies_in: The folder that the schema's vocabulary files are relative to; they are copied.
        dense: State dict of the model's `dense_network`.
        fill_table: Called with each table and the (rows, columns) float32 tensor that its file is mapped to, in
            several threads at once; writes the weights into it. So no more than what it holds itself needs to fit in
            memory.
        made_of: Its parents, for the manifest.
        data_time: See `ModelManifest`.
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
        save_tensors(folder / DENSE_FILE, {name: tensor.detach().cpu().numpy() for name, tensor in dense.items()})

        def write(table: EmbeddingTable) -> None:
            with new_table(folder / table_file(table.name), table, "fp32") as tensors:
                fill_table(table, torch.from_numpy(tensors[TABLE_TENSOR]))

        for_each_table(write, tables)
        yield folder
        finish_model(folder, ModelManifest(made_of=dict(made_of or {}), data_time=data_time))


@dataclass(frozen=True)
class ModelFolder:
    """A model folder whose parts were found to be there and to fit together; weights are read on demand."""

    folder: Path
    """The path or URI of the folder."""
    here: Path
    """The folder on this node: itself, or the copy of a URI."""
    schema: Schema
    recipe: Recipe
    metrics: Metrics
    pooled: tuple[PooledFeature, ...]
    """The model's (`RankingModel.pooled`)."""
    manifest: ModelManifest
    base: "ModelFolder | None" = None
    """The whole model that a delta is the difference from."""
    delta: Delta | None = None

    @classmethod
    def open(cls, folder: str | Path) -> "ModelFolder":
        """Open a model folder, or a delta with its base; those at a URI are copied to this node.

        Raises UserError naming the file that is missing or does not fit, or the version that a delta lacks.
        """
        folder = to_path(folder).absolute()
        if folder.is_symlink() and is_delta(folder):
            folder = folder.resolve()  # the version that it leads to now
        here = on_this_node(folder)
        if is_delta(here):
            return cls._open_delta(folder, here)
        if not is_model_folder(here):
            raise UserError(f"{folder}: not a model folder (no {MANIFEST_FILE}); give the output of `rayrec export`")
        opened = cls._read(folder, here, ModelManifest.load_whole(here, "copy or export the model again"))
        for table in opened.tables:
            opened._check_table(table)
        return opened

    @classmethod
    def open_unfinished(cls, folder: Path) -> "ModelFolder":
        """Open a whole model that is being written, which has no manifest yet."""
        return cls._read(folder, folder, ModelManifest())

    @classmethod
    def _open_delta(cls, folder: Path, here: Path) -> "ModelFolder":
        delta = Delta.open(here)
        wanted = delta.manifest.base
        place = folder.with_name(wanted.folder.name)
        if not is_model_folder(place) or is_delta(place):
            raise UserError(
                f"{folder}: needs version {place.name}, a whole model, which is missing; copy it beside this one, or "
                "export in full"
            )
        base = cls.open(place)
        if base.manifest.id != wanted.id:
            raise UserError(
                f"{folder}: is a delta of another model than is now in version {place.name}; copy the right one here, "
                "or export in full"
            )
        opened = replace(cls._read(folder, here, delta.manifest), base=base, delta=delta)
        rows = {table.name: table.rows for table in base.tables}
        for table in opened.tables:
            growth = delta.manifest.tables.get(table.name)
            if rows.get(table.name, 0) + (growth.appended if growth else 0) != table.rows:
                raise UserError(f"{folder}: its table '{table.name}' has not all of its rows; export in full")
        return opened

    @classmethod
    def _read(cls, folder: Path, here: Path, manifest: ModelManifest) -> "ModelFolder":
        """Return what small files say."""
        schema = Schema.load(here)
        recipe = load_recipe(here / CONFIG_FILE)
        model = build_model(recipe.model, schema, device="meta")
        if model.schema != schema:
            raise UserError(f"{folder}: config.yaml and schema.json disagree on embedding dimensions; export again")
        return cls(folder, here, schema, recipe, _read_metrics(here / METRICS_FILE), model.pooled, manifest)

    def path(self, name: str) -> Path:
        """Return a file or folder of the model on this node, which a delta may have from its base; it may be absent."""
        places = {name, *map(str, PurePath(name).parents)}
        is_inherited = self.delta is not None and not places.isdisjoint(self.delta.manifest.inherited)
        return ((self.base or self) if is_inherited else self).here / name

    @property
    def tables(self) -> tuple[EmbeddingTable, ...]:
        """Return the embedding tables of the model."""
        return distinct_tables(self.pooled)

    @property
    def precision(self) -> TablePrecision:
        """Return what the tables are stored in."""
        first, *_ = self.tables
        with open_tensors((self.base or self).here / table_file(first.name)) as tensors:
            dtype = tensors.get_slice(TABLE_TENSOR).get_dtype()
        return next(precision for precision, name in DTYPES.items() if name == dtype)

    def table(self, table: EmbeddingTable) -> Tensor:
        """Return the (rows, columns) float32 weights of a table: mapped from its file, or in memory if that is
        not all.
        """
        if self.base is None and self.precision == "fp32":
            with open_tensors(self.here / table_file(table.name)) as tensors:
                return tensors.get_tensor(TABLE_TENSOR)
        weights = np.empty(table.shape, np.float32)
        stored = self.mapped_table(table, table.columns)
        for file in stored.mapped:
            file.expect_order()
        for start in range(0, table.rows, BLOCK_ROWS):
            block = weights[start : start + BLOCK_ROWS]
            stored.read(np.arange(start, start + len(block)), block)
        return torch.from_numpy(weights)

    def mapped_table(self, table: EmbeddingTable, columns: int | None = None) -> StoredTable:
        """Return the table as rows that are looked up in its files; by default the `dim` columns that the model
        reads.
        """
        dim = columns or table.dim
        whole = MappedTable.open((self.base or self).here / table_file(table.name), dim)
        if self.delta is None or table.name not in self.delta.manifest.tables:
            return whole
        return ChangedTable(whole, self.delta.rows, table.name)

    def vocabulary(self, feature: CategoricalFeature) -> VocabularyLookup:
        """Return the look-up of the values of a feature that has a vocabulary."""
        name = feature.table or feature.name
        if self.base is None or self.delta is None:
            assert feature.vocabulary is not None
            return VocabularyLookup.load(self.here / feature.vocabulary.file)
        (before,) = (f for f in self.base.schema.categorical if f.name == name)
        lookup = self.base.vocabulary(before)
        return lookup.changed(self.delta.values, name) if name in self.delta.manifest.vocabularies else lookup

    def lookup_table(self, lookup: Lookup) -> LookupTable:
        """Return the table of a look-up."""
        if isinstance(lookup, History):
            return self.history_table(lookup)
        return LookupTable.open(self.path(str(lookup_folder(Path(STATISTICS_FOLDER), lookup))))

    def history_table(self, history: History) -> HistoryTable:
        """Return the table of events of a history."""
        name = str(lookup_folder(Path(STATISTICS_FOLDER), history))
        growth = self.delta.manifest.histories.get(history.name) if self.delta is not None else None
        if growth is None or self.base is None:
            return HistoryTable.of_history(self.path(name), history)
        (before,) = (of for of in self.base.schema.histories if of.name == history.name)
        return with_changes(self.base.history_table(before), self.here / name, growth)

    def table_bytes(self) -> int:
        """Return the size of all files that the tables are read from."""
        whole = [(self.base or self).here / table_file(table.name) for table in self.tables]
        changed = [self.here / ROWS_FILE] if self.delta is not None and self.delta.manifest.tables else []
        return sum(path.stat().st_size for path in (*whole, *changed))

    def dense(self) -> dict[str, Tensor]:
        """Return the state dict of the model's `dense_network`."""
        with open_tensors(self.here / DENSE_FILE) as tensors:
            names = tensors.keys()
            return {name: tensors.get_tensor(name) for name in names}

    def _check_table(self, table: EmbeddingTable) -> None:
        path = self.here / table_file(table.name)
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


def finish_model(folder: Path, manifest: ManifestT) -> ManifestT:
    """Write the manifest of a new model folder, with all files that are in it; return it."""
    left_out = {MANIFEST_FILE, *(_EDITABLE if manifest.kind == "model" else ())}
    names = [name for name in files_below(folder) if is_output(name) and name not in left_out]
    manifest = manifest.model_copy(update={"files": stored_files(folder, names)})
    manifest.save(folder)
    return manifest


def _vocabulary_files(schema: Schema) -> list[str]:
    """Return the relative paths of the schema's vocabularies."""
    return sorted({feature.vocabulary.file for feature in schema.categorical if feature.vocabulary is not None})


def copy(source: Path, target: Path) -> None:
    """Copy without hard links: a model must not change when somebody writes into the dataset that it came from."""
    if not source.exists():
        raise UserError(f"{source}: missing; the dataset that the model was trained on must still be there")
    with naming(target):
        files.copy(source, target)


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
