"""`rayrec evaluate`: exact metrics of a trained model."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import PositiveInt

from jobs.command import ByPosition, Command, PathText, Positional, Result, absolute_path, main
from jobs.command.execution import PlacedRequest, place_evaluation, training_session
from jobs.export import read_schema
from rayrec.common.errors import ConfigError
from rayrec.common.progress import Progress
from rayrec.config.evaluate import InferencePrecision
from rayrec.store.paths import Folder, LocalPath

if TYPE_CHECKING:
    from rayrec.ingest.dataset import Dataset
    from rayrec.training.parallel.parallel_model import ParallelModel


class EvaluateRequest(PlacedRequest):
    """Compute exact metrics of a model over a split."""

    source: Annotated[Folder, Positional("RUN|MODEL")]
    """Run folder, model folder, or its URI."""
    data: Annotated[Folder, ByPosition()] | None = None
    """Dataset folder; required without --server."""
    split: str = "test"
    """Split of the dataset."""
    rows: PositiveInt | None = None
    """Number of rows to evaluate, from the start of the split; by default all."""
    checkpoint: str = "best"
    """Checkpoint of a run: best, latest or a step."""
    workers: PositiveInt | None = None
    """Number of worker processes; by default one, on a GPU or a cluster as in training."""
    device: Literal["auto", "cpu", "cuda"] | None = None
    """Device to compute on; by default as in training."""
    precision: InferencePrecision = "fp32"
    """Arithmetic of the dense network; the metrics say how far bf16 and fp16 move the scores."""
    server: str | None = None
    """Address of a server, http://HOST:PORT, that scores --input; add /v1/models/NAME if the model is not named as
    its folder.
    """
    input: PathText | None = None
    """Raw rows with labels for --server: a file, folder, glob or URI."""
    token_file: LocalPath | None = None
    """File whose first token is sent to --server; by default RAYREC_SERVE_TOKENS."""
    connections: PositiveInt = 4
    """Number of parallel requests to --server."""
    batch_rows: PositiveInt = 1_000
    """Most rows per request to --server."""

    def check(self) -> None:
        if self.server is None:
            if self.data is None:
                raise ConfigError("data: missing; it is required without --server")
            if self.input is not None or self.token_file is not None:
                raise ConfigError("--input, --token-file: only for --server; leave them out")
        elif self.input is None or self.data is not None:
            raise ConfigError("--server: scores raw rows; give --input instead of --data")
        elif self.precision != "fp32":
            raise ConfigError("--precision: a server has its own (`rayrec serve --precision`); leave it out")

    def with_absolute_paths(self) -> Self:
        changed = {"input": None if self.input is None else absolute_path(self.input)}
        return super().with_absolute_paths().model_copy(update=changed)


def run(request: EvaluateRequest, progress: Progress) -> Result:
    """Evaluate; `rows` counts the rows of the split, or of its part, each of which counts once.

    `details.rows_per_second` leaves out the start of workers; `details.part`, where --rows leaves rows out, has the
    `rows` of the part and those `of` the split. Of a server `metrics` are those of `input`, and `details` say how fast
    it was and which versions answered.
    """
    if request.server is not None:
        return _ask_server(request, request.server, progress)
    assert request.data is not None, "the request was checked"
    from rayrec.inference.folder.table_files import is_model_folder
    from rayrec.ingest.dataset import Dataset
    from rayrec.inspection.baselines import baselines
    from rayrec.inspection.split_checks import class_warnings, drawn_negatives
    from rayrec.training.driver import evaluate, fill_from_checkpoint
    from rayrec.training.run.folder import RunFolder
    from rayrec.training.run.preflight import require_evaluable

    dataset = Dataset.open(request.data)
    dataset.labelled_split(request.split)
    fill: Callable[[ParallelModel], None]
    if is_model_folder(request.source):
        from rayrec.inference.folder.model_folder import ModelFolder

        if request.checkpoint != "best":
            raise ConfigError(
                "--checkpoint: a model folder has only one checkpoint; leave it out, or give the run folder"
            )
        model = ModelFolder.open(request.source)
        recipe, schema = model.recipe, model.schema
        fill = partial(_fill_from_model_folder, str(model.folder))
    else:
        run_folder = RunFolder.open(request.source)
        recipe, schema = run_folder.recipe, run_folder.schema
        fill = partial(fill_from_checkpoint, run_folder.checkpoint(request.checkpoint))
    schema.require_same_features(dataset.schema, request.data)
    require_evaluable(recipe, dataset)
    device, part = request.device or recipe.train.device, dataset.head(request.split, request.rows)
    rows = part.split(request.split).rows
    place = place_evaluation(request, request.workers, device, rows, progress)
    workers = request.workers or (1 if place == "process" else recipe.train.workers)
    trained = recipe.train.model_dump()
    train = recipe.train.model_validate({
        **trained,
        "workers": workers,
        "min_workers": None if request.workers else recipe.train.min_workers,
        "device": device,
        # For the planner alone: ranks may hold unequal shares of a batch.
        "global_batch_size": -(-recipe.evaluate.global_batch_size // workers) * workers,
        # Takes no memory and runs everywhere, unlike what the model may have been trained with.
        "embedding_optimizer": {"kind": "sgd"},
        # One process has the memory that the workers shared.
        "sharding": trained["sharding"] | ({"memory_per_worker": None} if place == "process" else {}),
    })  # fmt: skip
    recipe = recipe.model_copy(update={"train": train})
    with training_session(place, train, progress, by_ray_data=request.on == "ray") as execution:
        measured = evaluate(
            recipe,
            dataset,
            request.split,
            fill,
            execution,
            rows=request.rows,
            precision=request.precision,
            progress=progress,
        )
    found, speed = {request.split: measured.metrics}, {"rows_per_second": measured.rows / measured.seconds}
    part_details = {**part_of_split(dataset, request.split, measured.rows), **drawn_negatives(schema)}
    details = {**speed, **part_details, "warnings": class_warnings(found)}
    # The manifest tells the label rate of whole splits alone.
    simpler = {} if "part" in details else baselines(recipe, dataset, found)
    return Result(
        command="evaluate",
        rows=measured.rows,
        metrics=found,
        baselines=simpler,
        execution=execution,
        details=details,
    )


def part_of_split(dataset: "Dataset", split: str, rows: int) -> dict[str, Any]:
    """Return details, in JSON and as a note, where a command worked on the first rows of a split alone."""
    every = dataset.split(split).rows
    if rows == every:
        return {}
    note = f"only the first {rows:,} of {every:,} rows of split '{split}' were used"
    return {"part": {"rows": rows, "of": every}, "notes": [note]}


def _ask_server(request: EvaluateRequest, address: str, progress: Progress) -> Result:
    from jobs.server_evaluation import ServedModelClient, evaluate_server
    from serve.tokens import read_token

    assert request.input is not None, "the request was checked"
    client = ServedModelClient.at(address, request.source.name, read_token(request.token_file))
    recipe, schema = read_schema(request.source)
    metrics, details = evaluate_server(
        client,
        recipe,
        schema,
        [request.input],
        connections=request.connections,
        batch_rows=request.batch_rows,
        progress=progress,
    )
    return Result(command="evaluate", rows=int(metrics["rows"] or 0), metrics={"input": metrics}, details=details)


def _fill_from_model_folder(folder: str, model: "ParallelModel") -> None:
    """Copy each worker's rows and columns of the tables, and the dense network, from a model folder."""
    from rayrec.inference.folder.model_folder import ModelFolder

    source = ModelFolder.open(folder)
    model.load(source.table, source.dense())


COMMAND = Command("evaluate", EvaluateRequest, run)

if __name__ == "__main__":
    raise SystemExit(main(COMMAND))
