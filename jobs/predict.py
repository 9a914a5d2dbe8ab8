"""`rayrec predict`: scores a file or folder, or recommends items to every user."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Self

from pydantic import PositiveInt

from jobs.command import Command, PathText, Positional, Request, Result, absolute_path, main
from jobs.export import exported
from rayrec.common.errors import ConfigError
from rayrec.common.files import require_absent
from rayrec.common.progress import Progress
from rayrec.storage.location import Folder, local_path


class PredictRequest(Request):
    """Score a file or folder, streaming; or recommend items to every user."""

    model: Annotated[Folder, Positional("RUN|MODEL")]
    """Run folder or model folder, or its URI."""
    output: Folder
    """Folder to write: scores/, and rejected/ for unusable raw rows; or recommendations/. Must not exist."""
    input: PathText | None = None
    """Dataset folder or its URI; with --raw, a file, folder, glob or URI of raw rows."""
    raw: bool = False
    """The input is raw rows, not a dataset folder."""
    split: str = "test"
    """Split of the dataset folder."""
    top_k: PositiveInt | None = None
    """Instead of scores, the best K new items for every user; takes no input."""

    def check(self) -> None:
        if self.input is None and self.top_k is None:
            raise ConfigError("input: missing; give what to score, or --top-k to recommend items to every user")

    @property
    def dataset(self) -> Path | None:
        """The dataset folder, if the input is one."""
        return None if self.input is None or self.raw else local_path(self.input)

    def reads(self) -> Iterator[Path]:
        yield from super().reads()
        yield from [self.dataset] if self.dataset is not None else []

    def with_absolute_paths(self) -> Self:
        changed = {"input": None if self.input is None else absolute_path(self.input)}
        return super().with_absolute_paths().model_copy(update=changed)


def run(request: PredictRequest, progress: Progress) -> Result:
    """Score every row in the order of the input; `rows` counts those scored, `details` those set aside."""
    from rayrec.ingest.dataset import MANIFEST_FILE, Dataset

    require_absent(request.output)
    if request.top_k is not None:
        return _recommend(request, request.top_k, progress)
    assert request.input is not None, "the request was checked"
    if request.dataset is not None and not (request.dataset / MANIFEST_FILE).is_file():
        raise ConfigError(f"--input {request.input}: not a dataset folder (no {MANIFEST_FILE}); add --raw for raw rows")
    # Imported after the checks: a mistake is answered at once, not when torch has been loaded.
    from cluster.ray_session import ray_session
    from rayrec.inference.batch.prediction import predict_dataset, predict_raw
    from rayrec.inference.folder.model_folder import ModelFolder
    from rayrec.sources.registry import source_of

    with exported(request.model) as folder:
        model = ModelFolder.open(folder)
        if request.dataset is not None:
            dataset = Dataset.open(request.dataset)
            dataset.split(request.split)
            with ray_session():
                counts = predict_dataset(model, dataset, request.split, request.output, progress)
        else:
            source = model.recipe.source
            reader = partial(source_of(source.kind).reader, source, model.schema)
            with ray_session():
                counts = predict_raw(model, reader, [request.input], request.output, progress)
    details = {"rejected": counts.rejected} if request.raw else {"split": request.split}
    return Result(command="predict", output=request.output, rows=counts.rows, details=details)


def _recommend(request: PredictRequest, k: int, progress: Progress) -> Result:
    if request.input is not None:
        raise ConfigError("--top-k recommends to every user of the model and reads no --input; leave one of them out")
    from cluster.ray_session import ray_session
    from rayrec.inference.batch.recommendation import recommend_to_all

    with exported(request.model) as folder, ray_session():
        users = recommend_to_all(folder, k, request.output, progress)
    return Result(command="predict", output=request.output, rows=users, details={"top_k": k})


COMMAND = Command("predict", PredictRequest, run)

if __name__ == "__main__":
    raise SystemExit(main(COMMAND))
