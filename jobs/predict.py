"""Score a file or folder: `python -m jobs.predict --model MODEL --input PATH --output FOLDER [--raw]`."""

from pathlib import Path

from jobs.entry_point import Job, main
from jobs.export import exported
from jobs.result import Result
from rayrec.common.errors import ConfigError
from rayrec.common.files import require_absent
from rayrec.common.progress import Progress
from rayrec.config import Config


class PredictRequest(Config):
    """Score a dataset's split, or raw rows."""

    model: Path
    """Model folder or run folder."""
    input: str
    """Dataset folder; with `raw`, a file, folder, glob or URI of raw rows."""
    output: Path
    """Folder to write: `scores/`, and `rejected/` where raw rows could not be used."""
    raw: bool = False
    """The input is raw rows."""
    split: str = "test"
    """Split of the dataset folder."""


def run(request: PredictRequest, progress: Progress) -> Result:
    """Score every row in the order of the input; `rows` counts those scored, `details` those set aside."""
    from rayrec.ingest.dataset import MANIFEST_FILE, Dataset

    require_absent(request.output)
    if not request.raw and not (Path(request.input) / MANIFEST_FILE).is_file():
        raise ConfigError(f"--input {request.input}: not a dataset folder (no {MANIFEST_FILE}); add --raw for raw rows")
    # Imported after the checks: a mistake is answered at once, not when torch has been loaded.
    from cluster.ray_session import ray_session
    from rayrec.inference.batch_prediction import predict_dataset, predict_raw
    from rayrec.inference.model_folder import ModelFolder

    with exported(request.model) as folder:
        model = ModelFolder.open(folder)
        if request.raw:
            with ray_session():
                counts = predict_raw(model, model.recipe.source, [request.input], request.output, progress)
        else:
            dataset = Dataset.open(request.input)
            dataset.split(request.split)
            with ray_session():
                counts = predict_dataset(model, dataset, request.split, request.output, progress)
    details = {"rejected": counts.rejected} if request.raw else {"split": request.split}
    return Result(command="predict", output=request.output, rows=counts.rows, details=details)


JOB = Job("predict", PredictRequest, run)

if __name__ == "__main__":
    raise SystemExit(main(JOB))
