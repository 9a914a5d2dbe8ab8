"""How a trial continues from another trial's checkpoint in population based training."""

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import mkdtemp

from rayrec.common.files import write_json
from rayrec.ingest.dataset import Dataset
from rayrec.models.registry import build_model
from rayrec.recipes import Recipe
from rayrec.training.run.folder import CHECKPOINTS_FOLDER, HISTORY_FILE, RunFolder, checkpoint_name
from rayrec.training.run.history import read_history

EXCHANGE_FOLDER = "exchange"
_POINTER_FILE = "pointer.json"
_KEPT = 4
"""Checkpoints of a trial that are kept for others: some have been chosen and not yet been fetched."""


@dataclass(frozen=True)
class Pointer:
    """What Tune stores as a trial's checkpoint: where it lies. Tables are not copied through Tune."""

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
        shutil.rmtree(old)
    return Pointer(trial.name, run.name, step, objectives, str(kept), str(run / HISTORY_FILE))


def begin_from(pointer: Pointer, run: Path, recipe: Recipe, dataset: Dataset) -> None:
    """Make a run folder for `recipe` whose latest checkpoint and history are those of the pointer."""
    unfinished = Path(mkdtemp(dir=run.parent, prefix=f".{run.name}.unfinished-"))
    schema = build_model(recipe.model, dataset.schema, device="meta").schema
    RunFolder.create(unfinished, recipe, dataset, schema)
    _link_checkpoint(Path(pointer.folder), unfinished / CHECKPOINTS_FOLDER / checkpoint_name(pointer.step))
    records = [record for record in read_history(Path(pointer.history)) if record["step"] <= pointer.step]
    (unfinished / HISTORY_FILE).write_text("".join(json.dumps(record) + "\n" for record in records))
    unfinished.rename(run)


def _link_checkpoint(source: Path, target: Path) -> None:
    """Give the files of a checkpoint, which never change, a second name."""
    unfinished = target.with_name(f".{target.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(source, unfinished, copy_function=_link_file)
    unfinished.rename(target)


def _link_file(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # the file system has no hard links
        shutil.copyfile(source, target)
