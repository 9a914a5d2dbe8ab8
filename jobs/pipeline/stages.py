"""The stages of `rayrec run`: what each writes, and how one that is finished is recognised."""

import hashlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.command.result import RESULT_FILE, Result
from jobs.preprocess import inputs_by_split
from rayrec.common.errors import ConfigError, UserError
from rayrec.common.progress import Progress
from rayrec.recipes import Recipe

if TYPE_CHECKING:
    from jobs.run import RunRequest
    from rayrec.training.run_folder import RunFolder

UNFINISHED_MODEL = ".export"
# Where and how often, not what: another value needs nothing to be made again.
_OF_NO_CONSEQUENCE = frozenset({
    "preprocess.spark", "train.workers", "train.min_workers", "train.elastic_interval_seconds", "train.device",
    "train.max_failures", "train.log_every_steps", "train.tracking",
})  # fmt: skip


def stages_of(request: "RunRequest") -> "tuple[Stage, ...]":
    """In the order in which they run; each reads what those before it wrote."""
    return (_Preprocess(request), _Train(request), _Evaluate(request), _Export(request))


class Stage(ABC):
    """One stage of a pipeline and the folder that it writes."""

    name: str
    folder_name: str

    def __init__(self, request: "RunRequest") -> None:
        self._request = request
        self._recipe = request.load_recipe()
        self._root = request.output

    @property
    def folder(self) -> Path:
        return self._root / self.folder_name

    @abstractmethod
    def finished(self) -> Result | None:
        """What it made where that is whole; else None. Raises ConfigError where it was made from something else."""

    def run(self, progress: Progress) -> Result:
        """Make it, or continue what is there."""
        started = time.perf_counter()
        result = self._make(progress)
        return result.model_copy(update={"seconds": time.perf_counter() - started})

    @abstractmethod
    def _make(self, progress: Progress) -> Result: ...

    def _require_recipe(self, made_with: Recipe, sections: Collection[str], allowed: Collection[str] = ()) -> None:
        """Raise ConfigError where a section of the recipe is not what the folder was made with."""
        for key, before, now in _differences(made_with.model_dump(mode="json"), self._recipe.model_dump(mode="json")):
            parents = {key[: i + 1] for i in range(len(key))}
            exempt = any(".".join(parent) in {*_OF_NO_CONSEQUENCE, *allowed} for parent in parents)
            if key[0] in sections and not exempt:
                raise self._made_from_another(f"{'.'.join(key)} is now {now!r} and was {before!r}")

    def _made_from_another(self, difference: str) -> ConfigError:
        """The error that says how the folder does not fit, and what to do about it."""
        later = [stage.folder_name for stage in (_Preprocess, _Train, _Evaluate, _Export)]
        stale = [
            str(self._root / name) for name in later[later.index(self.folder_name) :] if (self._root / name).exists()
        ]
        return ConfigError(
            f"{self.folder}: {difference} when it was made; set it back, or remove {' '.join(stale)} to make "
            f"{'them' if len(stale) > 1 else 'it'} again, or give another --output"
        )


class _Preprocess(Stage):
    name, folder_name = "preprocess", "dataset"

    def finished(self) -> Result | None:
        from rayrec.ingest.dataset import MANIFEST_FILE, Dataset
        from rayrec.preprocessing.pipeline import source_files
        from rayrec.sources.registry import preprocessing_job

        if not (self.folder / MANIFEST_FILE).is_file():
            return None
        dataset = Dataset.open(self.folder)
        self._require_recipe(dataset.recipe, ("source", "preprocess"))
        named = self._recipe.preprocess.reads_splits_from_files
        before = dataset.manifest.sources
        now = source_files(preprocessing_job(self._recipe, inputs_by_split(self._request.input, named=named)))
        if before != now:
            changed = [f.path for f in (*now, *before) if f not in before or f not in now]
            raise self._made_from_another(f"{changed[0] if changed else 'the order of --input'} is not what it was")
        rows = sum(split.rows for split in dataset.manifest.splits.values())
        return Result(command="preprocess", output=self.folder, rows=rows)

    def _make(self, progress: Progress) -> Result:
        from jobs.preprocess import run

        return run(self._request.model_copy(update={"output": self.folder}), progress)


class _Train(Stage):
    name, folder_name = "train", "run"

    def finished(self) -> Result | None:
        from rayrec.training.run_folder import METRICS_FILE, RESUMABLE_CHANGES, RUN_FILE, RunFolder

        if not (self.folder / RUN_FILE).is_file():
            return None
        run = RunFolder.open(self.folder)
        is_whole = (self.folder / METRICS_FILE).is_file()
        allowed = () if is_whole else {f"train.{field}" for field in RESUMABLE_CHANGES}
        self._require_recipe(run.recipe, ("model", "train", "evaluate"), allowed)
        if not run.was_trained_on(self._root / _Preprocess.folder_name):
            raise self._made_from_another("the dataset is not what it was")
        if not is_whole:
            return None
        return Result(command="train", output=self.folder, metrics=json.loads((self.folder / METRICS_FILE).read_text()))

    def _make(self, progress: Progress) -> Result:
        from jobs.train import TrainRequest, run

        request = TrainRequest(
            **self._request.model_dump(include={"recipe", "set", "workers", "device", "precision"}),
            data=self._root / _Preprocess.folder_name,
            output=self.folder,
            resume=self.folder.exists(),
        )
        return run(request, progress)


class _OfRun(Stage):
    """A stage that reads the finished run, and notes which one that was."""

    def finished(self) -> Result | None:
        if not (self.folder / RESULT_FILE).is_file():
            if self.folder.exists():
                raise UserError(f"{self.folder}: was not made by `rayrec run`; move it away")
            return None
        result = Result.load(self.folder)
        if result.details.get("run") != self._run_fingerprint():
            raise self._made_from_another(f"{self._run.path} is not what it was")
        return result

    @property
    def _run(self) -> "RunFolder":
        from rayrec.training.run_folder import RunFolder

        return RunFolder(self._root / _Train.folder_name)

    def _run_fingerprint(self) -> str:
        """Changes with the best checkpoint; of a run that is not finished it is nothing's."""
        from rayrec.training.run_folder import METRICS_FILE

        if not (self._run.path / METRICS_FILE).is_file():
            return ""
        digest = hashlib.sha256((self._run.path / METRICS_FILE).read_bytes())
        for file in sorted(self._run.checkpoint("best").glob("*.json")):
            digest.update(file.read_bytes())
        return digest.hexdigest()


class _Evaluate(_OfRun):
    name, folder_name = "evaluate", "evaluation"

    def _make(self, progress: Progress) -> Result:
        from jobs.evaluate import EvaluateRequest, run
        from rayrec.common.files import new_folder
        from rayrec.ingest.dataset import Dataset

        dataset = Dataset.open(self._root / _Preprocess.folder_name)
        splits = [name for name, split in dataset.manifest.splits.items() if name != "train" and split.rows]
        made = Result(command="evaluate")
        if splits:
            split = "test" if "test" in splits else splits[0]
            request = EvaluateRequest(
                source=self._run.path,
                data=dataset.folder,
                split=split,
                workers=workers if isinstance(workers := self._request.workers, int) else None,
                device=self._request.device,
            )
            made = run(request, progress)
        made = made.model_copy(update={"output": self.folder, "details": {"run": self._run_fingerprint()}})
        with new_folder(self.folder) as folder:
            made.save(folder)
        return made


class _Export(_OfRun):
    name, folder_name = "export", "model"

    def _make(self, progress: Progress) -> Result:
        from jobs.export import ExportRequest, run

        # Under another name until its result, by which it is recognised, is in it too.
        unfinished = self._root / UNFINISHED_MODEL
        made = run(ExportRequest(run=self._run.path, output=unfinished), progress)
        details = {**made.details, "run": self._run_fingerprint()}
        made = made.model_copy(update={"output": self.folder, "details": details})
        made.save(unfinished)
        unfinished.rename(self.folder)
        return made


def _differences(before: Any, now: Any, key: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Where two JSON values differ, and how."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in {**before, **now}:
            yield from _differences(before.get(name), now.get(name), (*key, name))
    elif before != now:
        yield key, before, now
