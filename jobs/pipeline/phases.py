"""The phases of a pipeline: preprocess, train, perhaps both anew with all rows, export.

Each is a command. Its folder is whole or absent (dataset, model) or can be continued (run), so a rerun continues with
the first unfinished phase, whatever ended the last one. Training itself ends with exact metrics of every held-out
split.
"""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from jobs.command import Result, TrainingRecipeRequest, describe_outcome
from jobs.command.placement import PlacedRequest, place_training, training_session
from jobs.preprocess import InputRequest, result_of
from rayrec.common.errors import ConfigError, UserError
from rayrec.common.progress import Progress, SilentProgress
from rayrec.recipes import Recipe, differences
from rayrec.store.folders import OutputKind, is_vacant

PIPELINE_FILE = "pipeline.json"
"""The recipe and the files of the command that made a pipeline's folder."""
REFIT_NOTE = (
    "these are metrics of run/; model/ was then trained on all rows, held-out ones included (--no-refit: export the "
    "model that was measured)"
)
# These say where and how often, not what: a finished phase stays valid when they change.
_IRRELEVANT_KEYS = frozenset({
    "preprocess.spark", "train.workers", "train.min_workers", "train.elastic_interval_seconds", "train.device",
    "train.max_failures", "train.log_every_steps", "train.tracking",
})  # fmt: skip


class PipelineRequest(InputRequest, TrainingRecipeRequest, PlacedRequest):
    """The request of a command that goes from raw files to a model folder."""

    outputs: ClassVar[Mapping[str, OutputKind]] = {"output": "place"}

    def owns(self, output: Path) -> bool:
        return (output / PIPELINE_FILE).is_file()

    @property
    def refits(self) -> bool:
        """Tell whether the exported model is trained on all rows."""
        return False


@dataclass(frozen=True)
class Places:
    """The folders of a pipeline, and those that it continues."""

    folder: Path
    before: "Places | None" = None
    """The places of the day before, whose dataset is extended and whose run is trained on."""
    refits: bool = False
    """Whether the model is trained anew on all rows, those that were held out too."""
    judged: Path | None = None
    """The run whose metrics stand for a model that is trained on all rows."""

    @property
    def dataset(self) -> Path:
        return self.folder / "dataset"

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @property
    def refit(self) -> "Places":
        """Return the folders of the refit on all rows, and those of the day before that it continues, if any."""
        before = self.before
        if before is not None and before.refit.run.exists():
            before = before.refit
        return Places(self.folder / "refit", before, judged=self.run)

    @property
    def exported(self) -> Path:
        """Return the run that the model is made of."""
        return self.refit.run if self.refits else self.run


class Phase(ABC):
    """One phase of a pipeline: a command, and the folder that it writes."""

    name: ClassVar[str]

    def __init__(self, request: PipelineRequest, places: Places) -> None:
        self._request, self._places = request, places
        self._recipe = request.load_recipe()

    @property
    @abstractmethod
    def folder(self) -> Path:
        """Folder that the phase writes."""

    @abstractmethod
    def finished(self) -> Result | None:
        """Return the result of the phase if its folder is whole, else None.

        Raises ConfigError if the folder was made from something else.
        """

    @abstractmethod
    def run(self, progress: Progress) -> Result:
        """Write the folder, or continue an unfinished one."""

    def _require_recipe(self, made_with: Recipe, sections: Collection[str], allowed: Collection[str] = ()) -> None:
        """Raise ConfigError if sections of the recipe differ from those that the folder was made with."""
        for key, before, now in differences(made_with.model_dump(mode="json"), self._recipe.model_dump(mode="json")):
            parents = {".".join(key[: i + 1]) for i in range(len(key))}
            if key[0] in sections and parents.isdisjoint({*_IRRELEVANT_KEYS, *allowed}):
                raise self._changed(f"{'.'.join(key)} is {now!r}, but was {before!r}")

    def _changed(self, difference: str) -> ConfigError:
        """Return an error that says why the folder does not fit, and what to do."""
        folders = [self._places.dataset, self._places.run, self._places.model]
        stale = [str(folder) for folder in folders[folders.index(self.folder) :] if folder.exists()]
        return ConfigError(
            f"{self.folder}: {difference} when it was made; change it back, or remove {' '.join(stale)} to make "
            f"{'them' if len(stale) > 1 else 'it'} again, or give another --output"
        )


class PreprocessPhase(Phase):
    """Raw files to dataset/."""

    name = "preprocess"

    @property
    def folder(self) -> Path:
        return self._places.dataset

    def finished(self) -> Result | None:
        from rayrec.ingest.dataset import Dataset
        from rayrec.preprocessing.pipeline import source_files
        from rayrec.sources.registry import preprocessing_job
        from rayrec.store.artifact import MANIFEST_FILE

        if is_vacant(self.folder) or not (self.folder / MANIFEST_FILE).is_file():
            return None
        dataset = Dataset.open(self.folder)
        self._require_recipe(dataset.recipe, ("source", "preprocess"))
        before = dataset.manifest.sources
        now = source_files(preprocessing_job(self._recipe, self._request.inputs(self._recipe)))
        if before != now:
            changed = [file.path for file in (*now, *before) if file not in before or file not in now]
            raise self._changed(f"{changed[0] if changed else 'the order of --input'} is not the same as")
        return result_of(dataset.manifest, self.folder)

    def run(self, progress: Progress) -> Result:
        from jobs.preprocess import PreprocessRequest, run

        before = self._places.before
        request = PreprocessRequest(
            **self._request.model_dump(include={"recipe", "set", "input", "on"}),
            extend=before.dataset if before is not None else None,
            output=self.folder,
        )
        return run(request, progress)


class TrainPhase(Phase):
    """dataset/ to run/."""

    name = "train"

    def __init__(self, request: PipelineRequest, places: Places) -> None:
        super().__init__(request, places)
        if places.before is not None:
            self._recipe = self._recipe.model_copy(update={"train": self._recipe.train.warm_started()})

    @property
    def folder(self) -> Path:
        return self._places.run

    def finished(self) -> Result | None:
        from rayrec.ingest.dataset import Dataset
        from rayrec.inspection.split_checks import baselines, drawn_negatives, metric_warnings, run_notes
        from rayrec.training.run.folder import METRICS_FILE, RESUMABLE_CHANGES, RUN_FILE, RunFolder

        if not (self.folder / RUN_FILE).is_file():
            return None
        run = RunFolder.open(self.folder)
        is_whole = (self.folder / METRICS_FILE).is_file()
        allowed = () if is_whole else {f"train.{field}" for field in RESUMABLE_CHANGES}
        self._require_recipe(run.recipe, ("model", "train", "evaluate"), allowed)
        if not run.was_trained_on(self._places.dataset):
            raise self._changed("the dataset is not the same as")
        if not is_whole:
            return None
        metrics = json.loads((self.folder / METRICS_FILE).read_text())
        dataset = Dataset.open(self._places.dataset)
        simpler = baselines(run.recipe, dataset, metrics)
        return Result(
            command="train",
            output=self.folder,
            metrics=metrics,
            baselines=simpler,
            execution=run.execution,
            details={
                "warnings": metric_warnings(metrics, simpler),
                "notes": run_notes(run.recipe, dataset, metrics),
                **drawn_negatives(run.schema),
            },
        )

    def run(self, progress: Progress) -> Result:
        from jobs.train import TrainRequest, run

        before = self._places.before
        request = TrainRequest(
            **self._request.model_dump(include={"recipe", "set", "workers", "device", "precision", "on"}),
            data=self._places.dataset,
            warm_start=before.run if before is not None else None,
            refit_of=self._places.judged,
            output=self.folder,
            resume=self.folder.exists(),
        )
        return run(request, progress)


class PreprocessAllPhase(PreprocessPhase):
    """Raw files to refit/dataset/, in which no row is held out."""

    name = "preprocess all rows"

    def __init__(self, request: PipelineRequest, places: Places) -> None:
        super().__init__(_without_split(request), places.refit)


class RefitPhase(TrainPhase):
    """refit/dataset/ to refit/run/, in as many epochs as the best checkpoint of run/ has."""

    name = "refit"

    def __init__(self, request: PipelineRequest, places: Places) -> None:
        super().__init__(_without_split(request), places.refit)

    def finished(self) -> Result | None:
        from jobs.train import refit_recipe
        from rayrec.ingest.dataset import Dataset
        from rayrec.training.run.folder import RUN_FILE, RunFolder

        if (self.folder / RUN_FILE).is_file():
            assert self._places.judged is not None
            judged = RunFolder.open(self._places.judged)
            self._recipe = refit_recipe(self._recipe, judged, Dataset.open(self._places.dataset))
        return super().finished()


def _without_split(request: PipelineRequest) -> PipelineRequest:
    """Return the request with all rows in `train`."""
    recipe = request.load_recipe()
    split = recipe.preprocess.split_of_all_rows
    assert split is not None
    settings = (*request.set, f"preprocess.split={split.model_dump_json()}")
    paths = tuple(path for of_split in request.inputs(recipe).values() for path in of_split)
    return request.model_copy(update={"set": settings, "input": paths})


class ExportPhase(Phase):
    """run/ or refit/run/ to model/, which is made of the best checkpoint."""

    name = "export"

    @property
    def folder(self) -> Path:
        return self._places.model

    def finished(self) -> Result | None:
        from rayrec.inference.folder.versions import ModelManifest
        from rayrec.store.artifact import MANIFEST_FILE
        from rayrec.training.run.folder import METRICS_FILE, CheckpointManifest, RunFolder

        if is_vacant(self.folder):
            return None
        if not (self.folder / MANIFEST_FILE).is_file():
            raise UserError(f"{self.folder}: not made by `rayrec run`; move it away")
        made_of = ModelManifest.load(self.folder).made_of["checkpoint"]
        run = RunFolder(self._places.exported)
        # A run that is not finished may still get another best checkpoint.
        is_whole = (run.path / METRICS_FILE).is_file()
        if not is_whole or CheckpointManifest.load(run.checkpoint("best")).id != made_of.id:
            raise self._changed(f"{run.path} is not the same as")
        metrics = json.loads((self.folder / METRICS_FILE).read_text())
        return Result(command="export", output=self.folder, metrics=metrics)

    def run(self, progress: Progress) -> Result:
        from jobs.export import ExportRequest, run

        return run(ExportRequest(run=self._places.exported, output=self.folder), progress)


PHASES = (PreprocessPhase, TrainPhase, ExportPhase)
"""The phases in order; each reads what those before it wrote."""
REFIT_PHASES = (PreprocessPhase, TrainPhase, PreprocessAllPhase, RefitPhase, ExportPhase)


def run_phases(
    request: PipelineRequest, places: Places, progress: Progress, kinds: Sequence[type[Phase]] | None = None
) -> tuple[list[Result], dict[str, float | None]]:
    """Run the unfinished phases; the results of all, and the seconds of each, None if it was finished before.

    `kinds`: the phases; by default all that `places` asks for.

    Raises ConfigError if a finished phase was made from another recipe or other raw files.
    """
    kinds = kinds or (REFIT_PHASES if places.refits else PHASES)
    phases = [phase(request, places) for phase in kinds]
    # Checked before anything runs, so that a changed recipe is refused at once.
    finished = [phase.finished() for phase in phases]
    first = finished.index(None) if None in finished else len(phases)
    results = [result for result in finished[:first] if result is not None]
    for phase in phases[:first]:
        progress.message(f"{phase.name}: already finished, in {phase.folder}")
    seconds: dict[str, float | None] = {phase.name: None for phase in phases}
    if first < len(phases):
        # Phases share a session, unless all that needs one is a large input, for which Spark starts its own.
        recipe = request.load_recipe()
        place = place_training(request, recipe.train, SilentProgress())
        # A cluster that is too small for the training says so before there is a dataset.
        with training_session(place, recipe.train, progress):
            for phase in phases[first:]:
                progress.finish()
                progress.message(f"\n{phase.name} -> {phase.folder}")
                started = time.perf_counter()
                result = phase.run(progress)
                seconds[phase.name] = time.perf_counter() - started
                results.append(result.model_copy(update={"seconds": seconds[phase.name]}))
                progress.finish()
                progress.message(describe_outcome(results[-1]))
    return results, seconds
