"""`rayrec run`: raw files to a model folder in one job; with --continue another day's files to the next model."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

from pydantic import model_validator

from jobs.command import Command, Result, describe_result, main
from jobs.pipeline.phases import PIPELINE_FILE, REFIT_NOTE, PipelineRequest, Places, run_phases
from rayrec.common.errors import ConfigError, UserError
from rayrec.common.progress import Progress
from rayrec.common.text import shell_line
from rayrec.store.files import write_json
from rayrec.store.folders import OutputKind, owned
from rayrec.store.paths import Folder

_LOCK_FILE = ".lock"


class RunRequest(PipelineRequest):
    output: Folder = None  # type: ignore[assignment]
    """Folder for all phases: dataset/, run/, model/, perhaps refit/; an unfinished attempt in it is continued."""
    continue_: Folder | None = None
    """Folder of an earlier `rayrec run` whose model is trained on with these files, as those of a new day; instead of
    --output."""

    refit: bool | None = None
    """Train the exported model again on all rows, for as many epochs as validation chose; by default for splits by
    time and leave_one_out.
    """

    outputs: ClassVar[Mapping[str, OutputKind]] = {"output": "place", "continue_": "place"}

    def check(self) -> None:
        super().check()
        if self.refit and self.load_recipe().train.rows is not None:
            raise ConfigError("--refit: trains on all rows, and train.rows leaves some out; leave one of them out")
        if self.refit and self.load_recipe().preprocess.split_of_all_rows is None:
            raise ConfigError(
                "--refit: held-out rows of this recipe cannot be in train (source.kind, preprocess.split.kind); "
                "leave it out"
            )

    @property
    def refits(self) -> bool:
        if self.refit is not None:
            return self.refit
        recipe = self.load_recipe()
        return recipe.preprocess.holds_out_latest and recipe.train.rows is None

    @model_validator(mode="before")
    @classmethod
    def _one_output(cls, values: Any) -> Any:
        output, continued = values.get("output"), values.get("continue_")
        if output is None and continued is None:
            raise ValueError("give --output for a new pipeline, or --continue to add a day to one")
        if None not in (output, continued) and str(output) != str(continued):
            raise ValueError("give --output or --continue, not both")
        return {**values, "output": output or continued}


def run(request: RunRequest, progress: Progress) -> Result:
    """Run the unfinished phases; `rows` are those of the dataset, `metrics` those of every held-out split.

    The status is `failed` where the model is worse than the label rate alone, by more than `publish.max_loss_increase`.
    With `continue_`, add a day; for a day that was already processed, return its result again and change nothing.
    `details.phases` has the seconds of each phase, None if it was finished before. Raises ConfigError if a finished
    phase was made from another recipe or other raw files.
    """
    with owned_pipeline(request):
        if request.continue_ is not None:
            from jobs.pipeline.days import MODELS_FOLDER, adopt_run, repeated_day, run_day

            models = request.output / MODELS_FOLDER
            adopt_run(request, request.output, models)
            if (before := repeated_day(request, request.output, models)) is not None:
                progress.message(
                    f"these files were already processed; version {before.details['version']} is their model"
                )
                return before
            return run_day(request, request.output, models, progress)
        places = Places(request.output, refits=request.refits)
        results, seconds = run_phases(request, places, progress)
    rows, trained = results[0].rows, results[1]
    details: dict[str, Any] = {
        "phases": seconds,
        **{k: v for k, v in results[0].details.items() if k in {"dropped", "found_keys", "known_values"}},
    }
    details |= {k: v for k, v in trained.details.items() if k == "drawn_negatives"}
    for kind in ("warnings", "notes"):
        details[kind] = [*dict.fromkeys(text for result in results for text in result.details.get(kind, ()))]
    if request.refits:
        details["notes"].append(REFIT_NOTE)
    fault = _fault(request, places, trained)
    return Result(
        command="run",
        status="done" if fault is None else "failed",
        error=fault,
        output=request.output,
        rows=rows,
        metrics=trained.metrics,
        baselines=trained.baselines,
        execution=trained.execution,
        details=details,
    )


def _fault(request: RunRequest, places: Places, trained: Result) -> str | None:
    """Say why the trained model should not serve; None if it is better than no model, or nothing tells."""
    from jobs.stored_model import stored_model
    from rayrec.ingest.dataset import Dataset
    from rayrec.inspection.gate import fault_beside_base_rate

    recipe, dataset = request.load_recipe(), Dataset.open(places.dataset)
    split, train = dataset.split_to_judge(recipe.train.evaluation_split), dataset.manifest.splits["train"]
    simpler = trained.baselines.get(split or "", {}).get("base rate", {}).get("log_loss")
    loss = trained.metrics.get(split or "", {}).get("log_loss")
    # Rows are scored again only if the metrics tell that something is wrong.
    if split is None or simpler is None or loss is None or loss <= simpler or not 0 < train.positives < train.rows:
        return None
    with stored_model(places.run) as model:
        return fault_beside_base_rate(recipe.publish, model, dataset, split, train.positives / train.rows)


@contextmanager
def owned_pipeline(request: PipelineRequest) -> Iterator[None]:
    """Make the output folder, or take over that of an earlier attempt, for this process alone.

    Raises UserError if something else is in it, or another process works in it.
    """
    marker = request.output / PIPELINE_FILE
    if not marker.exists():
        write_json(marker, {"recipe": request.recipe, "set": request.set, "input": request.input})
    with owned(request.output, request.output / _LOCK_FILE):
        _remove_leftovers(request.output)
        yield
        _remove_leftovers(request.output)


def _remove_leftovers(folder: Path) -> None:
    for lock in folder.glob(".*.lock"):
        with suppress(UserError), owned(folder, lock):  # which removes it, unless another process holds it
            pass


def describe(result: Result) -> str:
    """Return the outcome with its metrics, and the commands to go on with if there is a model to serve."""
    text = describe_result(result)
    if result.error is not None:
        text += f"\n  error: {result.error}"
    if result.status != "done" or result.output is None:
        return text
    if "version" in result.details:
        from jobs.pipeline.days import MODELS_FOLDER

        return f"{text}\n\nNext: {shell_line(['rayrec', 'serve', str(result.output / MODELS_FOLDER)])}"
    return "\n".join([
        text,
        "",
        f"Next: {shell_line(['rayrec', 'serve', str(result.output / 'model')])}",
        f"      {shell_line(['rayrec', 'report', str(result.output / 'run'), '--output', 'report'])}",
    ])  # fmt: skip


COMMAND = Command("run", RunRequest, run, describe)

if __name__ == "__main__":
    raise SystemExit(main(COMMAND))
