"""Writes a delta, what differs between two versions of a model, and the whole model that a delta stands for.

What is stored is compared, not what training touched: a delta misses nothing under any optimizer, but needs a full
export on the exporting machine.
"""

import filecmp
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rayrec.common.errors import ConfigError, UserError
from rayrec.common.text import shell_line
from rayrec.config.transforms import Vocabulary
from rayrec.features.histories import means_file
from rayrec.features.history_changes import HistoryGrowth, write_history_changes, write_whole_history
from rayrec.features.lookups import lookup_folder
from rayrec.features.raw_columns import STATISTICS_FOLDER, History, Lookup
from rayrec.features.schema import SCHEMA_FILE, CategoricalFeature, Schema
from rayrec.features.vocabulary import index_file, write_changes, write_whole_vocabulary
from rayrec.inference.folder.facts import KNOWN_ITEMS_FILE, REFERENCE_FILE, REFERENCE_ROWS_FILE
from rayrec.inference.folder.model_folder import (
    CARD_FILE,
    DENSE_FILE,
    EXAMPLES_FILE,
    METRICS_FILE,
    ModelFolder,
    copy,
    finish_model,
)
from rayrec.inference.folder.table_files import (
    BLOCK_ROWS,
    TABLES_FOLDER,
    for_each_table,
    new_changed_rows,
    new_table,
    stored_blocks,
    table_file,
)
from rayrec.inference.folder.versions import ROWS_FILE, VALUES_FILE, DeltaManifest, ModelManifest, TableGrowth
from rayrec.ingest.held_out_rows import HELD_OUT_ROWS_FILE
from rayrec.models.common.embedding_tables import EmbeddingTable
from rayrec.models.registry import build_model
from rayrec.recipes import CONFIG_FILE, Recipe
from rayrec.store.artifact import Parent
from rayrec.store.folders import new_folder

_ALWAYS = (SCHEMA_FILE, CONFIG_FILE, METRICS_FILE, CARD_FILE, EXAMPLES_FILE, DENSE_FILE)
"""What a delta has as a whole model does, beside vocabularies and tables."""
_WHERE_THEY_DIFFER = (KNOWN_ITEMS_FILE, REFERENCE_FILE, REFERENCE_ROWS_FILE, HELD_OUT_ROWS_FILE)
"""What a delta has, as a whole, only if it differs from the base's, beside the tables of look-ups."""
_INSTEAD = "export in full, without --delta-of"


def write_delta(model: ModelFolder, before: ModelFolder, output: Path) -> DeltaManifest:
    """Write what differs between a whole model and the base of `before`, or `before` itself, to `output`.

    Return its manifest. What is stored is compared bit by bit, so the base and the delta make the model, whatever it
    was trained with. Tables are compared in blocks of rows, a few tables at once. Raises UserError where a delta cannot
    say what differs.
    """
    assert model.base is None, model.folder
    base = before.base or before
    require_continues(base, model.recipe, model.schema)
    if model.precision != base.precision:
        raise UserError(f"{model.folder}: its tables are {model.precision}, the base's {base.precision}; {_INSTEAD}")
    with new_folder(output) as folder:
        # Small files: all of one kind, and of the other those that the base has in another form or not at all.
        for name in _ALWAYS:
            if model.path(name).exists():
                copy(model.path(name), folder / name)
        histories = _write_histories(model, base, folder)
        in_part = _names(history for history in model.schema.histories if history.name in histories)
        inherited = []
        for name in (*(_names(model.schema.lookups) or [STATISTICS_FOLDER]), *_WHERE_THEY_DIFFER):
            if _is_same(model.path(name), base.path(name)):
                inherited.append(name)
            elif model.path(name).exists() and name not in in_part:
                copy(model.path(name), folder / name)
        # Vocabularies whose content hash is another one, or not known.
        listed, listed_before = _vocabularies(model.schema), _vocabularies(base.schema)
        grown = {
            name: (model.path(vocabulary.file), base.vocabulary(listed_before[name][0]))
            for name, (_, vocabulary) in listed.items()
            if vocabulary.content_hash is None or vocabulary != listed_before[name][1]
        }
        vocabularies = write_changes(folder / VALUES_FILE, grown)
        tables = _write_rows(model, base, folder / ROWS_FILE)
        base_folder = Parent(id=base.manifest.id, folder=base.folder)
        manifest = DeltaManifest(
            made_of={**model.manifest.made_of, "base": base_folder},
            data_time=model.manifest.data_time,
            inherited=tuple(inherited),
            tables=tables,
            vocabularies=vocabularies,
            histories=histories,
        )
        manifest = finish_model(folder, manifest)
    return manifest


def _paths(lookup: Lookup) -> tuple[Path, ...]:
    """Return the folder of a look-up's table in a model folder, and the file beside that of a history."""
    folder = lookup_folder(Path(STATISTICS_FOLDER), lookup)
    return (folder, means_file(folder)) if isinstance(lookup, History) else (folder,)


def _names(lookups: Iterable[Lookup]) -> list[str]:
    """Return the names in a model folder of all that look-ups have there."""
    return [str(path) for lookup in lookups for path in _paths(lookup)]


def _write_histories(model: ModelFolder, base: ModelFolder, output: Path) -> dict[str, HistoryGrowth]:
    """Write what differs between the histories of a model and its base to `output`; return it for those that differ."""
    before = {history.rule: history for history in base.schema.histories}
    growths = {}
    for history in model.schema.histories:
        names = [name for name in _names([history]) if model.path(name).exists()]
        earlier = before.get(history.rule)
        if earlier is not None and not all(_is_same(model.path(name), base.path(name)) for name in names):
            folder, *_ = _paths(history)
            growths[history.name] = write_history_changes(
                model.path(str(folder)), base.history_table(earlier), output / folder
            )
    return growths


def _write_rows(model: ModelFolder, base: ModelFolder, path: Path) -> dict[str, TableGrowth]:
    """Write the rows of tables that differ from the base's or follow them, if any; return the tables that grew."""
    tables_before = {table.name: table for table in base.tables}
    tables = {t.name: (base.mapped_table(tables_before[t.name]), model.mapped_table(t)) for t in model.tables}
    found: dict[str, NDArray[np.int64]] = {}

    def find(table: EmbeddingTable) -> None:
        before, now = tables[table.name]
        pairs = zip(stored_blocks(before), stored_blocks(now), strict=False)
        changed = [start + np.flatnonzero(_differs(old, new)) for (start, old), (_, new) in pairs]
        found[table.name] = np.concatenate([*changed, np.arange(len(before), len(now))])

    for_each_table(find, model.tables)
    changed = [table for table in model.tables if len(found[table.name])]
    if changed:
        ids, columns = ({t.name: found[t.name] for t in changed}, {t.name: t.columns for t in changed})
        with new_changed_rows(path, ids, columns, model.precision) as tensors:

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


def _differs(before: Mapping[str, NDArray], now: Mapping[str, NDArray]) -> NDArray[np.bool_]:
    """Tell (n,) whether the first n rows have other bits now than the n rows before; equal floats may have other
    ones.
    """
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


def write_whole(model: ModelFolder, output: Path) -> None:
    """Write the whole model that a delta and its base make to `output`: what a full export of it would have."""
    assert model.base is not None and model.delta is not None, model.folder
    earlier, precision = _vocabularies(model.base.schema), model.precision
    with new_folder(output) as folder:
        histories = {history: model.delta.manifest.histories.get(history.name) for history in model.schema.histories}
        in_part = _names(history for history, growth in histories.items() if growth is not None)
        for name in (*_ALWAYS, *(_names(model.schema.lookups) or [STATISTICS_FOLDER]), *_WHERE_THEY_DIFFER):
            if model.path(name).exists() and name not in in_part:
                copy(model.path(name), folder / name)
        for history, growth in histories.items():
            if growth is not None:
                write_whole_history(model.history_table(history), growth, folder / _paths(history)[0])
        for name, (_, vocabulary) in _vocabularies(model.schema).items():
            target, before = folder / vocabulary.file, model.base.path(earlier[name][1].file)
            if name in model.delta.manifest.vocabularies:
                rows = model.delta.values.apply(name, before, earlier[name][1].size)
                write_whole_vocabulary(rows, target)
                continue
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
        made_of = {role: parent for role, parent in model.manifest.made_of.items() if role != "base"}
        finish_model(folder, ModelManifest(made_of=made_of, data_time=model.manifest.data_time))


def require_place(output: Path, base: Path) -> None:
    """Raise ConfigError unless `output` is to lie beside the model folder `base`, where a delta looks for it."""
    if output.parent != base.parent:
        right = f"{base.parent}/NUMBER"
        raise ConfigError(
            f"--output {output}: a delta must be beside its base {base}; "
            f"give --output {shell_line([right])}, or leave out --delta-of"
        )


def require_continues(before: ModelFolder, recipe: Recipe, schema: Schema) -> None:
    """Raise UserError unless a model of `recipe` and `schema` may be stored as a delta of the base of `before`.

    Its section `model` is the same, and so are its features with vocabularies and its tables, which have grown at most.
    """
    base = before.base or before
    where = f"{base.folder}: cannot be the base of this delta"
    now, then = (config.model.model_dump(mode="json") for config in (recipe, base.recipe))
    for key in {**then, **now}:
        if now.get(key) != then.get(key):
            raise UserError(
                f"{where}: model.{key} is {then.get(key)!r} there and {now.get(key)!r} in the run; {_INSTEAD}"
            )

    def side(is_now: bool) -> str:
        return "the run" if is_now else "the base"

    listed, listed_before = _vocabularies(schema).keys(), _vocabularies(base.schema).keys()
    for name in sorted(listed ^ listed_before):
        raise UserError(f"{where}: only {side(name in listed)} has a vocabulary of feature '{name}'; {_INSTEAD}")
    tables = {table.name: table for table in build_model(recipe.model, schema, device="meta").tables}
    tables_before = {table.name: table for table in base.tables}
    for name in sorted(tables.keys() | tables_before.keys()):
        if name not in tables or name not in tables_before:
            raise UserError(f"{where}: only {side(name in tables)} has a table '{name}'; {_INSTEAD}")
        shape, shape_before = tables[name].shape, tables_before[name].shape
        if shape[1] != shape_before[1] or shape[0] < shape_before[0]:
            raise UserError(
                f"{where}: table '{name}' has shape {shape_before} there and {shape} in the run; {_INSTEAD}"
            )


def _vocabularies(schema: Schema) -> dict[str, tuple[CategoricalFeature, Vocabulary]]:
    """Return the vocabularies by the feature whose table they belong to."""
    features = {feature.name: feature for feature in schema.categorical if feature.table is None}
    return {name: (feature, feature.vocabulary) for name, feature in features.items() if feature.vocabulary is not None}
