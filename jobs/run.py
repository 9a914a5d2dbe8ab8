"""Raw files to a model folder in one job: `python -m jobs.run --recipe NAME --input RAW --output FOLDER`.

Stages write folders that are whole or absent (dataset, evaluation, model) or that can be continued (run), so a rerun
after any end goes on with the first unfinished one.
"""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jobs.entry_point import Job, describe_result, main
from jobs.preprocess import PreprocessRequest
from jobs.request import TrainingRecipeRequest
from jobs.result import Result
from jobs.stages import UNFINISHED_MODEL, stages_of
from rayrec.common.errors import UserError
from rayrec.common.files import require_absent, write_json
from rayrec.common.progress import Progress

PIPELINE_FILE = "pipeline.json"
_REMAINS = (".*.unfinished-*", ".rayrec-evaluate-*", UNFINISHED_MODEL)
"""What stages that were killed leave beside the folders that they write."""


class RunRequest(PreprocessRequest, TrainingRecipeRequest):
    """Preprocess, train, evaluate and export; a rerun continues where the last one stopped."""

    output: Path
    """Folder of all stages: dataset/, run/, evaluation/, model/."""


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
            progress.message(f"{stage.name}: finished before, in {stage.folder}")
            seconds[stage.name] = None
        if first < len(stages):
            from cluster.ray_session import ray_session

            progress.stage("start Ray")
            with ray_session():
                for stage in stages[first:]:
                    progress.finish()
                    progress.message(f"\n{stage.name} -> {stage.folder}")
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
    with marker.open("r+") as lock:
        try:
            # The lock ends with the process, however that ends.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"{request.output}: another `rayrec run` is at work in it; wait for it or stop it"
            ) from None
        for pattern in _REMAINS:
            for remains in request.output.glob(pattern):
                shutil.rmtree(remains, ignore_errors=True)
        yield


JOB = Job("run", RunRequest, run)

if __name__ == "__main__":
    raise SystemExit(main(JOB))
