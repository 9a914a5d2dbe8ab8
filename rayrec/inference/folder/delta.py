"""Writes a delta, what differs between two versions of a model, and the whole model that a delta stands for."""

import filecmp
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.config.transforms import Vocabulary
from rayrec.features.schema import SCHEMA_FILE, STATISTICS_FOLDER, CategoricalFeature, Schema
from rayrec.features.vocabularies.grown_vocabulary import GrownVocabulary, new_changes, write_whole_vocabulary
from rayrec.features.vocabularies.vocabulary import index_file
from rayrec.inference.folder.chain import ROWS_FILE, VALUES_FILE, DeltaManifest, TableGrowth, VocabularyGrowth
from rayrec.inference.folder.changed_rows import StoredTable, new_changed_rows, stored_blocks
from rayrec.inference.folder.model_folder import CARD_FILE, DENSE_FILE, EXAMPLES_FILE, METRICS_FILE, ModelFolder, copy
from rayrec.inference.folder.origin import ORIGIN_FILE
from rayrec.inference.folder.reference_rows import REFERENCE_ROWS_FILE
from rayrec.inference.folder.reference_traffic import REFERENCE_FILE
from rayrec.inference.folder.table_files import (
    BLOCK_ROWS,
    TABLES_FOLDER,
    TablePrecision,
    for_each_table,
    new_table,
    table_file,
)
from rayrec.inference.recommender import KNOWN_ITEMS_FILE
from rayrec.ingest.dataset import StoredFile
from rayrec.ingest.held_out_rows import HELD_OUT_ROWS_FILE
from rayrec.models.common.embedding_tables import EmbeddingTable
from rayrec.models.registry import build_model
from rayrec.recipes import CONFIG_FILE, Recipe
from rayrec.store.files import new_folder, sha256_of

_ALWAYS = (SCHEMA_FILE, CONFIG_FILE, METRICS_FILE, CARD_FILE, EXAMPLES_FILE, ORIGIN_FILE, DENSE_FILE)
"""What a delta has as a whole model does, beside vocabularies and tables."""
_WHERE_THEY_DIFFER = (STATISTICS_FOLDER, KNOWN_ITEMS_FILE, REFERENCE_FILE, REFERENCE_ROWS_FILE, HELD_OUT_ROWS_FILE)
"""What a delta has, as a whole, only if it differs from the parent's."""
_INSTEAD = "export in full, without --delta-of"


def write_delta(model: ModelFolder, parent: ModelFolder, output: Path) -> DeltaManifest:
    """Write what differs between a whole model and its parent, which may be a delta, to `output`; return `delta.json`.

    What is stored is compared bit by bit, so the parent and the delta make the model, whatever it was trained with.
    Tables are compared in blocks of rows, a few tables at once. Raises UserError where a delta cannot say what differs.
    """
    assert model.base is None, model.folder
    require_continues(parent, model.recipe, model.schema)
    precision = model.precision
    if precision != parent.precision:
        raise UserError(f"{model.folder}: its tables are {precision}, the parent's {parent.precision}; {_INSTEAD}")
    with new_folder(output) as folder:
        for name in _ALWAYS:
            if model.path(name).exists():
                copy(model.path(name), folder / name)
        inherited = []
        for name in _WHERE_THEY_DIFFER:
            own, before = model.path(name), parent.path(name)
            if own.exists() and _is_same(own, before):
                inherited.append(name)
            elif own.exists():
                copy(own, folder / name)
        vocabularies = _write_values(model, parent, folder / VALUES_FILE)
        tables = _write_rows(model, parent, folder / ROWS_FILE, precision)
        names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        manifest = DeltaManifest(
            base=(parent.base or parent).version,
            parent=parent.version,
            sequence=len(parent.deltas) + 1,
            inherited=tuple(inherited),
            tables=tables,
            vocabularies=vocabularies,
            files=tuple(
                StoredFile(path=name, bytes=(folder / name).stat().st_size, sha256=sha256_of(folder / name))
                for name in names
            ),
        )
        manifest.save(folder)
    return manifest


def write_whole(model: ModelFolder, output: Path) -> None:
    """Write the whole model that a delta and those before it make to `output`: what a full export of it would have."""
    assert model.base is not None, model.folder
    precision = model.precision
    earlier = _vocabularies(model.base.schema)
    with new_folder(output) as folder:
        for name in (*_ALWAYS, *_WHERE_THEY_DIFFER):
            if model.path(name).exists():
                copy(model.path(name), folder / name)
        for name, (feature, vocabulary) in _vocabularies(model.schema).items():
            target, lookup = folder / vocabulary.file, model.vocabulary(feature)
            before = model.base.folder / earlier[name][1].file
            if isinstance(lookup, GrownVocabulary):
                write_whole_vocabulary(lookup.rows(before), target)
            else:
                copy(before, target)
                if not target.is_dir():
                    copy(index_file(before), index_file(target))
        (folder / TABLES_FOLDER).mkdir(parents=True)

        def write(table: EmbeddingTable) -> None:
            with new_table(folder / table_file(table.name), table, precision) as tensors:
                for start, block in stored_blocks(model.mapped_table(table)):
                    for name, values in block.items():
                        tensors[name][start : start + len(values)] = values

        for_each_table(write, model.tables)


def require_continues(parent: ModelFolder, recipe: Recipe, schema: Schema) -> None:
    """Raise UserError unless a model of `recipe` and `schema` may be stored as a delta of `parent`.

    Its section `model` is the same, and so are its features with vocabularies and its tables, which have grown at most.
    """
    where = f"{parent.folder}: cannot be the base of this delta"
    now, before = (config.model.model_dump(mode="json") for config in (recipe, parent.recipe))
    for key in {**before, **now}:
        if now.get(key) != before.get(key):
            raise UserError(
                f"{where}: model.{key} is {before.get(key)!r} there and {now.get(key)!r} in the run; {_INSTEAD}"
            )
    listed, listed_before = _vocabularies(schema).keys(), _vocabularies(parent.schema).keys()
    for name in sorted(listed ^ listed_before):
        raise UserError(f"{where}: only {_side(name in listed)} has a vocabulary of feature '{name}'; {_INSTEAD}")
    tables = {table.name: table for table in build_model(recipe.model, schema, device="meta").tables}
    tables_before = {table.name: table for table in parent.tables}
    for name in sorted(tables.keys() | tables_before.keys()):
        if name not in tables or name not in tables_before:
            raise UserError(f"{where}: only {_side(name in tables)} has a table '{name}'; {_INSTEAD}")
        shape, shape_before = tables[name].shape, tables_before[name].shape
        if shape[1] != shape_before[1] or shape[0] < shape_before[0]:
            raise UserError(
                f"{where}: table '{name}' has shape {shape_before} there and {shape} in the run; {_INSTEAD}"
            )


def _side(is_now: bool) -> str:
    return "the run" if is_now else "the base"


def _vocabularies(schema: Schema) -> Mapping[str, tuple[CategoricalFeature, Vocabulary]]:
    """Return the vocabularies by the feature whose table they belong to."""
    return {
        feature.name: (feature, transform)
        for feature in schema.categorical
        for transform in feature.transforms
        if isinstance(transform, Vocabulary) and feature.table is None
    }


def _write_values(model: ModelFolder, parent: ModelFolder, path: Path) -> dict[str, VocabularyGrowth]:
    """Write what vocabularies add to those of the parent and remove, if they do; return that of each that does."""
    now, before, grown = _vocabularies(model.schema), _vocabularies(parent.schema), {}
    with new_changes(path, list(now)) as add:
        for name, (_, vocabulary) in now.items():
            feature, vocabulary_before = before[name]
            if vocabulary.fingerprint is not None and vocabulary == vocabulary_before:
                continue
            growth = add(name, model.folder / vocabulary.file, parent.vocabulary(feature))
            if any(growth):
                grown[name] = VocabularyGrowth(added=growth.added, removed=growth.removed)
    return grown


def _write_rows(
    model: ModelFolder, parent: ModelFolder, path: Path, precision: TablePrecision
) -> dict[str, TableGrowth]:
    """Write the rows of tables that differ from the parent's or follow them, if any; return the tables that grew."""
    tables_before = {table.name: table for table in parent.tables}
    tables = {
        table.name: (parent.mapped_table(tables_before[table.name]), model.mapped_table(table))
        for table in model.tables
    }
    found: dict[str, NDArray[np.int64]] = {}

    def find(table: EmbeddingTable) -> None:
        found[table.name] = _changed_ids(*tables[table.name])

    for_each_table(find, model.tables)
    changed = [table for table in model.tables if len(found[table.name])]
    if changed:
        ids, columns = ({t.name: found[t.name] for t in changed}, {t.name: t.columns for t in changed})
        with new_changed_rows(path, ids, columns, precision) as tensors:

            def write(table: EmbeddingTable) -> None:
                of_table = found[table.name]
                for start, block in stored_blocks(tables[table.name][1]):
                    first, last = of_table.searchsorted([start, start + BLOCK_ROWS])
                    for name, values in block.items():
                        tensors[table.name][name][first:last] = values[of_table[first:last] - start]

            for_each_table(write, changed)
    growths = {}
    for table in changed:
        before, now = map(len, tables[table.name])
        growths[table.name] = TableGrowth(changed=len(found[table.name]) - (now - before), appended=now - before)
    return growths


def _changed_ids(before: StoredTable, now: StoredTable) -> NDArray[np.int64]:
    """(n,) the rows that differ from those before or follow them, ascending."""
    pairs = zip(stored_blocks(before), stored_blocks(now), strict=False)
    changed = [start + np.flatnonzero(_differs(old, new)) for (start, old), (_, new) in pairs]
    return np.concatenate([*changed, np.arange(len(before), len(now))])


def _differs(before: Mapping[str, NDArray], now: Mapping[str, NDArray]) -> NDArray[np.bool_]:
    """(n,) whether the first n rows have other bits now than the n rows before; equal floats may have other ones."""
    differs = np.zeros(len(next(iter(before.values()))), bool)
    for name, values in before.items():
        bits = np.dtype(f"u{values.dtype.itemsize}")
        unequal = values.view(bits) != now[name][: len(values)].view(bits)
        differs |= unequal.reshape(len(values), -1).any(axis=1)
    return differs


def _is_same(one: Path, other: Path) -> bool:
    """Return whether two files have the same content, or two folders the same files."""
    if not one.is_dir() or not other.is_dir():
        return one.is_file() and other.is_file() and filecmp.cmp(one, other, shallow=False)
    names = [
        sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file()) for folder in (one, other)
    ]
    return names[0] == names[1] and all(filecmp.cmp(one / name, other / name, shallow=False) for name in names[0])
