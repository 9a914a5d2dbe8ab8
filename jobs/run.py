"""`rayrec run`: raw files to a model folder in one job.

Each stage writes a folder that is whole or absent (dataset, evaluation, model) or that can be continued (run), so a
rerun continues with the first unfinished stage, whatever ended the last one.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jobs.command import Command, Result, describe_result, main
from jobs.pipeline.stages import STAGES, UNFINISHED_MODEL, RunRequest
from rayrec.common.files import locked, require_absent, write_json
from rayrec.common.progress import Progress
from rayrec.storage.location import location

PIPELINE_FILE = "pipeline.json"
_LOCK_FILE = ".lock"
_LEFTOVERS = (".run.unfinished-*", ".evaluation.unfinished-*", ".rayrec-evaluate-*", f"*{UNFINISHED_MODEL}*")
"""What killed stages leave beside the folders that they write, and do not continue."""
_LEFTOVERS_OF_DATASET = ".dataset.unfinished-*"


def run(request: RunRequest, progress: Progress) -> Result:
    """Run the unfinished stages; `rows` are those of the dataset, `metrics` the evaluation's.

    `details.stages` has the seconds of each stage, None if it was finished before. Raises ConfigError if a finished
    stage was made from another recipe or other raw files.
    """
    with _owned(request):
        stages = [stage(request) for stage in STAGES]
        seconds: dict[str, float | None] = {}
        # Checked before anything runs, so that a changed recipe is refused at once.
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
    """Make the output folder, or take over that of an earlier attempt, for this process alone.

    Raises UserError if something else is in it, or another process works in it.
    """
    marker = request.output / PIPELINE_FILE
    if not marker.exists():
        require_absent(request.output)
        write_json(marker, {"recipe": request.recipe, "set": request.set, "input": request.input})
    with locked(request.output / _LOCK_FILE, request.output):
        _remove_leftovers(request.output)
        yield
        _remove_leftovers(request.output)


def _remove_leftovers(folder: Path) -> None:
    # A killed preprocessing is continued from what it left.
    finished = (_LEFTOVERS_OF_DATASET,) if (folder / "dataset").exists() else ()
    for pattern in (*_LEFTOVERS, *finished):
        for leftover in folder.glob(pattern):
            if leftover.is_dir():
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                leftover.unlink(missing_ok=True)


COMMAND = Command("run", RunRequest, run)

if __name__ == "__main__":
    raise SystemExit(main(COMMAND))
