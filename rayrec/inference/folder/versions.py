"""Versions of a model in one folder: whole models, and deltas, which hold only what differs from a whole one.

    MODEL/7                  a whole model
    MODEL/8, MODEL/9, ...    deltas of MODEL/7, each by itself

The manifest of either lists its files with their checksums, and that of a delta names its base. So the id of a delta
stands for all that the model is made from, and what is missing or damaged shows before anything is used.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal

from rayrec.common.errors import UserError
from rayrec.config import Config
from rayrec.features.history_changes import HistoryGrowth
from rayrec.features.vocabulary import VocabularyChanges, VocabularyGrowth
from rayrec.inference.folder.table_files import is_delta, is_model_folder
from rayrec.inference.folder.tensor_files import MappedTensors
from rayrec.ingest.dataset import VOCABULARY_FOLDER
from rayrec.store.artifact import Manifest, Parent
from rayrec.store.files import sha256_of
from rayrec.store.paths import confined

ROWS_FILE = "weights/rows.safetensors"
"""The rows of tables that a delta changes or appends (`table_files.new_changed_rows`)."""
VALUES_FILE = f"{VOCABULARY_FOLDER}/changes.arrow"
"""The values that a delta adds to vocabularies and removes (`rayrec.features.vocabulary.write_changes`)."""


class TableGrowth(Config):
    """Difference of a table from the base's."""

    changed: int
    """Rows of the base's that are others now."""
    appended: int
    """Rows that follow those of the base's."""


class ModelManifest(Manifest):
    """The manifest of a model folder, which is made of a checkpoint and of the dataset that it was trained on.

    Configuration, card and held-out rows of a whole model do not count as its files: people may edit or remove them.
    """

    command = "export"

    kind: Literal["model", "delta"] = "model"
    version: Literal[1] = 1
    data_time: float | None = None
    """When the newest row happened that it was trained on, in seconds since 1970; None if rows have no time."""


class DeltaManifest(ModelManifest):
    """The manifest of a delta, whose base is one of its parents."""

    kind: Literal["delta"] = "delta"
    inherited: tuple[str, ...]
    """The files and folders that the model has and that are read from the base, as they are the same there."""
    tables: dict[str, TableGrowth]
    """The tables that differ from the base's."""
    vocabularies: dict[str, VocabularyGrowth]
    """The vocabularies that differ from the base's, by the feature whose table they belong to."""
    histories: dict[str, HistoryGrowth] = {}
    """The histories whose tables differ from the base's, by name."""

    @property
    def base(self) -> Parent:
        """Return the whole model that the delta is the difference from; it lies beside the delta by its name."""
        return self.made_of["base"]


@dataclass(frozen=True)
class Delta:
    """A delta whose files were found to be what they should be."""

    folder: Path
    manifest: DeltaManifest

    @classmethod
    def open(cls, folder: Path) -> "Delta":
        """Read the manifest and check all files. Raises UserError that names what is missing or damaged."""
        fix = f"copy version {folder.name} again"
        manifest = DeltaManifest.load_whole(folder, fix)
        confined(manifest.base.folder.name, folder)
        for file in manifest.every_file:
            if sha256_once(folder / file.path) != file.sha256:
                raise UserError(f"{folder / file.path}: content changed since it was written; {fix}")
        return cls(folder, manifest)

    @cached_property
    def rows(self) -> MappedTensors:
        """Map the rows of tables that it changes or appends, if it does."""
        return MappedTensors(self.folder / ROWS_FILE)

    @cached_property
    def values(self) -> VocabularyChanges:
        """Map the values that it adds to vocabularies and removes, if it does."""
        return VocabularyChanges(self.folder / VALUES_FILE)


def versions_in(folder: Path) -> dict[int, Path]:
    """Return the model folders in a folder that are named by whole numbers from 1, without leading zeros, by number."""
    try:
        children = list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    named = [child for child in children if child.name.isascii() and child.name.isdigit() and child.name[0] != "0"]
    return {int(child.name): child for child in named if is_model_folder(child)}


def folders_of(folder: Path) -> list[Path]:
    """Return the folders that a model is read from: its own, and of a delta first that of its base, as it names it."""
    if not is_delta(folder):
        return [folder]
    try:
        return [folder.with_name(DeltaManifest.load(folder).base.folder.name), folder]
    except UserError:  # damaged: to open it says so
        return [folder]


def sha256_once(path: Path) -> str:
    """Return the SHA-256 of a file, which this process reads again only if the file has changed. Raises OSError."""
    status = path.stat()
    return _sha256(path, status.st_ino, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=4096)
def _sha256(path: Path, inode: int, size: int, modified_ns: int) -> str:
    return sha256_of(path)
