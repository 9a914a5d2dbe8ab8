"""A pipeline that goes on: each day's files extend the dataset, train the model further and publish what has changed.

    OUT/dataset  run  model        the first day, as `rayrec run` makes them, with --output or --continue
    OUT/days/0001 ...              a day each: day.json, dataset, run, gate.json, refit, manifest.json (written last)
    OUT/models/1 2 ...             the models that serve, each in full or as the difference to the one before

A day continues from the last one whose model is in `models`. One that died is continued by the same command. A model
that the gate refuses stays in its day, and the next day continues from the one before it.
"""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from jobs.command import Result
from jobs.pipeline.phases import PHASES, PIPELINE_FILE, REFIT_NOTE, PipelineRequest, Places, run_phases
from rayrec.common.errors import ConfigError, PassingError, UserError
from rayrec.common.progress import Progress
from rayrec.common.text import shell_line
from rayrec.inference.folder.versions import folders_of, versions_in
from rayrec.store.artifact import Manifest, kind_of, parent_of, stored_files
from rayrec.store.files import copy, remove, write_json
from rayrec.store.folders import is_vacant, new_folder

if TYPE_CHECKING:
    from rayrec.inspection.gate import Judgement

DAYS_FOLDER = "days"
MODELS_FOLDER = "models"
DAY_FILE = "day.json"
GATE_FILE = "gate.json"


class DayManifest(Manifest):
    """The manifest of a day that is over: made of its dataset and its model."""

    command = "run"

    kind: Literal["day"] = "day"
    version: Literal[1] = 1
    published: str | None
    """The version that its model has become; None if the gate refused it."""
    faults: tuple[str, ...] = ()
    """Why the gate refused it."""


@dataclass(frozen=True)
class Day:
    """A day after the first one."""

    folder: Path
    input: tuple[str, ...]
    """The files as the command named them."""
    before: Path
    """The folder of the day that it continues from."""
    serving: str
    """The version that the day before published."""
    version: str
    """The version that it is to publish."""

    @classmethod
    def load(cls, folder: Path) -> "Day":
        content: dict[str, Any] = json.loads((folder / DAY_FILE).read_text())
        before = folder.parent.parent / content["before"]
        return cls(folder, tuple(content["input"]), before, content["serving"], content["version"])

    @property
    def is_over(self) -> bool:
        """Tell if its model was published or refused."""
        return kind_of(self.folder) is not None

    @property
    def published(self) -> str | None:
        """Return the version that it has published; None while it is not over, or if its model was refused."""
        return DayManifest.load(self.folder).published if self.is_over else None

    def end(self, model: Path, published: str | None, faults: Sequence[str] = ()) -> None:
        """Write what has become of the day and its model."""
        made_of = {"dataset": parent_of(self.places.dataset), "model": parent_of(model)}
        names = [name for name in (DAY_FILE, GATE_FILE) if (self.folder / name).exists()]
        files = stored_files(self.folder, names)
        DayManifest(made_of=made_of, files=files, published=published, faults=tuple(faults)).save(self.folder)

    @property
    def places(self) -> Places:
        return Places(self.folder, Places(self.before))


def run_day(request: PipelineRequest, output: Path, models: Path, progress: Progress) -> Result:
    """Take in a day's files: the first day, if `models` has no version, else the next one.

    `details` has the day, the version that it published, the gate's figures, and the seconds of each phase. Raises
    UserError if the gate refuses the model, which then stays in its day.
    """
    begun = unfinished_input(output, models)
    if begun is not None and begun != request.input:
        given_up = days_of(output)[-1].folder if versions_in(models) else output
        raise ConfigError(
            f"{output}: the day started with --input {' --input '.join(begun)} is unfinished; run it "
            f"again with that input first, or remove {given_up} to abandon it"
        )
    if not versions_in(models):
        return _run_first_day(request, output, models, progress)
    day = _begin(request, output, models)
    progress.message(f"{day.folder}: continues from {day.before}, whose model is version {day.serving}")
    try:
        seconds = _run(request, day, models, progress)
    except UserError as error:
        # Files that cannot be taken in must not stand in the way of others.
        if not isinstance(error, PassingError) and not day.places.dataset.exists():
            remove(day.folder)
        raise
    return _result(output, day.places, day.version, seconds)


def repeated_day(request: PipelineRequest, output: Path, models: Path) -> Result | None:
    """Return the result of the day that was taken in last, if `request` names its files again and its version still
    stands.

    Whatever starts the command every night may start it again after it has ended, if it was cut off from hearing so.
    """
    from rayrec.ingest.dataset import Dataset
    from rayrec.preprocessing.pipeline import source_files
    from rayrec.sources.registry import preprocessing_job

    days = days_of(output)
    version = days[-1].published if days else "1"
    if version is None or int(version) not in versions_in(models):
        return None
    places = days[-1].places if days else Places(output)
    recipe = request.load_recipe()
    given = source_files(preprocessing_job(recipe, request.inputs(recipe)))
    taken = Dataset.open(places.dataset).manifest.sources
    if sorted(file.digest for file in given) != sorted(file.digest for file in taken):
        return None
    return _result(output, places, version, dict.fromkeys(phase.name for phase in PHASES))


def adopt_run(request: PipelineRequest, output: Path, models: Path) -> None:
    """Make the model of a `rayrec run --output` the first version, if days are to go on from its folder.

    Raises ConfigError if it was begun with other files and is unfinished, before anything is written.
    """
    if versions_in(models) or (output / DAY_FILE).exists() or is_vacant(output / "dataset"):
        return
    given = tuple(json.loads((output / PIPELINE_FILE).read_text())["input"])
    if not is_vacant(output / "model"):
        _copy_model(output / "model", models / "1")
        write_json(output / DAY_FILE, {"input": given})
    elif given != request.input:
        inputs = shell_line(word for path in given for word in ("--input", path))
        raise ConfigError(
            f"{output}: `{shell_line(['rayrec', 'run', '--output', str(output)])}` with {inputs} is unfinished; run it "
            "again first, or remove the folder to begin anew"
        )


def _run_first_day(request: PipelineRequest, output: Path, models: Path, progress: Progress) -> Result:
    places = Places(output, refits=request.refits)
    write_json(output / DAY_FILE, {"input": request.input})
    try:
        _, seconds = run_phases(request, places, progress)
    except UserError as error:
        if not isinstance(error, PassingError) and not places.dataset.exists():
            (output / DAY_FILE).unlink()
        raise
    _copy_model(places.model, models / "1")
    return _result(output, places, "1", seconds)


def _result(output: Path, places: Places, version: str, seconds: dict[str, float | None]) -> Result:
    """Return what a day whose model serves has recorded; `seconds` are those of the phases that ran now."""
    from rayrec.ingest.dataset import Dataset
    from rayrec.inspection.split_checks import baselines, drawn_negatives, metric_warnings, run_notes, split_notes
    from rayrec.training.run.folder import METRICS_FILE, RunFolder

    dataset = Dataset.open(places.dataset)
    rows = sum(split.rows for split in dataset.manifest.splits.values())
    metrics = json.loads((places.run / METRICS_FILE).read_text())
    number = 0 if places.before is None else int(places.folder.name)
    details: dict[str, Any] = {"day": number, "version": version, "phases": seconds}
    recipe = RunFolder.open(places.run).recipe
    simpler = baselines(recipe, dataset, metrics)
    details |= {"warnings": metric_warnings(metrics, simpler), **drawn_negatives(dataset.schema)}
    if (gate := places.folder / GATE_FILE).exists():
        details["gate"] = json.loads(gate.read_text())
        details["warnings"] += details["gate"].get("warnings", ())
    details["notes"] = [*split_notes(dataset.manifest), *run_notes(recipe, dataset, metrics)]
    if dataset.manifest.known_values:
        details["known_values"] = dataset.manifest.model_dump(mode="json")["known_values"]
    if places.refit.run.exists():
        details["notes"].append(REFIT_NOTE)
    return Result(command="run", output=output, rows=rows, metrics=metrics, baselines=simpler, details=details)


def unfinished_input(output: Path, models: Path) -> tuple[str, ...] | None:
    """Return the files of the day that is not over; None if there is no such day."""
    if not versions_in(models):
        first = output / DAY_FILE
        return tuple(json.loads(first.read_text())["input"]) if first.exists() else None
    days = days_of(output)
    return days[-1].input if days and not days[-1].is_over else None


def inputs_of(output: Path) -> Iterator[str]:
    """Yield the files of all days, the first one included."""
    for path in (output / DAY_FILE, *(day.folder / DAY_FILE for day in days_of(output))):
        if path.exists():
            yield from json.loads(path.read_text())["input"]


def days_of(output: Path) -> list[Day]:
    """Return the days after the first, in order."""
    folders = sorted((output / DAYS_FOLDER).glob("[0-9]*"), key=lambda path: int(path.name))
    return [Day.load(folder) for folder in folders if (folder / DAY_FILE).exists()]


def _begin(request: PipelineRequest, output: Path, models: Path) -> Day:
    """Return the day that is not over, or a new one."""
    days = days_of(output)
    if days and not days[-1].is_over:
        return days[-1]
    versions = list(map(str, sorted(versions_in(models))))
    published = {day.published: day.folder for day in days} | {"1": output}
    version = next((version for version in reversed(versions) if version in published), None)
    if version is None:
        raise UserError(f"{models}: no version in it was published by a day of {output}; restore one")
    before = published[version]
    number = 1 + (int(days[-1].folder.name) if days else 0)
    folder = output / DAYS_FOLDER / f"{number:04d}"
    folder.parent.mkdir(exist_ok=True)
    content = {
        "input": request.input,
        "before": before.relative_to(output).as_posix(),
        "serving": version,
        "version": str(int(versions[-1]) + 1),
    }
    with new_folder(folder) as new:
        write_json(new / DAY_FILE, content)
    return Day.load(folder)


def _run(request: PipelineRequest, day: Day, models: Path, progress: Progress) -> dict[str, float | None]:
    """Bring a day to its end; the seconds of each phase, None if it was finished before."""
    places, published = day.places, models / day.version
    seconds: dict[str, float | None] = dict.fromkeys(phase.name for phase in PHASES)
    if is_vacant(published):
        # What is judged has not seen held-out rows; what serves learns from them, too, if the day is good.
        _, seconds = run_phases(request, places, progress, PHASES[:-1] if request.refits else PHASES)
        judgement = _judge(request, day, progress)
        if request.refits:
            places = replace(places, refits=not judgement.faults)
            _, more = run_phases(request, places, progress)
            seconds |= {name: value for name, value in more.items() if value is not None}
        if judgement.faults:
            day.end(places.model, None, judgement.faults)
            raise UserError(
                f"{places.model}: not published: {'; '.join(judgement.faults)}; version {day.serving} keeps "
                "serving, and the next day continues from it (if the day is right, change the keys by --set and give "
                "its files again)"
            )
        began = time.perf_counter()
        progress.stage(f"publish version {day.version}")
        _publish(request, places.model, models / day.serving, published, progress)
        seconds["publish"] = time.perf_counter() - began
    remove(places.model)
    day.end(published, day.version)
    _prune(day, models, request.load_recipe().publish.keep_days)
    return seconds


def _judge(request: PipelineRequest, day: Day, progress: Progress) -> "Judgement":
    from jobs.stored_model import stored_model
    from rayrec.ingest.dataset import Dataset
    from rayrec.inspection.gate import judge

    recipe, places = request.load_recipe(), day.places
    assert places.before is not None
    progress.stage(f"compare with version {day.serving}")
    dataset, parent = Dataset.open(places.dataset), Dataset.open(places.before.dataset)
    # Of runs, as what serves may have learned from held-out rows of the day before.
    with stored_model(places.run) as candidate, stored_model(places.before.run) as serving:
        found = judge(recipe.publish, candidate, serving, dataset, parent, recipe.train.evaluation_split)
    write_json(day.folder / GATE_FILE, found.as_json())
    if found.comparison is None and recipe.evaluate.next_item_ranking is None:
        progress.message("no rows were held out, so the new model was not compared with the serving one")
    elif found.comparison is not None:
        new, old = found.comparison.loss, found.comparison.serving_loss
        progress.message(f"{found.split}: log loss {new:.5f}, version {day.serving} {old:.5f}")
    if found.before is not None and found.before.auc is not None:
        new_auc, old_auc = found.before.auc, found.before.serving_auc
        progress.message(f"the day before: auc {new_auc:.4f}, version {day.serving} {old_auc:.4f}")
    for warning in found.warnings:
        progress.message(f"warning: {warning}")
    return found


def _publish(request: PipelineRequest, model: Path, serving: Path, output: Path, progress: Progress) -> None:
    """Give the model its place among those that serve: whole, or as what differs from the serving one."""
    from rayrec.inference.folder.delta import write_delta
    from rayrec.inference.folder.model_folder import ModelFolder

    if int(output.name) % request.load_recipe().publish.full_every:
        try:
            write_delta(ModelFolder.open(model), ModelFolder.open(serving), output)
            return
        except PassingError:
            raise
        except UserError as error:
            progress.message(f"published a whole model instead of a delta: {error}")
    _copy_model(model, output)


def _copy_model(model: Path, output: Path) -> None:
    """Copy a whole model to a folder of versions, which may be on another file system, where it appears whole."""
    with new_folder(output) as new:
        copy(model, new)


def _prune(day: Day, models: Path, keep: int) -> None:
    """Remove datasets and runs of days before the latest ones, and versions that nobody needs any more.

    Needed are the latest ones, those that `serving.json` names, and the bases of these.
    """
    output = day.folder.parent.parent
    folders = [output, *(other.folder for other in days_of(output))]
    for folder in folders[:-keep]:
        if folder != day.before:
            remove(folder / "run")
            remove(folder / "dataset")
            remove(folder / "model")
            remove(folder / "refit")
    from serve.folders import TrafficSplit

    versions, traffic = versions_in(models), TrafficSplit.load(models)
    kept = [*sorted(versions)[-keep:], *(map(int, traffic.versions) if traffic is not None else ())]
    needed = {folder for version in kept if version in versions for folder in folders_of(versions[version])}
    for folder in versions.values():
        if folder not in needed:
            remove(folder)
