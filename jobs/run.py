"""`rayrec run`: raw files to a model folder in one job.

Stages write folders that are whole or absent (dataset, evaluation, model) or that can be continued (run), so a rerun
after any end goes on with the first unfinished one.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jobs.command.command_line import main
from jobs.command.request import TrainingRecipeRequest
from jobs.command.result import Result, describe_result
from jobs.command.runner import Command
from jobs.pipeline.stages import UNFINISHED_MODEL, stages_of
from jobs.preprocess import PreprocessRequest
from rayrec.common.files import locked, require_absent, write_json
from rayrec.common.progress import Progress
from rayrec.storage.location import Folder, location

PIPELINE_FILE = "pipeline.json"
_LOCK_FILE = ".lock"
_REMAINS = (".run.unfinished-*", ".evaluation.unfinished-*", ".rayrec-evaluate-*", f"*{UNFINISHED_MODEL}*")
"""What stages that were killed leave beside the folders that they write, and do not continue."""
_REMAINS_OF_DATASET = ".dataset.unfinished-*"


class RunRequest(PreprocessRequest, TrainingRecipeRequest):
    """Preprocess, train, evaluate and export in one job; run again, it continues where it stopped."""

    output: Folder
    """Folder of all stages (dataset/, run/, evaluation/, model/); an earlier attempt in it is continued."""

    @property
    def continues(self) -> bool:
        return True


def run(request: RunRequest, progress: Progress) -> Result:
    """Do the stages that are not finished; `rows` are those of the dataset, `metrics` the evaluation's.

    `details.stages` has the seconds of each stage, None where it was finished before. Raises ConfigError where a
    finished stage was made from another recipe or other raw files.
    """
    with _owned(request):
        stages = stages_of(request)
        seconds: dict[str, float | None] = {}
        # Looked at before anything runs, so that a changed recipe is refused at once.
        finished = [stage.finished() for stage in stages]
        first = finished.index(None) if None in finished else len(stages)
        results = [result for result in finished[:first] if result is not None]
        for stage in stages[:first]:
            progress.message(f"{stage.name}: finished before, in {location(stage.folder)}")
            seconds[stage.name] = None
        if first < len(stages):
            from cluster.ray_session import ray_session

            progress.stage("start Ray")
            with ray_session():
                for stage in stages[first:]:
                    progress.finish()
                    progress.message(f"\n{stage.name} -> {location(stage.folder)}")
                    results.append(stage.run(progress))
                    progress.finish()
                    progress.message(describe_result(results[-1]))
                    seconds[stage.name] = results[-1].seconds
    rows, metrics = results[0].rows, results[2].metrics
    return Result(command="run", output=request.output, rows=rows, metrics=metrics, details={"stages": seconds})


@contextmanager
def _owned(request: RunRequest) -> Iterator[None]:
    """Make the folder, or take over that of an earlier attempt, for this process alone.

    Raises UserError where something else is in it, or another process is at work in it.
    """
    marker = request.output / PIPELINE_FILE
    if not marker.exists():
        require_absent(request.output)
        write_json(marker, {"recipe": request.recipe, "set": request.set, "input": request.input})
    with locked(request.output / _LOCK_FILE, request.output):
        _tidy(request.output)
        yield
        _tidy(request.output)


def _tidy(folder: Path) -> None:
    """Remove what no stage continues."""
    # A killed preprocessing goes on from what it left.
    finished = (_REMAINS_OF_DATASET,) if (folder / "dataset").exists() else ()
    for pattern in (*_REMAINS, *finished):
        for remains in folder.glob(pattern):
            if remains.is_dir():
                shutil.rmtree(remains, ignore_errors=True)
            else:
                remains.unlink(missing_ok=True)


COMMAND = Command("run", RunRequest, run)

if __name__ == "__main__":
    raise SystemExit(main(COMMAND))
