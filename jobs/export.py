"""`rayrec export`: writes the model folder of a run: whole, or what differs from another version."""

import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from jobs.command import Command, Positional, Request, Result, main
from rayrec.common.errors import ConfigError, UserError
from rayrec.common.progress import Progress, SilentProgress
from rayrec.store.artifact import Parent, parent_of
from rayrec.store.folders import owned
from rayrec.store.node_copy import on_this_node
from rayrec.store.paths import Folder, place_on_this_node

if TYPE_CHECKING:
    from rayrec.features.schema import Schema
    from rayrec.inference.folder.model_folder import Metrics, ModelFolder
    from rayrec.ingest.dataset import Dataset
    from rayrec.recipes import Recipe
    from rayrec.training.run.folder import RunFolder


class ExportRequest(Request):
    run: Annotated[Folder, Positional("RUN|DELTA")]
    """Run folder or its URI; or a delta, to make a whole model of it."""
    output: Folder
    """New model folder."""
    checkpoint: str = "best"
    """Checkpoint of the run: best, latest or a step."""
    tables: Literal["fp32", "fp16", "int8"] | None = None
    """Precision of the stored tables; by default fp32, or that of --delta-of."""
    delta_of: Folder | None = None
    """Earlier version, a model folder beside --output: write only what differs from it, or from its own base."""
    register_as: str | None = None
    """Model name in MLflow's registry, which gets a new version (MLFLOW_TRACKING_URI)."""
    vectors: bool = False
    """Write the vectors of items and known users as Parquet, instead of a model folder; also takes a model folder."""

    def check(self) -> None:
        others = (self.tables, self.delta_of, self.register_as, None if self.checkpoint == "best" else self.checkpoint)
        if self.vectors and any(others):
            raise ConfigError(
                "--vectors: those of the best checkpoint, and no model folder; leave out --checkpoint, --tables, "
                "--delta-of and --register-as"
            )
        if self.register_as is not None and self.delta_of is not None:
            raise ConfigError("--register-as: registers whole models only; leave out --delta-of")


def run(request: ExportRequest, progress: Progress) -> Result:
    """Export a checkpoint; `metrics` are those that it reached, `details` its name and the bytes of its tables.

    Of a delta, `details` has what differs from its base; `details.warnings` says where histories end too early.
    """
    from rayrec.inference.folder.table_files import is_model_folder

    if request.vectors:
        return _write_vectors(request, progress)
    if is_model_folder(request.run):
        return _make_whole(request, progress)
    from rayrec.ingest.dataset import Dataset
    from rayrec.training.run.folder import RunFolder

    # What can be wrong is looked at first: a mistake is answered at once, not when torch has been loaded.
    trained = RunFolder.open(request.run)
    dataset = Dataset.open(trained.dataset_folder)
    if not trained.was_trained_on(dataset.folder):
        raise UserError(
            f"{trained.path}: was trained on another dataset than is now in {dataset.folder}; bring that one "
            "back, or train on this one"
        )
    checkpoint = trained.checkpoint(request.checkpoint)
    tracking = trained.recipe.train.tracking.mlflow
    server = tracking.tracking_uri if tracking else None
    if request.register_as is not None:
        from rayrec.store.mlflow_server import require_registry

        require_registry(server)
    base = _base(request, trained)

    from rayrec.inference.export import export_checkpoint
    from rayrec.inference.folder.model_folder import ModelFolder
    from rayrec.inference.past import describe_stale
    from rayrec.inspection.split_checks import baselines, drawn_negatives

    # A run on all rows has none left to be measured on: its metrics are those of the run that it repeats.
    judged = trained.refit_of
    judged_dataset = None if judged is None else Dataset.open(judged.dataset_folder)
    metrics = _metrics(trained, dataset, checkpoint)
    tables = base.precision if base else request.tables or "fp32"
    details: dict[str, Any] = {"checkpoint": checkpoint.name, "tables": tables, **drawn_negatives(dataset.schema)}
    progress.stage(f"export {checkpoint.name}")
    with _whole_folder(request) as folder:
        loss = export_checkpoint(
            checkpoint,
            folder,
            recipe=trained.recipe,
            dataset=dataset,
            metrics=metrics,
            judged=_judged(trained),
            refit_of=judged_dataset,
            baselines=baselines(trained.recipe, judged_dataset or dataset, metrics),
            tables=tables,
            made_of={
                "checkpoint": parent_of(checkpoint),
                "dataset": Parent(id=dataset.id, folder=dataset.folder),
            },
            base=None if base is None else base.schema,
        )
        model = ModelFolder.open(folder)
        details["table_bytes"] = model.table_bytes()
        if (stale := describe_stale(model.schema, time.time())) is not None:
            details["warnings"] = [stale]
        if base is not None:
            # The whole model goes when the block ends; what differs from the base stays.
            from rayrec.inference.folder.delta import write_delta

            progress.stage(f"compare with {base.folder}")
            written = write_delta(model, base, request.output)
            details["delta"] = {
                "base": base.folder.name,
                **written.model_dump(mode="json", include={"tables", "vocabularies"}),
                "bytes": sum(file.bytes for file in written.files),
            }
    if request.register_as is not None:
        from rayrec.store.mlflow_server import register
        from rayrec.training.run.history import mlflow_run_of

        of_run = mlflow_run_of(trained.path) if tracking else None
        details["registered_version"] = register(on_this_node(request.output), request.register_as, server, of_run)
    if loss is not None:
        details["precision_loss"] = loss
        change = loss["auc_change"]
        auc = "AUC is undefined" if change is None else f"AUC changes by {change:+.2e}"
        progress.message(f"tables as {tables}: {auc} on {loss['rows']:,} rows of {loss['split']}")
    return Result(command="export", output=request.output, metrics=metrics, details=details)


def _base(request: ExportRequest, trained: "RunFolder") -> "ModelFolder | None":
    """Return the base of the delta that is asked for. Raises UserError if there can be none, before an export."""
    from rayrec.inference.folder.delta import require_continues, require_place
    from rayrec.inference.folder.model_folder import ModelFolder

    if request.delta_of is None:
        return None
    before = ModelFolder.open(request.delta_of)
    base = before.base or before
    require_place(request.output.absolute(), base.folder)
    if request.tables not in (None, base.precision):
        raise ConfigError(
            f"--tables {request.tables}: the tables of {base.folder} are {base.precision}, and its "
            "deltas must be, too; leave out --tables or --delta-of"
        )
    require_continues(base, trained.recipe, trained.schema)
    return base


@contextlib.contextmanager
def _whole_folder(request: ExportRequest) -> Iterator[Path]:
    """Yield the folder to export a checkpoint to: the output, or for a delta one beside it for the time of the
    block.
    """
    if request.delta_of is None:
        yield request.output
        return
    # Under a name that the next export to the same output removes, if this one is killed (`new_folder`).
    folder = place_on_this_node(request.output).with_name(f".{request.output.name}.unfinished-whole")
    with owned(request.output):
        shutil.rmtree(folder, ignore_errors=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _judged(run: "RunFolder") -> str | None:
    """Return what a card says of the metrics of a run that was trained anew on all rows; None of any other run."""
    from rayrec.ingest.dataset import Dataset
    from rayrec.training.run.folder import read_progress

    if (before := run.refit_of) is None:
        return None
    checkpoint = before.checkpoint("best")
    rows = [Dataset.open(folder).split("train").rows for folder in (before.dataset_folder, run.dataset_folder)]
    return (
        f"These are the metrics of the same recipe trained on {rows[0]:,} rows, without the held-out ones, for "
        f"{read_progress(checkpoint).step:,} steps. The model in this folder was then trained anew on all {rows[1]:,} "
        f"rows for as many epochs ({run.recipe.train.max_steps:,} steps), so no rows are left to measure it on."
    )


def _make_whole(request: ExportRequest, progress: Progress) -> Result:
    """Write the whole model that a delta stands for; `metrics` are those of the model."""
    from rayrec.inference.folder.delta import write_whole
    from rayrec.inference.folder.model_folder import ModelFolder

    if (request.tables, request.delta_of, request.register_as) != (None, None, None):
        raise ConfigError(
            "--tables, --delta-of, --register-as: only for a run folder; leave them out to make a delta whole"
        )
    model = ModelFolder.open(request.run)
    if model.base is None:
        raise UserError(f"{request.run}: already a whole model folder; copy it")
    progress.stage(f"delta of {model.base.folder}")
    write_whole(model, request.output)
    details = {"tables": model.precision, "table_bytes": ModelFolder.open(request.output).table_bytes()}
    return Result(command="export", output=request.output, metrics=model.metrics, details=details)


def _write_vectors(request: ExportRequest, progress: Progress) -> Result:
    """Write vectors; `details.vectors` counts items and users, `rows` both."""
    from rayrec.inference.batch.vectors import write_vectors
    from rayrec.inference.recommender import load_recommender

    with exported(request.run) as folder:
        written = write_vectors(load_recommender(folder), request.output, progress)
    return Result(command="export", output=request.output, rows=sum(written.values()), details={"vectors": written})


@contextlib.contextmanager
def exported(path: Path) -> Iterator[Path]:
    """Yield the model folder at `path`; the best checkpoint of a run folder is exported for the time of the block."""
    from rayrec.inference.folder.table_files import is_model_folder

    if is_model_folder(path):
        yield path.absolute()
    elif is_run_folder(path):
        with tempfile.TemporaryDirectory(prefix="rayrec-model-") as temporary:
            # The folder's name becomes the model's name in serving.
            output = Path(temporary) / path.absolute().name
            run(ExportRequest(run=path, output=output), SilentProgress())
            yield output
    else:
        raise neither_model_nor_run(path)


def read_schema(path: Path) -> "tuple[Recipe, Schema]":
    """Return the recipe and the schema of a model or run folder, which tell what it can read before it is exported."""
    from rayrec.features.schema import Schema
    from rayrec.inference.folder.table_files import is_model_folder
    from rayrec.recipes import CONFIG_FILE, load_recipe

    if not (is_model_folder(path) or is_run_folder(path)):
        raise neither_model_nor_run(path)
    return load_recipe(path / CONFIG_FILE), Schema.load(path)


def neither_model_nor_run(path: Path) -> UserError:
    """Return the error that a folder is neither a model nor a run."""
    return UserError(f"{path}: neither a model nor a run folder; give the output of `rayrec export` or `train`")


def is_run_folder(path: Path) -> bool:
    """Return whether `path` is a run folder; does not import torch."""
    from rayrec.training.run.folder import RUN_FILE

    return (path / RUN_FILE).is_file()


def _metrics(run: "RunFolder", dataset: "Dataset", checkpoint: Path) -> "Metrics":
    """Return the metrics of all splits for the best checkpoint, and of its evaluation during training for another one.

    Of a run that was trained anew on all rows, those of the best checkpoint of the run that it repeats.
    """
    from rayrec.ingest.dataset import Dataset
    from rayrec.training.run.folder import METRICS_FILE, read_progress

    if (judged := run.refit_of) is not None:
        return _metrics(judged, Dataset.open(judged.dataset_folder), judged.checkpoint("best"))
    final = run.path / METRICS_FILE
    if final.is_file() and checkpoint == run.checkpoint("best"):
        metrics: Metrics = json.loads(final.read_text())
        return {split: values for split, values in metrics.items() if split in dataset.manifest.splits}
    reached = read_progress(checkpoint).metrics
    wanted = run.recipe.train.evaluation_split
    split = wanted if wanted in dataset.manifest.splits else "test"
    return {split: dict(reached)} if reached else {}


COMMAND = Command("export", ExportRequest, run)

if __name__ == "__main__":
    raise SystemExit(main(COMMAND))
