"""What a command leaves is an artifact: a folder of files that never change, and `manifest.json`, written last.

The manifest says what the artifact is, which files it has, and by their ids what it is made of, so that the chain from
scores to model, checkpoint, dataset and the dataset before can be followed. A folder without a manifest is unfinished,
or not rayrec's. The id of an artifact is a hash of what its manifest says of it, not of how or where it was made.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rayrec.common.errors import UserError
from rayrec.common.machine import available_cpus
from rayrec.store.claims import FINISHED, MANIFEST_FILE, UNFINISHED
from rayrec.store.files import as_json, sha256_in, sizes_in
from rayrec.store.folders import write_manifest
from rayrec.store.paths import Folder, confined

_LEVELS = 4
"""How many folders around two artifacts are looked at for one that was moved; OUT/days/0001/refit/run has four."""
_VALUES = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class StoredFile(BaseModel):
    """One file of an artifact."""

    model_config = _VALUES

    path: str
    """Relative to the folder."""
    bytes: int
    sha256: str | None
    """None for the shards of a checkpoint, which are too large to be read again after each one."""


class Parent(BaseModel):
    """An artifact that another one is made of."""

    model_config = _VALUES

    id: str
    folder: Folder
    """Its folder or URI at that time."""


class Manifest(BaseModel):
    """The content of manifest.json; each kind of artifact has a class of its own, with its facts."""

    model_config = _VALUES
    command: ClassVar[str]
    """The command that makes artifacts of the kind."""

    kind: str
    version: int
    """Of the kind's layout: a folder of another one is made again."""
    made_of: dict[str, Parent] = {}
    """What it is made of, by role."""
    files: tuple[StoredFile, ...] = ()
    """The files of the artifact as it was made; those that a kind lists elsewhere are in `every_file`."""
    rewritten: tuple[StoredFile, ...] = Field((), exclude_if=lambda given: not given)
    """Those of `files` that are others since a key was forgotten (`rayrec forget`). The id stays, so that what was made
    of the artifact still finds it."""

    @property
    def every_file(self) -> list[StoredFile]:
        """All files of the artifact as they are now, without the manifest."""
        now = {file.path: file for file in self.rewritten}
        return [now.get(file.path, file) for file in self.files]

    def rewritten_as(self, files: Iterable[StoredFile]) -> Self:
        """Return the manifest of the same artifact with files that are others now, if they are."""
        return self.model_copy(update={"rewritten": tuple(file for file in files if file not in self.files)})

    @property
    def id(self) -> str:
        """Identity of the artifact: a hash of all that is said here, but for what is said to people alone, `execution`,
        what was rewritten and the parents' folders.
        """
        said = dict.fromkeys(("execution", "found_keys", "known_values", "rewritten", "warnings"), True)
        content = self.model_dump(mode="json", exclude={**said, "made_of": {"__all__": {"folder"}}})
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def save(self, folder: Path) -> None:
        """Write the manifest, after which the artifact is whole and stays as it is."""
        write_manifest(folder, as_json({"id": self.id, **self.model_dump(mode="json")}))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read the manifest of an artifact of this kind.

        Raises UserError if there is none, if it is damaged, or if it is of another kind or version.
        """
        path, kind = folder / MANIFEST_FILE, cls.model_fields["kind"].default
        content = read_manifest(folder)
        if content is None:
            raise UserError(
                f"{path}: missing, so this is not a finished {kind}; give the output of `rayrec {cls.command}`"
            )
        if content.get("kind", kind) != kind:
            raise UserError(f"{folder}: is a {content['kind']}; give a {kind}, the output of `rayrec {cls.command}`")
        if "kind" not in content or content.get("version") != cls.model_fields["version"].default:
            raise UserError(f"{path}: of another version of rayrec; make it again with `rayrec {cls.command}`")
        stated = content.pop("id", None)
        try:
            manifest = cls.model_validate(content)
        except ValidationError:
            manifest = None
        if manifest is None or manifest.id != stated:
            raise UserError(f"{path}: damaged; make it again with `rayrec {cls.command}`, or copy it again")
        for file in manifest.every_file:
            confined(file.path, path)
        return manifest

    @classmethod
    def load_whole(cls, folder: Path, fix: str) -> Self:
        """Read the manifest of an artifact, and compare the sizes of its files with it.

        Raises UserError as `load`, and one that ends with `fix` if a file is missing or has another size.
        """
        manifest, sizes = cls.load(folder), sizes_in(folder)
        for file in manifest.every_file:
            if wrong := wrong_size(folder, file, sizes):
                raise UserError(f"{wrong}; {fix}")
        return manifest


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return what a manifest says, unchecked; None if there is none. Raises UserError if it is not JSON."""
    path = folder / MANIFEST_FILE
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise UserError(f"{path}: damaged (not whole JSON); make it again")
    # At a URI, that of a folder that is being written, or of one that is whole but no artifact.
    return None if content.keys() & {UNFINISHED, FINISHED} else content


def id_of(folder: Path) -> str | None:
    """Return the id of the artifact that is in a folder now; None if none is. Raises UserError if it is damaged."""
    return (read_manifest(folder) or {}).get("id")


def kind_of(folder: Path) -> str | None:
    """Return the kind of the artifact that is in a folder; None if none is. Raises UserError if it is damaged."""
    return (read_manifest(folder) or {}).get("kind")


def found(parent: Parent, child: Path) -> Path:
    """Return where a parent of the artifact or run in `child` is now.

    That is where it was or, where a folder around both was moved or copied, at its place in that. If it is at neither,
    its id being another or nothing being there, return where it was.
    """
    names = parent.folder.parts[1:]
    around = [folder for folder in child.absolute().parents[:_LEVELS] if len(folder.parts) > 1]
    moved = (folder.joinpath(*names[-n:]) for folder in around for n in range(1, min(_LEVELS, len(names)) + 1))
    for folder in (parent.folder, *moved):
        try:
            if id_of(folder) == parent.id:
                return folder
        except (UserError, OSError):
            continue
    return parent.folder


def parent_of(folder: Path) -> Parent:
    """Return the artifact in a folder as what another one is made of. Raises UserError if there is none."""
    found = id_of(folder)
    if found is None:
        raise UserError(f"{folder / MANIFEST_FILE}: missing, so the folder is not whole; make it again")
    return Parent(id=found, folder=folder)


def stored_files(folder: Path, names: Iterable[str]) -> tuple[StoredFile, ...]:
    """Describe files of an artifact, given by their paths in its folder; reads all of them, several at once.

    The manifest, which at a URI is there from the beginning, is left out.
    """
    names = sorted(name for name in names if name != MANIFEST_FILE)
    with ThreadPoolExecutor(available_cpus()) as pool:  # computing a hash lets other threads run
        return tuple(pool.map(lambda name: stored_file(folder, name), names))


def stored_file(folder: Path, name: str) -> StoredFile:
    """Describe one file of an artifact, which is read for it."""
    with (folder / name).open("rb") as file:
        sha256 = sha256_in(file)
        return StoredFile(path=name, bytes=file.tell(), sha256=sha256)


def wrong_size(folder: Path, file: StoredFile, sizes: Callable[[str], int]) -> str | None:
    """Return what is wrong with the size of a file, by `rayrec.store.files.sizes_in`; None if it is as it should be."""
    path = folder / file.path
    try:
        found = sizes(file.path)
    except FileNotFoundError:
        return f"{path}: missing"
    return None if found == file.bytes else f"{path}: has {found:,} bytes, but had {file.bytes:,} when it was written"


def describe_parents(made_of: Mapping[str, Parent], child: Path) -> dict[str, Any]:
    """Return what an artifact in `child` is made of, as JSON values: id, folder and, as far as it is there, its own
    parents.
    """
    parents_found = {}
    for role, parent in made_of.items():
        folder = found(parent, child)
        described: dict[str, Any] = {"id": parent.id, "folder": str(folder)}
        try:
            content = read_manifest(folder)
        except UserError:
            content = None
        described["found"] = content is not None and content.get("id") == parent.id
        if content is not None and described["found"]:
            parents = {name: Parent.model_validate(value) for name, value in content["made_of"].items()}
            described["made_of"] = describe_parents(parents, folder)
        parents_found[role] = described
    return parents_found
