"""`rayrec evaluate`: exact metrics of a trained model."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import PositiveInt

from jobs.command import ByPosition, Command, Metavar, PathText, Positional, Result, main
from jobs.command.placement import PlacedRequest, place_scoring
from jobs.export import read_schema
from jobs.stored_model import measurable, scoring_pool, stored_model
from rayrec.common.errors import ConfigError, UserError
from rayrec.common.progress import Progress
from rayrec.config.evaluate import InferencePrecision
from rayrec.config.preprocess import Duration, RowsPreprocessConfig, seconds_of
from rayrec.config.table import TableSourceConfig
from rayrec.store.paths import Folder, LocalPath

if TYPE_CHECKING:
    from rayrec.ingest.dataset import Dataset


class EvaluateRequest(PlacedRequest):
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
    """Number of workers that score beside each other; by default one a CPU, or a GPU."""
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
    staleness: Annotated[Duration, Metavar("1d")] | None = None
    """Measure as if the histories of a server ended so long before each row, such as 1d; reads the raw files of the
    dataset again."""

    def check(self) -> None:
        if self.staleness is not None and self.server is not None:
            raise ConfigError("--staleness: a server has the histories of its model; leave it out")
        if self.staleness is not None and self.on == "ray":
            raise ConfigError("--staleness: is measured in this process; leave out --on ray")
        if self.server is None:
            if self.data is None:
                raise ConfigError("data: missing; it is required without --server")
            if self.input is not None or self.token_file is not None:
                raise ConfigError("--input, --token-file: only for --server; leave them out")
        elif self.input is None or self.data is not None:
            raise ConfigError("--server: scores raw rows; give --input instead of --data")
        elif self.precision != "fp32":
            raise ConfigError("--precision: a server has its own (`rayrec serve --precision`); leave it out")


def run(request: EvaluateRequest, progress: Progress) -> Result:
    """Evaluate; `rows` counts the rows of the split, or of its part, each of which counts once.

    `details.rows_per_second` counts the start of workers; `details.part`, where --rows leaves rows out, has the
    `rows` of the part and those `of` the split; `details.staleness` is that of the histories, if one was given. Of a
    server `metrics` are those of `input`, and `details` say how fast it was and which versions answered.
    """
    if request.server is not None:
        return _ask_server(request, request.server, progress)
    assert request.data is not None, "the request was checked"
    from rayrec.ingest.dataset import Dataset
    from rayrec.inspection.split_checks import baselines, class_warnings, drawn_negatives, ranking_notes
    from rayrec.training.run.preflight import require_evaluable

    dataset = Dataset.open(request.data)
    dataset.labelled_split(request.split)
    if request.staleness is not None:
        _require_histories(dataset)
    source, notes = measurable(request.source, request.data)
    with stored_model(source, request.checkpoint) as model:
        recipe, schema = model.recipe, model.schema
        schema.require_same_features(dataset.schema, request.data)
        require_evaluable(recipe, dataset)

        # Score the rows where it is decided, and measure each of them.
        device = request.device or recipe.train.device
        rows = dataset.head(request.split, request.rows).split(request.split).rows
        if request.staleness is not None:
            request = request.model_copy(update={"on": "process"})
        place = place_scoring("evaluate", request, progress, rows=rows, workers=request.workers, device=device)
        workers, precision = request.workers, request.precision
        with (
            _with_histories_of(request.staleness, dataset, request.split, progress) as measured,
            scoring_pool(place, progress, workers=workers, device=device, precision=precision) as (pool, execution),
        ):
            part = measured.head(request.split, request.rows)
            from rayrec.inference.batch.scoring import measure_split

            progress.stage(f"evaluating on {request.split}", rows)
            began = time.perf_counter()
            metrics = measure_split(model, part, request.split, recipe.evaluate, pool, progress)
            seconds = time.perf_counter() - began

    found = {request.split: metrics}
    part_details = {**part_of_split(dataset, request.split, rows), **drawn_negatives(schema)}
    notes += [*part_details.pop("notes", []), *ranking_notes(recipe, part, found)]
    if request.staleness is not None:
        part_details["staleness"] = request.staleness
        notes.append(f"histories end {request.staleness} before each row, as those of a server that is so old")
    details = {"rows_per_second": rows / seconds, **part_details, "warnings": class_warnings(found), "notes": notes}
    # The manifest tells the label rate of whole splits alone.
    simpler = {} if "part" in details else baselines(recipe, dataset, found)
    return Result(command="evaluate", rows=rows, metrics=found, baselines=simpler, execution=execution, details=details)


def _require_histories(dataset: "Dataset") -> None:
    """Raise ConfigError unless the rows of a dataset can be read again as with older histories."""
    if not any(lookup.kind == "history" for lookup in dataset.schema.lookups):
        raise ConfigError(f"--staleness: {dataset.folder} has no histories, which alone grow old; leave it out")
    preprocess = dataset.recipe.preprocess
    assert isinstance(preprocess, RowsPreprocessConfig)
    if preprocess.split.kind == "files":
        raise ConfigError(
            f"--staleness: {dataset.folder} does not say which of its files are of which split; preprocess them with "
            "another kind of preprocess.split"
        )


@contextmanager
def _with_histories_of(
    staleness: str | None, dataset: "Dataset", split: str, progress: Progress
) -> "Iterator[Dataset]":
    """Yield the dataset, or one that has the rows of a split as with histories of this age. Raises UserError."""
    if staleness is None:
        yield dataset
        return
    from rayrec.ingest.dataset import Dataset
    from rayrec.preprocessing.engine import EmbeddedEngine
    from rayrec.preprocessing.extension import source_file
    from rayrec.preprocessing.rows_job import RowsJob
    from rayrec.preprocessing.workspace import Workspace
    from rayrec.raw.input_files import list_inputs
    from rayrec.sources.registry import preprocessing_job
    from rayrec.store.artifact import found

    recipe, manifest = dataset.recipe, dataset.manifest
    source = recipe.source
    assert isinstance(source, TableSourceConfig)
    # The rows of the split from the raw files, which the manifest names before those of side tables and events.
    paths = [*(table.path for table in source.tables.values()), *(past.path for past in source.histories.values())]
    beside = {file.name for path in paths if path is not None for file in list_inputs([path])}
    inputs = [file.path for file in manifest.sources if file.path not in beside]
    parent = None if manifest.parent is None else Dataset.open(found(manifest.parent, dataset.folder))
    job = preprocessing_job(recipe, {None: inputs}, parent)
    assert isinstance(job, RowsJob)
    made_of = {file.path: file.digest for file in manifest.sources}
    for file in job.files:
        if source_file(file).digest != made_of.get(file.name):
            raise UserError(f"{file.name}: is not what {dataset.folder} was made of; bring that file back")
    with tempfile.TemporaryDirectory(prefix="rayrec-stale-") as name:
        folder = Path(name)
        scratch = folder / ".scratch"
        scratch.mkdir()
        engine = EmbeddedEngine.of_this_machine().within(scratch)
        info = job.encode_again(Workspace(engine, folder, scratch, progress), dataset, split, seconds_of(staleness))
        yield replace(dataset, folder=folder, manifest=manifest.model_copy(update={"splits": {split: info}}))


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


COMMAND = Command("evaluate", EvaluateRequest, run)

if __name__ == "__main__":
    raise SystemExit(main(COMMAND))
