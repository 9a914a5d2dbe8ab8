"""Deltas: model folders that hold only what differs from the version before, and the chains that they make.

    MODEL/7                  a whole model
    MODEL/8, MODEL/9, ...    deltas, each of the version before it

A delta's `delta.json` names the files that belong to it with their checksums, and the fingerprint of its parent. So
its own fingerprint stands for all that it is made from, and what is missing, damaged or in another place shows before
anything is used.
"""

import hashlib
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal

from rayrec.common.errors import ConfigError, UserError
from rayrec.config import Config
from rayrec.features.vocabularies.grown_vocabulary import VocabularyChanges
from rayrec.inference.folder.table_files import DELTA_FILE, MappedTensors, is_delta, is_model_folder
from rayrec.ingest.dataset import VOCABULARY_FOLDER, StoredFile, wrong_size
from rayrec.store.files import remove, sha256_of, write_json
from rayrec.store.node_copy import on_this_node, original
from rayrec.store.paths import RemotePath, confined

ROWS_FILE = "weights/rows.safetensors"
"""The rows of tables that a delta changes or appends (`rayrec.inference.folder.changed_rows`)."""
VALUES_FILE = f"{VOCABULARY_FOLDER}/changes.arrow"
"""Values that a delta adds to vocabularies and removes (`rayrec.features.vocabularies.grown_vocabulary`)."""


class Version(Config):
    """A version of a model, as a delta names it."""

    name: str
    """The name of its folder when the delta was made."""
    fingerprint: str
    """Identity of the model (`ModelFolder.version`)."""


class TableGrowth(Config):
    """Difference of a table from the parent's."""

    changed: int
    """Rows of the parent's that are others now."""
    appended: int
    """Rows that follow those of the parent's."""


class VocabularyGrowth(Config):
    """Difference of a vocabulary from the parent's."""

    added: int
    """Ids that follow those of the parent's."""
    removed: int
    """Values of the parent's that are no longer listed."""


class DeltaManifest(Config):
    """The content of `delta.json`, which is written last."""

    version: Literal[1] = 1
    base: Version
    """The whole model at the beginning of the chain."""
    parent: Version
    """The version before, which this one is a delta of."""
    sequence: int
    """How many deltas follow the base, with this one."""
    inherited: tuple[str, ...]
    """The files and folders that the model has and that are read from the parent, as they are the same there."""
    tables: dict[str, TableGrowth]
    """The tables that differ from the parent's."""
    vocabularies: dict[str, VocabularyGrowth]
    """The vocabularies that differ from the parent's, by the feature whose table they belong to."""
    files: tuple[StoredFile, ...]
    """All files of the delta but this one."""

    @property
    def fingerprint(self) -> str:
        """Return what identifies the model that the delta makes of its parent."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()

    def save(self, folder: Path) -> None:
        """Write `delta.json` into a folder in which all other files are."""
        write_json(folder / DELTA_FILE, {**self.model_dump(mode="json"), "fingerprint": self.fingerprint})

    @classmethod
    def load(cls, folder: Path) -> "DeltaManifest":
        """Read the manifest of a delta. Raises UserError if it is damaged."""
        path = folder / DELTA_FILE
        try:
            content = json.loads(path.read_bytes())
            stated = content.pop("fingerprint")
            manifest = cls.model_validate(content)
        except (ValueError, KeyError, TypeError, AttributeError):  # not JSON, not an object, other fields
            stated = manifest = None
        if manifest is None or manifest.fingerprint != stated:
            raise UserError(f"{path}: damaged; copy version {folder.name} again")
        for file in manifest.files:
            confined(file.path, path)
        return manifest


@dataclass(frozen=True)
class Delta:
    """A delta whose files were found to be what they should be."""

    folder: Path
    manifest: DeltaManifest

    @cached_property
    def rows(self) -> MappedTensors:
        """Rows of tables that it changes or appends, if it does."""
        return MappedTensors(self.folder / ROWS_FILE)

    @cached_property
    def values(self) -> VocabularyChanges:
        """Return what it adds to vocabularies and removes, if it does."""
        return VocabularyChanges(self.folder / VALUES_FILE)


def versions_in(folder: Path) -> dict[int, Path]:
    """Return the model folders in a folder that are named by whole numbers from 1, without leading zeros, by number."""
    try:
        named = [child for child in folder.iterdir() if _number(child) is not None and is_model_folder(child)]
    except (FileNotFoundError, NotADirectoryError):
        return {}
    return {int(child.name): child for child in named}


def chain_of(folder: Path) -> list[Path]:
    """Return the folders that a model is read from: a whole model, and after it deltas, the last of which is `folder`.

    It begins with a delta if the version before that one is missing.
    """
    folders = [folder]
    for before in _versions_before(folder):
        if not is_delta(folders[0]):
            break
        folders.insert(0, before)
    return folders


def model_on_this_node(folder: Path) -> Path:
    """Return a model folder of this node; beside a delta are the versions before it that it needs. Raises UserError."""
    folder = original(folder)
    copy = on_this_node(folder)
    if isinstance(folder, RemotePath) and is_delta(copy):
        before = _versions_before(folder)
        for stale in _versions_before(copy):
            if stale.name not in {version.name for version in before}:
                remove(stale)
        for version in before:
            if not is_delta(on_this_node(version)):
                break
    return copy


def require_place(output: Path, parent: Path) -> None:
    """Raise ConfigError unless a model that is written to `output` comes right after `parent`. Raises UserError."""
    before, parent = _versions_before(output), original(parent)
    if not before or before[0] != parent:
        right = f"{parent.parent}/{int(parent.name) + 1 if _number(parent) else 'NUMBER'}"
        raise ConfigError(
            f"--output {output}: a delta must be the version right after its base {parent}; "
            f"give --output {shlex.quote(right)}, or leave out --delta-of"
        )


def verified(folders: Sequence[Path], base: Version) -> tuple[Delta, ...]:
    """Return the deltas in `folders`, each the one of the folder before it and the first one of `base`.

    Raises UserError that names the version that is missing, repeated, damaged or not a delta of the one before it.
    """
    deltas: list[Delta] = []
    before = base
    seen = {base.fingerprint: base.name}
    for folder in folders:
        manifest = DeltaManifest.load(folder)
        _require_parent(folder, manifest, before, seen)
        deltas.append(Delta(folder, manifest))
        before = Version(name=folder.name, fingerprint=manifest.fingerprint)
        seen[before.fingerprint] = before.name
    for delta in deltas:
        for file in delta.manifest.files:
            _require_whole(delta.folder, file)
    return tuple(deltas)


def missing_parent(delta: Path) -> UserError:
    """Return what to say of a delta that has no version before it. Raises UserError if it is damaged, too."""
    name = DeltaManifest.load(delta).parent.name
    return UserError(f"{delta}: needs version {name}, which is missing; copy it beside this one, or export in full")


def _require_parent(folder: Path, manifest: DeltaManifest, before: Version, seen: dict[str, str]) -> None:
    if manifest.fingerprint in seen:
        raise UserError(f"{folder}: the same model as version {seen[manifest.fingerprint]}; remove one of them")
    if manifest.parent.fingerprint == before.fingerprint:
        return
    if not is_model_folder(folder.with_name(manifest.parent.name)):
        raise missing_parent(folder)
    raise UserError(
        f"{folder}: is a delta of another model than version {before.name}, which it follows; copy the right one here, "
        "or export in full"
    )


def _require_whole(folder: Path, file: StoredFile) -> None:
    path = folder / file.path
    wrong = wrong_size(folder, file, lambda name: (folder / name).stat().st_size)
    if wrong is None and sha256_once(path) != file.sha256:
        wrong = f"{path}: content changed since it was written"
    if wrong is not None:
        raise UserError(f"{wrong}; copy version {folder.name} again")


def sha256_once(path: Path) -> str:
    """Return the SHA-256 of a file, which this process reads again only if the file has changed.

    So a replica that loads one delta after the other does not read all before it each time. Raises OSError.
    """
    status = path.stat()
    return _sha256(path, status.st_ino, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=4096)
def _sha256(path: Path, inode: int, size: int, modified_ns: int) -> str:
    return sha256_of(path)


def _versions_before(folder: Path) -> list[Path]:
    """Return the versions before a folder, the newest first; a folder with another name than a version's comes after
    all.
    """
    versions, own = versions_in(folder.parent), _number(folder)
    return [versions[number] for number in sorted(versions, reverse=True) if own is None or number < own]


def _number(folder: Path) -> int | None:
    """Return the number of a version by the name of its folder; None if that is another name."""
    name = folder.name
    return int(name) if name.isascii() and name.isdigit() and name[0] != "0" else None
