"""The run folder: what training writes, evaluation, export and a resumed run read.

run.json  config.yaml  schema.json  plan.json  history.jsonl  metrics.json  checkpoints/  tensorboard/

A run changes while it is trained, so it is no artifact itself; its checkpoints are, and what is exported is made of
one of them.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from rayrec.common.errors import ConfigError, UserError
from rayrec.common.text import shell_line
from rayrec.config.execution import Execution
from rayrec.features.schema import Schema
from rayrec.ingest.dataset import Dataset
from rayrec.recipes import CONFIG_FILE, Recipe, dump_recipe, load_recipe
from rayrec.store.artifact import MANIFEST_FILE, Manifest, Parent, found, id_of, parent_of
from rayrec.store.files import write_atomically, write_json
from rayrec.store.folders import new_folder
from rayrec.store.growing_files import GrowingFiles
from rayrec.store.paths import confined, to_path

RUN_FILE = "run.json"
PLAN_FILE = "plan.json"
HISTORY_FILE = "history.jsonl"
METRICS_FILE = "metrics.json"
CHECKPOINTS_FOLDER = "checkpoints"
EVENTS_FOLDER = "tensorboard"
CHECKPOINT_INDEX_FILE = "index.json"

# Fields of train that a resumed run may change: they decide neither the model nor its batches.
RESUMABLE_CHANGES = frozenset({
    "workers", "min_workers", "elastic_interval_seconds", "device", "precision", "epochs", "max_steps",
    "gradient_accumulation", "sharding", "checkpoint", "evaluation_split", "evaluations_per_epoch",
    "evaluate_every_steps", "evaluate_after_epochs", "early_stop", "loss_scale", "compile", "threads", "max_failures",
    "log_every_steps", "tracking",
})  # fmt: skip

# Fields of train.ingest that a resumed run may change, set alike for a comparison.
_RESUMABLE_INGEST = {"in_memory": False, "prefetch_batches": 1, "task_cpus": None}


@dataclass(frozen=True)
class RunProgress:
    """Progress of a run: the order of the data depends on this and the seed alone."""

    step: int = 0
    """Optimizer steps done; global batches consumed."""
    epoch: int = 0
    batch: int = 0
    """Global batches of `epoch` consumed."""
    seconds: float = 0.0
    """Time spent training, over all attempts."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The metrics of the evaluation at this step, if there was one."""
    loss_scale: dict[str, float] | None = None
    steps_before: int = 0
    """Optimizer steps of the runs that it continues; Adam's bias correction counts them, schedules do not."""


class CheckpointManifest(Manifest):
    """The manifest of a checkpoint, which is made of a dataset and, after a warm start, of another run's checkpoint."""

    command = "train"

    kind: Literal["checkpoint"] = "checkpoint"
    version: Literal[1] = 1
    progress: RunProgress


@dataclass(frozen=True)
class Origin:
    """Origin of a warm start."""

    run: str
    """The path or URI of a run folder."""
    checkpoint: str
    """The name of its checkpoint."""
    id: str
    """The id of that checkpoint."""
    reset: tuple[str, ...]
    """The features whose tables were not taken over, sorted."""


@dataclass(frozen=True)
class RunFolder:
    """Paths and small files of one run."""

    path: Path
    growing: GrowingFiles | None = None
    """Where rank 0 writes the history and the events, while it trains."""

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS_FOLDER

    @property
    def history(self) -> Path:
        return (self.path if self.growing is None else self.growing.folder) / HISTORY_FILE

    @property
    def events(self) -> Path:
        """Folder of the events of TensorBoard."""
        return (self.path if self.growing is None else self.growing.folder) / EVENTS_FOLDER

    def put_history(self) -> None:
        """Bring what was recorded so far to the URI of the run, if it is at one. Rank 0 alone calls it."""
        if self.growing is not None:
            self.growing.put()

    @classmethod
    def open(cls, path: str | Path) -> "RunFolder":
        """Return the folder of a run that was begun. Raises UserError where `path` is not one."""
        folder = cls(to_path(path).absolute())
        if not (folder.path / RUN_FILE).is_file():
            raise UserError(f"{folder.path}: not a run folder (no {RUN_FILE}); give the output of `rayrec train`")
        return folder

    @classmethod
    def create(
        cls,
        path: str | Path,
        recipe: Recipe,
        dataset: Dataset,
        schema: Schema,
        origin: Origin | None = None,
        refit_of: Path | None = None,
    ) -> "RunFolder":
        """Begin a run; `schema` is the model's, `refit_of` a run folder. Raises UserError where `path` is not empty."""
        folder = cls(to_path(path).absolute())
        with new_folder(folder.path) as unfinished:
            write_atomically(unfinished / CONFIG_FILE, dump_recipe(recipe))
            schema.save(unfinished)
            content: dict[str, Any] = {"dataset": {"id": dataset.id, "folder": str(dataset.folder)}}
            if origin is not None:
                content["warm_start"] = asdict(origin)
            if refit_of is not None:
                best = parent_of(cls.open(refit_of).checkpoint("best"))
                content["refit_of"] = best.model_dump(mode="json")
            write_json(unfinished / RUN_FILE, content)
        return folder

    @classmethod
    def resume(cls, path: str | Path, recipe: Recipe, dataset: Dataset, origin: Origin | None = None) -> "RunFolder":
        """Continue a run with `recipe`. Raises ConfigError where it would not be the same run."""
        folder = cls.require_resumable(path, recipe, dataset, origin)
        write_atomically(folder.path / CONFIG_FILE, dump_recipe(recipe))
        return folder

    @classmethod
    def require_resumable(
        cls, path: str | Path, recipe: Recipe, dataset: Dataset, origin: Origin | None = None
    ) -> "RunFolder":
        """Open a run that `recipe` can continue. Raises ConfigError where it would not be the same run."""
        folder = cls.open(path)
        folder._require_origin(origin)
        if not folder.was_trained_on(dataset.folder):
            raise ConfigError(
                f"{folder.path}: was trained on another dataset than {dataset.folder}; give the one it was trained on"
            )
        before, now = folder.recipe, recipe
        if before.model != now.model:
            raise ConfigError(f"{folder.path}: --resume needs the same model section; set it back, or start a new run")
        for key in type(now.train).model_fields:
            old, new = getattr(before.train, key), getattr(now.train, key)
            if key == "ingest":
                old, new = (v.model_copy(update=_RESUMABLE_INGEST) for v in (old, new))
            if key not in RESUMABLE_CHANGES and old != new:
                raise ConfigError(
                    f"{folder.path}: --resume cannot change train.{key} from {old!r} to {new!r}; "
                    "set it back, or start a new run"
                )
        if before.train.has_dense_adam_tables != now.train.has_dense_adam_tables:
            raise ConfigError(
                f"{folder.path}: --resume cannot change train.sharding to or from data_parallel under 'adam', which "
                "updates tables by another rule there; set it back, or start a new run"
            )
        return folder

    def record(self, execution: Execution) -> None:
        """Write into `run.json` how the run is trained from now on."""
        write_json(self.path / RUN_FILE, {**self._content(), "execution": execution.model_dump()})

    @property
    def execution(self) -> Execution | None:
        """Return how the run was trained in the end; None if its driver did not say."""
        content = self._content().get("execution")
        return None if content is None else Execution.model_validate(content)

    def was_trained_on(self, dataset_folder: Path) -> bool:
        """Return True if the dataset in a folder is the one that the run was begun with."""
        return self._dataset.id == id_of(dataset_folder)

    @property
    def made_of(self) -> dict[str, Parent]:
        """Return what the checkpoints of the run are made of, for their manifests."""
        parents = {"dataset": self._dataset}
        if (origin := self.origin) is not None:
            checkpoint = RunFolder(to_path(origin.run)).checkpoints / origin.checkpoint
            parents["warm_start"] = Parent(id=origin.id, folder=checkpoint)
        return parents

    def progress(self) -> RunProgress | None:
        """Return the progress of the newest whole checkpoint; None if there is no checkpoint, or no run."""
        steps = checkpoint_steps(self.checkpoints)
        return read_progress(self.checkpoints / checkpoint_name(steps[-1])) if steps else None

    def checkpoint(self, which: str) -> Path:
        """Return the folder of the checkpoint `latest`, `best` or of a step; UserError if there is no such checkpoint.

        If nothing was evaluated, the latest is the best.
        """
        index = self.checkpoints / CHECKPOINT_INDEX_FILE
        if not index.exists():
            raise UserError(f"{self.path}: has no checkpoint yet; continue training with --resume")
        content = json.loads(index.read_text())
        names: list[str] = content["checkpoints"]
        by_name = {"latest": content["latest"], "best": content["best"] or content["latest"]}
        wanted = checkpoint_name(int(which)) if which.isdigit() else by_name.get(which)
        if wanted not in names:
            raise UserError(f"{self.path}: no checkpoint '{which}'; it has latest, best, {', '.join(names)}")
        return self.checkpoints / confined(wanted, index)

    @property
    def recipe(self) -> Recipe:
        return load_recipe(self.path / CONFIG_FILE)

    @property
    def schema(self) -> Schema:
        """Schema of the model, with embedding dimensions."""
        return Schema.load(self.path)

    @property
    def dataset_folder(self) -> Path:
        """Dataset that the run was begun with."""
        return found(self._dataset, self.path)

    @property
    def refit_of(self) -> "RunFolder | None":
        """Run on fewer rows whose metrics stand for this one's model, as all rows of this one were trained on."""
        content = self._content().get("refit_of")
        if content is None:
            return None
        return RunFolder.open(found(Parent.model_validate(content), self.path).parent.parent)

    @property
    def origin(self) -> Origin | None:
        """Return what the run was warm-started from, if there is a run and it was."""
        content = self._content().get("warm_start") if (self.path / RUN_FILE).exists() else None
        return None if content is None else Origin(**{**content, "reset": tuple(content["reset"])})

    def as_origin(self, reset: Sequence[str] = ()) -> Origin:
        """Return this run as one that another continues: from the checkpoint that is exported and served, `best`.

        So training and serving stay in line, and what a day does not touch is to the bit what is served.
        """
        best = self.checkpoint("best")
        return Origin(str(self.path), best.name, CheckpointManifest.load(best).id, tuple(sorted(set(reset))))

    def _require_origin(self, given: Origin | None) -> None:
        before = self.origin
        if before == given or (before and given and (before.id, before.reset) == (given.id, given.reset)):
            return
        if before is None:
            raise ConfigError(
                f"{self.path}: the run was not warm-started; leave --warm-start out, or give another --output"
            )
        again = shell_line(["--warm-start", before.run, *(word for name in before.reset for word in ("--reset", name))])
        raise ConfigError(f"{self.path}: the run was started with {again}; --resume it with the same")

    @property
    def _dataset(self) -> Parent:
        return Parent.model_validate(self._content()["dataset"])

    def _content(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.path / RUN_FILE).read_text())
        return content


def checkpoint_name(step: int) -> str:
    """Return the name of the folder of a checkpoint."""
    return f"step-{step:08d}"


def checkpoint_steps(folder: Path) -> list[int]:
    """Return the steps of the whole checkpoints in `folder`, ascending."""
    return sorted(int(path.parent.name.removeprefix("step-")) for path in folder.glob(f"step-*/{MANIFEST_FILE}"))


def read_progress(checkpoint: Path) -> RunProgress:
    """Return the progress of a checkpoint, by its folder."""
    return CheckpointManifest.load(checkpoint).progress
