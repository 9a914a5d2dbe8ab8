"""The stages of `rayrec run`: what each writes, and how a finished one is recognised."""

import hashlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, ClassVar

from jobs.command import RESULT_FILE, Result, TrainingRecipeRequest
from jobs.preprocess import PreprocessRequest
from rayrec.common.errors import ConfigError, UserError
from rayrec.common.progress import Progress
from rayrec.recipes import Recipe
from rayrec.storage.location import Folder

UNFINISHED_MODEL = ".export"
"""The model folder until it is whole."""
# These say where and how often, not what: a finished stage stays valid when they change.
_IRRELEVANT_KEYS = frozenset({
    "preprocess.spark", "train.workers", "train.min_workers", "train.elastic_interval_seconds", "train.device",
    "train.max_failures", "train.log_every_steps", "train.tracking",
})  # fmt: skip


class RunRequest(PreprocessRequest, TrainingRecipeRequest):
    """Preprocess, train, evaluate and export in one job; run again, it continues where it stopped."""

    output: Folder
    """Folder of all stages (dataset/, run/, evaluation/, model/); an earlier attempt in it is continued."""

    @property
    def continues(self) -> bool:
        return True


class Stage(ABC):
    """One stage of a pipeline and the folder that it writes."""

    name: ClassVar[str]
    folder_name: ClassVar[str]

    def __init__(self, request: RunRequest) -> None:
        self._request = request
        self._recipe = request.load_recipe()
        self.folder = request.output / self.folder_name
        self._dataset_folder = request.output / PreprocessStage.folder_name
        self._run_folder = request.output / TrainStage.folder_name

    @abstractmethod
    def finished(self) -> Result | None:
        """The result of the stage if its folder is whole, else None.

        Raises ConfigError if the folder was made from something else.
        """

    def run(self, progress: Progress) -> Result:
        """Write the folder, or continue an unfinished one."""
        started = time.perf_counter()
        result = self._run(progress)
        return result.model_copy(update={"seconds": time.perf_counter() - started})

    @abstractmethod
    def _run(self, progress: Progress) -> Result: ...

    def _require_recipe(self, made_with: Recipe, sections: Collection[str], allowed: Collection[str] = ()) -> None:
        """Raise ConfigError if sections of the recipe differ from those that the folder was made with."""
        for key, before, now in _differences(made_with.model_dump(mode="json"), self._recipe.model_dump(mode="json")):
            parents = {".".join(key[: i + 1]) for i in range(len(key))}
            if key[0] in sections and parents.isdisjoint({*_IRRELEVANT_KEYS, *allowed}):
                raise self._changed(f"{'.'.join(key)} is now {now!r} and was {before!r}")

    def _changed(self, difference: str) -> ConfigError:
        """An error that says why the folder does not fit, and what to do."""
        folders = [self._request.output / stage.folder_name for stage in STAGES]
        stale = [str(folder) for folder in folders[folders.index(self.folder) :] if folder.exists()]
        return ConfigError(
            f"{self.folder}: {difference} when it was made; set it back, or remove {' '.join(stale)} to make "
            f"{'them' if len(stale) > 1 else 'it'} again, or give another --output"
        )


class PreprocessStage(Stage):
    """Raw files to dataset/."""

    name, folder_name = "preprocess", "dataset"

    def finished(self) -> Result | None:
        from rayrec.ingest.dataset import MANIFEST_FILE, Dataset
        from rayrec.preprocessing.pipeline import source_files
        from rayrec.sources.registry import preprocessing_job

        if not (self.folder / MANIFEST_FILE).is_file():
            return None
        dataset = Dataset.open(self.folder)
        self._require_recipe(dataset.recipe, ("source", "preprocess"))
        before = dataset.manifest.sources
        now = source_files(preprocessing_job(self._recipe, self._request.inputs(self._recipe)))
        if before != now:
            changed = [file.path for file in (*now, *before) if file not in before or file not in now]
            raise self._changed(f"{changed[0] if changed else 'the order of --input'} is not what it was")
        rows = sum(split.rows for split in dataset.manifest.splits.values())
        return Result(command="preprocess", output=self.folder, rows=rows)

    def _run(self, progress: Progress) -> Result:
        from jobs.preprocess import run

        return run(self._request.model_copy(update={"output": self.folder}), progress)


class TrainStage(Stage):
    """dataset/ to run/."""

    name, folder_name = "train", "run"

    def finished(self) -> Result | None:
        from rayrec.training.run.folder import METRICS_FILE, RESUMABLE_CHANGES, RUN_FILE, RunFolder

        if not (self.folder / RUN_FILE).is_file():
            return None
        run = RunFolder.open(self.folder)
        is_whole = (self.folder / METRICS_FILE).is_file()
        allowed = () if is_whole else {f"train.{field}" for field in RESUMABLE_CHANGES}
        self._require_recipe(run.recipe, ("model", "train", "evaluate"), allowed)
        if not run.was_trained_on(self._dataset_folder):
            raise self._changed("the dataset is not what it was")
        if not is_whole:
            return None
        return Result(command="train", output=self.folder, metrics=json.loads((self.folder / METRICS_FILE).read_text()))

    def _run(self, progress: Progress) -> Result:
        from jobs.train import TrainRequest, run

        request = TrainRequest(
            **self._request.model_dump(include={"recipe", "set", "workers", "device", "precision"}),
            data=self._dataset_folder,
            output=self.folder,
            resume=self.folder.exists(),
        )
        return run(request, progress)


class _AfterTraining(Stage):
    """A stage that reads the finished run, whose fingerprint is in its result."""

    def finished(self) -> Result | None:
        if not (self.folder / RESULT_FILE).is_file():
            if self.folder.exists():
                raise UserError(f"{self.folder}: was not made by `rayrec run`; move it away")
            return None
        result = Result.load(self.folder)
        if result.details.get("run") != self._run_fingerprint():
            raise self._changed(f"{self._run_folder} is not what it was")
        return result

    def _run_fingerprint(self) -> str:
        """A hash that changes with the run's metrics and best checkpoint; empty if the run is not finished."""
        from rayrec.training.run.folder import METRICS_FILE, RunFolder

        metrics = self._run_folder / METRICS_FILE
        if not metrics.is_file():
            return ""
        digest = hashlib.sha256(metrics.read_bytes())
        for file in sorted(RunFolder(self._run_folder).checkpoint("best").glob("*.json")):
            digest.update(file.read_bytes())
        return digest.hexdigest()

    def _finish(self, result: Result, folder: Path) -> Result:
        """Write into `folder`, which becomes the stage's, the result that shows that it is finished."""
        details = {**result.details, "run": self._run_fingerprint()}
        result = result.model_copy(update={"output": self.folder, "details": details})
        result.save(folder)
        return result


class EvaluateStage(_AfterTraining):
    """run/ to evaluation/, which has the metrics of a held-out split."""

    name, folder_name = "evaluate", "evaluation"

    def _run(self, progress: Progress) -> Result:
        from jobs.evaluate import EvaluateRequest, run
        from rayrec.common.files import new_folder
        from rayrec.ingest.dataset import Dataset

        dataset = Dataset.open(self._dataset_folder)
        splits = [name for name, split in dataset.manifest.splits.items() if name != "train" and split.rows]
        result = Result(command="evaluate")
        if splits:
            workers = self._request.workers
            request = EvaluateRequest(
                source=self._run_folder,
                data=dataset.folder,
                split="test" if "test" in splits else splits[0],
                workers=workers if isinstance(workers, int) else None,
                device=self._request.device,
            )
            result = run(request, progress)
        with new_folder(self.folder) as folder:
            return self._finish(result, folder)


class ExportStage(_AfterTraining):
    """run/ to model/."""

    name, folder_name = "export", "model"

    def _run(self, progress: Progress) -> Result:
        from jobs.export import ExportRequest, run

        # It gets its name when its result, by which it is recognised, is in it too.
        unfinished = self._request.output / UNFINISHED_MODEL
        result = self._finish(run(ExportRequest(run=self._run_folder, output=unfinished), progress), unfinished)
        unfinished.rename(self.folder)
        return result


STAGES = (PreprocessStage, TrainStage, EvaluateStage, ExportStage)
"""All stages in order; each reads what those before it wrote."""


def _differences(before: Any, now: Any, key: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Yield the key and both values wherever two JSON values differ."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in {**before, **now}:
            yield from _differences(before.get(name), now.get(name), (*key, name))
    elif before != now:
        yield key, before, now
