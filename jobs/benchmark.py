"""`rayrec benchmark`: measures one part on this machine."""

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import PositiveInt

from jobs.command import Command, Positional, Result, TrainingRecipeRequest, main
from rayrec.common.progress import Progress
from rayrec.storage.location import Folder


class BenchmarkRequest(TrainingRecipeRequest):
    """Measure one part on this machine."""

    what: Annotated[Literal["train", "inference", "ingest", "preprocess"], Positional()]
    """The part to measure."""
    data: Folder | None = None
    """Dataset folder, by default made from generated rows."""
    rows: PositiveInt = 200_000
    """Rows to generate if no dataset is given."""
    warmup_steps: PositiveInt = 20
    """Steps, or forward passes, that are not counted."""
    steps: PositiveInt = 100
    """Steps, or forward passes, that are counted."""
    batch_size: tuple[PositiveInt, ...] = (1, 16, 256, 1024, 4096, 16384)
    """Batch size of `inference`; repeatable."""


def run(request: BenchmarkRequest, progress: Progress) -> Result:
    """Measure; `details` has the rows of the table."""
    import time

    from cluster.ray_session import ray_session
    from jobs.generate import GenerateRequest
    from jobs.generate import run as generate
    from jobs.measure.inference import measure_inference
    from jobs.measure.ingest import measure_ingest
    from jobs.measure.training import measure_training
    from jobs.preprocess import PreprocessRequest
    from jobs.preprocess import run as preprocess
    from rayrec.ingest.dataset import Dataset
    from rayrec.sources.registry import source_of

    recipe = request.load_recipe()
    with ExitStack() as stack:
        stack.enter_context(ray_session())
        folder, seconds = request.data, 0.0
        if folder is None or request.what == "preprocess":
            made = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rayrec-benchmark-")))
            source = recipe.source.kind
            generate(GenerateRequest(source=source, rows=request.rows, output=made / "raw"), progress)
            started = time.perf_counter()
            data = source_of(source).generated
            assert data is not None, "the source has just generated data"
            split = f"preprocess.split={{kind: {data.split}}}"
            overrides = (*request.set, split) if request.data is None else request.set
            folder = made / "dataset"
            preprocess(
                PreprocessRequest(
                    recipe=request.recipe, set=overrides, input=(str(made / "raw" / data.path),), output=folder
                ),
                progress,
            )
            seconds = time.perf_counter() - started
        table: list[dict[str, Any]]
        if request.what == "preprocess":
            table = [{"rows": request.rows, "seconds": seconds, "rows_per_second": request.rows / seconds}]
        else:
            dataset = Dataset.open(folder)
            counts = {"warmup_steps": request.warmup_steps, "steps": request.steps}
            match request.what:
                case "train":
                    table = measure_training(recipe, dataset, progress=progress, **counts)
                case "inference":
                    table = measure_inference(recipe, dataset, batch_sizes=request.batch_size, **counts)
                case "ingest":
                    table = measure_ingest(recipe, dataset)
    return Result(command="benchmark", details={"what": request.what, "table": table})


def describe(result: Result) -> str:
    """The table as text."""
    from jobs.command.text_table import text_table

    return text_table(result.details["table"])


COMMAND = Command("benchmark", BenchmarkRequest, run, describe)

if __name__ == "__main__":
    raise SystemExit(main(COMMAND))
