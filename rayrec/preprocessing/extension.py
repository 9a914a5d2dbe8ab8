"""A dataset that extends another one: its raw files are new, and its vocabularies grow from those of its parent."""

import hashlib
from collections.abc import Sequence
from typing import Any

from rayrec.common.errors import ConfigError, UserError
from rayrec.features.lookups import lookup_folder
from rayrec.features.raw_columns import SECOND, STATISTICS_FOLDER, History
from rayrec.ingest.dataset import Dataset, SourceFile, Times
from rayrec.preprocessing.earlier_events import EarlierEvents
from rayrec.preprocessing.vocabularies import GrowthRules
from rayrec.raw.input_files import InputFile
from rayrec.recipes import Recipe
from rayrec.store.artifact import Parent, found

_END_BYTES = 2**16
_DAY_SECONDS = 86_400


def source_file(file: InputFile) -> SourceFile:
    """Return a raw file as a manifest describes it. Raises UserError if it cannot be read."""
    digest = hashlib.sha256(file.bytes.to_bytes(8))
    with file.open_packed() as content:
        digest.update(content.read(_END_BYTES))
        if file.bytes > _END_BYTES:
            content.seek(max(_END_BYTES, file.bytes - _END_BYTES))
            digest.update(content.read())
    return SourceFile(path=file.name, bytes=file.bytes, modified=file.modified, digest=digest.hexdigest()[:24])


def require_new(files: Sequence[InputFile], parent: Dataset | None) -> None:
    """Raise UserError if `parent`, or a dataset that it extends, was made from one of the files or a copy of it."""
    if parent is None:
        return
    taken = _digests(parent)
    for file in files:
        if file.bytes and source_file(file).digest in taken:
            raise UserError(
                f"{file.name}: its rows are already in {parent.folder} or an earlier dataset; give new files only"
            )


def new_events(name: str, files: Sequence[InputFile], parent: Dataset | None) -> tuple[InputFile, ...]:
    """Return those of the files of a history's events that `parent`, and the datasets that it extends, were not made
    from.

    Raises UserError if one of `parent` has changed since: its events would count twice.
    """
    if parent is None:
        return tuple(files)
    taken, new = _digests(parent), []
    names = {source.path for source in parent.manifest.sources}
    for file in files:
        if source_file(file).digest in taken:
            continue
        if file.name in names:
            raise UserError(
                f"source.histories.{name}.path: {file.name} has changed since {parent.folder} took in its events, "
                "which would count twice; write new events to new files"
            )
        new.append(file)
    return tuple(new)


def earlier_events(parent: Dataset, history: History, growth: GrowthRules) -> EarlierEvents:
    """Return the events of a history that `parent` has."""
    (until,) = (found.until for found in parent.schema.histories if found.name == history.name)
    moment = growth.first_moment
    return EarlierEvents(
        lookup_folder(parent.folder / STATISTICS_FOLDER, history),
        until,
        None if moment is None else moment * SECOND,
    )


def _digests(dataset: Dataset) -> set[str]:
    """Return the digests of all files that a dataset and those that it extends were made from."""
    return {*dataset.manifest.earlier_sources, *(source.digest for source in dataset.manifest.sources)}


def require_features(names: Sequence[str], parent: Dataset) -> None:
    """Raise UserError unless the features that columns give are those of the dataset that is extended."""
    before = [feature.name for feature in parent.schema.features]
    for name in names:
        if name not in before:
            raise UserError(
                f"column '{name}': {parent.folder} has no such feature; list it in source.ignore of a new dataset, or "
                "leave the column out of the files"
            )
    missing = [name for name in before if name not in names]
    if missing:
        raise UserError(f"feature '{missing[0]}': the files have no column for it, unlike those of {parent.folder}")
    assert list(names) == before, "the order is that of rules and crosses"


def require_histories(histories: Sequence[History], parent: Dataset) -> None:
    """Raise UserError unless the dataset that is extended has the events of these histories."""
    before = [history.rule for history in parent.schema.histories]
    for history in histories:
        if history.rule not in before:
            raise UserError(
                f"history '{history.name}': {parent.folder} has not its earlier events, as it was made by another "
                "version of rayrec; preprocess all files again"
            )


def require_other_rows(dataset: Dataset) -> None:
    """Raise UserError if a dataset that this one extends has as many rows, labels and the same first and last times.

    Files that were packed, or end in another newline, are known by this, which `require_new` cannot tell.
    """
    now, before = dataset, dataset
    while (parent := before.manifest.parent) is not None and now.manifest.times is not None:
        try:
            before = Dataset.open(found(parent, before.folder))
        except UserError:  # the days before were removed
            return
        times = now.manifest.times
        if times.last > times.first and _facts_of_rows(now) == _facts_of_rows(before):
            raise UserError(
                f"{now.manifest.sources[0].path}: its rows are already in {before.folder}, with other names or bytes: "
                f"{sum(split.rows for split in now.manifest.splits.values()):,} rows with the same labels, first and "
                "last time; give new files only"
            )


def _facts_of_rows(dataset: Dataset) -> tuple[object, ...]:
    splits = dataset.manifest.splits.values()
    return sum(split.rows for split in splits), sum(split.positives for split in splits), dataset.manifest.times


def growth_of(
    parent: Dataset | None, times: Times | None, expire_after: str | None, *, compact: bool = False
) -> GrowthRules:
    """Return how the vocabularies of a dataset with these times follow from those of its parent."""
    before = 0 if parent is None else parent.manifest.moment
    # A late file does not make values older than they were.
    moment = max(before, int(times.last)) if times is not None else before + (_DAY_SECONDS if parent is not None else 0)
    return GrowthRules(moment, parent, expire_after, compact)


def require_same_ids(recipe: Recipe, parent: Dataset) -> None:
    """Raise ConfigError if the recipe of an extension reads other columns than its parent, or caps tables otherwise."""
    fix = "set it back, or preprocess all files again"
    parent.require_source(recipe, fix)
    old, new = (getattr(of.preprocess, "max_table_size", None) for of in (parent.recipe, recipe))
    if new != old:
        raise ConfigError(f"preprocess.max_table_size: is {new!r}, but {parent.folder} was made with {old!r}; {fix}")


def facts_of(parent: Dataset) -> dict[str, Any]:
    """Return what the manifest of an extension says of its parent, by field."""
    before = parent.manifest
    return {
        "made_of": {"parent": Parent(id=parent.id, folder=parent.folder)},
        "sequence": before.sequence + 1,
        "earlier_sources": (*before.earlier_sources, *(source.digest for source in before.sources)),
    }
