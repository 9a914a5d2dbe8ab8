"""Continuation from another trial's checkpoint in population based training."""

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from rayrec.ingest.dataset import Dataset
from rayrec.models.registry import build_model
from rayrec.recipes import Recipe
from rayrec.store.files import copy, new_folder, remove, write_json
from rayrec.store.paths import RemotePath, to_path
from rayrec.training.run.folder import CHECKPOINTS_FOLDER, HISTORY_FILE, RunFolder, checkpoint_name
from rayrec.training.run.history import cut_history

EXCHANGE_FOLDER = "exchange"
_POINTER_FILE = "pointer.json"
_KEPT = 4
"""Checkpoints of a trial that are kept for others: some have been chosen and not yet been fetched."""


@dataclass(frozen=True)
class Pointer:
    """Path of a trial's checkpoint, which Tune stores. Tables are not copied through Tune."""

    trial: str
    run: str
    step: int
    objectives: list[float]
    """The objectives that were reported up to the checkpoint."""
    folder: str
    """The folder of the checkpoint."""
    history: str
    """The history file of its run."""

    def save(self, folder: Path) -> None:
        write_json(folder / _POINTER_FILE, asdict(self))

    @classmethod
    def load(cls, folder: Path) -> "Pointer":
        return cls(**json.loads((folder / _POINTER_FILE).read_text()))


def publish_checkpoint(run: Path, trial: Path, step: int, objectives: list[float]) -> Pointer:
    """Keep a run's checkpoint in its trial's folder for other trials, even after the run deletes it."""
    exchange = trial / EXCHANGE_FOLDER
    kept = exchange / f"{run.name}-{checkpoint_name(step)}"
    if not kept.exists():
        _link_checkpoint(run / CHECKPOINTS_FOLDER / checkpoint_name(step), kept)
    for old in sorted(exchange.iterdir(), key=lambda path: path.stat().st_mtime_ns)[:-_KEPT]:
        remove(old)
    return Pointer(trial.name, run.name, step, objectives, str(kept), str(run / HISTORY_FILE))


def begin_from(pointer: Pointer, run: Path, recipe: Recipe, dataset: Dataset) -> None:
    """Make a run folder for `recipe` whose latest checkpoint and history are those of the pointer."""
    schema = build_model(recipe.model, dataset.schema, device="meta").schema
    with new_folder(run) as unfinished:
        RunFolder.create(unfinished, recipe, dataset, schema)
        _link_checkpoint(to_path(pointer.folder), unfinished / CHECKPOINTS_FOLDER / checkpoint_name(pointer.step))
        copy(to_path(pointer.history), unfinished / HISTORY_FILE)
        cut_history(unfinished / HISTORY_FILE, pointer.step)


def _link_checkpoint(source: Path, target: Path) -> None:
    """Give the files of a checkpoint, which never change, a second name."""
    with new_folder(target) as unfinished:
        if isinstance(source, RemotePath):
            copy(source, unfinished)
        else:
            shutil.copytree(source, unfinished, copy_function=_link_file, dirs_exist_ok=True)


def _link_file(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # the file system has no hard links
        shutil.copyfile(source, target)
