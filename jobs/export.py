"""`rayrec export`: writes the model folder of a run."""

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from jobs.command import Command, Positional, Request, Result, main
from rayrec.common.errors import UserError
from rayrec.common.files import require_absent
from rayrec.common.progress import Progress, SilentProgress
from rayrec.storage.location import Folder

if TYPE_CHECKING:
    from rayrec.inference.folder.model_folder import Metrics
    from rayrec.ingest.dataset import Dataset
    from rayrec.training.run.folder import RunFolder


class ExportRequest(Request):
    """Write the model folder that serve and predict read."""

    run: Annotated[Folder, Positional("RUN")]
    """Run folder, the output of `rayrec train`, or its URI."""
    output: Folder
    """Model folder to write; must not exist."""
    checkpoint: str = "best"
    """Checkpoint of the run: best (the latest if none was evaluated), latest, or a step."""
    tables: Literal["fp32", "fp16", "int8"] = "fp32"
    """Precision of the stored embedding tables; the result shows what less than fp32 changes."""


def run(request: ExportRequest, progress: Progress) -> Result:
    """Export a checkpoint; `metrics` are those that it reached, `details` its name and the bytes of its tables."""
    from rayrec.ingest.dataset import Dataset
    from rayrec.training.run.folder import RunFolder

    require_absent(request.output)
    trained = RunFolder.open(request.run)
    dataset = Dataset.open(trained.dataset_folder)
    checkpoint = trained.checkpoint(request.checkpoint)
    # Imported after the checks: a mistake is answered at once, not when torch has been loaded.
    from rayrec.inference.folder.export import export_checkpoint
    from rayrec.inference.folder.model_folder import ModelFolder

    metrics = _metrics(trained, dataset, checkpoint)
    progress.stage(f"export {checkpoint.name}")
    loss = export_checkpoint(
        checkpoint, request.output, recipe=trained.recipe, dataset=dataset, metrics=metrics, tables=request.tables
    )
    table_bytes = ModelFolder.open(request.output).table_bytes()
    details: dict[str, Any] = {"checkpoint": checkpoint.name, "tables": request.tables, "table_bytes": table_bytes}
    if loss is not None:
        details["precision_loss"] = loss
        change = loss["auc_change"]
        auc = "AUC is undefined" if change is None else f"AUC changes by {change:+.2e}"
        progress.message(f"tables as {request.tables}: {auc} on {loss['rows']:,} rows of {loss['split']}")
    return Result(command="export", output=request.output, metrics=metrics, details=details)


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
        raise UserError(f"{path}: neither a model nor a run folder; give the output of `rayrec export` or `train`")


def is_run_folder(path: Path) -> bool:
    """Whether `path` is a run folder; does not import torch."""
    from rayrec.training.run.folder import RUN_FILE

    return (path / RUN_FILE).is_file()


def _metrics(run: "RunFolder", dataset: "Dataset", checkpoint: Path) -> "Metrics":
    """The metrics of all splits for the last checkpoint, and of its evaluation during training for another one."""
    from rayrec.training.run.folder import METRICS_FILE, read_progress

    final = run.path / METRICS_FILE
    if final.is_file() and checkpoint == run.checkpoint("latest"):
        metrics: Metrics = json.loads(final.read_text())
        return {split: values for split, values in metrics.items() if split in dataset.manifest.splits}
    reached = read_progress(checkpoint).metrics
    wanted = run.recipe.train.evaluation_split
    split = wanted if wanted in dataset.manifest.splits else "test"
    return {split: dict(reached)} if reached else {}


COMMAND = Command("export", ExportRequest, run)

if __name__ == "__main__":
    raise SystemExit(main(COMMAND))
