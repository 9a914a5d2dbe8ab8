"""Pool of batch jobs: workers that each hold a model and write Parquet parts; the driver sees reports."""

import logging
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import pyarrow as pa
import torch

from rayrec.common.errors import UserError
from rayrec.common.machine import available_cpus, keep_freed_memory
from rayrec.common.ray import ReportingWorker, stream_blocks
from rayrec.config.evaluate import InferencePrecision
from rayrec.config.execution import Place
from rayrec.config.train import DeviceName
from rayrec.inference.folder.model_folder import ModelFolder
from rayrec.inference.predictor import Predictor
from rayrec.inference.scorer import Scorer, StoredModel
from rayrec.ingest.dataset import Dataset
from rayrec.models.common.precision import resolve_precision
from rayrec.store.artifact import Manifest, Parent, parent_of, stored_files
from rayrec.store.files import files_below, is_output
from rayrec.store.parquet import new_parquet, open_parquet
from rayrec.store.paths import path_of

if TYPE_CHECKING:
    from ray.data import Dataset as RayDataset

ScorerT = TypeVar("ScorerT", bound=Scorer)


class PredictionManifest(Manifest):
    """The manifest of scores or recommendations: made of a model or checkpoint, and of the dataset that was scored."""

    command = "predict"

    kind: Literal["prediction"] = "prediction"
    version: Literal[1] = 1


def finish_prediction(folder: Path, model: StoredModel, dataset: Dataset | None = None) -> None:
    """Write the manifest of a prediction, whose other files are all there."""
    role = "model" if isinstance(model, ModelFolder) else "checkpoint"
    made_of = {role: parent_of(model.folder)}
    if dataset is not None:
        made_of["dataset"] = Parent(id=dataset.id, folder=dataset.folder)
    names = [name for name in files_below(folder) if is_output(name)]
    PredictionManifest(made_of=made_of, files=stored_files(folder, names)).save(folder)


TaskT = TypeVar("TaskT")
ResultT = TypeVar("ResultT")

ROWS_PER_PART = 1_048_576


@dataclass(frozen=True)
class ScoringPool:
    """Workers that score beside each other: threads of this process, or actors of the Ray session."""

    on: Place = "process"
    workers: int | None = None
    """Number of workers at most; by default one for each CPU of this machine."""
    device: DeviceName = "cpu"
    """Device of dense networks; each worker has a GPU of its own."""
    precision: InferencePrecision = "fp32"
    """Arithmetic of dense networks."""

    def size(self, tasks: int) -> int:
        """Return the number of workers for so many tasks."""
        return max(1, min(tasks, self.workers or available_cpus()))

    def run(self, tasks: Sequence[Any], worker: Callable[..., Any], arguments: dict[str, Any]) -> Iterator[Any]:
        """Yield `worker(**arguments)(task)` for each task, in the order of the tasks.

        Threads share a worker, and each actor has its own. Tasks, arguments and what a worker returns travel by pickle.
        Raises the UserError that a worker raises.
        """
        if not tasks:
            return
        if self.on == "process":
            yield from in_threads(tasks, partial(worker, **arguments), self.size(len(tasks)))
        else:
            yield from self._run_in_actors(tasks, worker, arguments)

    def scorer(self, model: StoredModel | Path) -> Scorer:
        """Return the scorer of a worker, beside which others run."""
        return self._set_up(Scorer(_opened(model), device=self.device))

    def predictor(self, model: StoredModel | Path) -> Predictor:
        """Return the predictor of a worker, beside which others run; on the CPU."""
        return self._set_up(Predictor(_opened(model)))

    def _set_up(self, scorer: ScorerT) -> ScorerT:
        torch.set_num_threads(1)
        keep_freed_memory()
        scorer.precision = resolve_precision(self.precision, self.device, "--precision")
        return scorer

    def _run_in_actors(
        self, tasks: Sequence[Any], worker: Callable[..., Any], arguments: dict[str, Any]
    ) -> Iterator[Any]:
        import ray
        from ray.data import ActorPoolStrategy, DataContext

        # Ray Data logs what it does; the job shows progress by itself.
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        context = DataContext.get_current().copy()
        context.execution_options.preserve_order = True
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        # Other nodes open a model folder for themselves.
        arguments = {n: a.folder if isinstance(a, ModelFolder) else a for n, a in arguments.items()}
        # A block for each task goes in, and a block of what its worker returned comes out, in the same order.
        blocks = [pa.table({"task": [pickle.dumps(task)]}) for task in tasks]
        with DataContext.current(context):
            data: RayDataset = ray.data.from_arrow(blocks).map_batches(
                ReportingWorker,
                fn_constructor_kwargs={"worker": _OfPickles, "arguments": {"worker": worker, "arguments": arguments}},
                batch_size=None,
                batch_format="pyarrow",
                num_gpus=1 if self.device == "cuda" else None,
                compute=ActorPoolStrategy(min_size=1, max_size=self.size(len(tasks))),
            )
        with closing(stream_blocks(data)) as reports:
            for block in reports:
                yield from map(pickle.loads, block["report"].to_pylist())


def in_threads(
    tasks: Iterable[TaskT], worker: Callable[[], Callable[[TaskT], ResultT]], size: int | None = None
) -> Iterator[ResultT]:
    """Yield what one worker makes of each task, in their order, in `size` threads (one for each CPU by default), in
    which torch uses no others.
    """
    threads = torch.get_num_threads()
    try:
        work = worker()
        torch.set_num_threads(1)
        with ThreadPoolExecutor(size or available_cpus(), "rayrec-score") as pool:
            try:
                yield from pool.map(work, tasks)
            finally:
                pool.shutdown(cancel_futures=True)
    finally:
        torch.set_num_threads(threads)


def _opened(model: StoredModel | Path) -> StoredModel:
    return model if isinstance(model, StoredModel) else ModelFolder.open(model)


class _OfPickles:
    """A worker for the blocks of Ray Data, whose rows are pickled tasks and reports."""

    def __init__(self, worker: Callable[..., Any], arguments: dict[str, Any]) -> None:
        self._work = worker(**arguments)

    def __call__(self, block: pa.Table) -> pa.Table:
        reports = [pickle.dumps(self._work(pickle.loads(task))) for task in block["task"].to_pylist()]
        return pa.table({"report": reports})


def part_path(folder: Path, number: int) -> Path:
    """Return the path of a part."""
    return folder / f"part-{number:05d}.parquet"


@contextmanager
def new_part(path: Path, schema: pa.Schema) -> Iterator[Callable[[pa.Table], None]]:
    """Yield a function that writes rows to a part, which appears whole when the block ends.

    Raises UserError if the node of the actor does not see the output folder.
    """
    require_output(path.parent.parent)
    with new_parquet(path, schema, compression="zstd") as writer:
        yield writer.write_table


def require_output(folder: Path) -> None:
    """Raise UserError if the node of this actor does not see the driver's unfinished output folder."""
    if not folder.is_dir():
        raise UserError(
            f"{folder.parent}: not the same folder on all nodes of the cluster; give an --output that all nodes share"
        )


class NumberLines:
    """A worker of the pool: writes rows again whose column `line` counts from the beginning of a piece of a file."""

    def __call__(self, pieces: Sequence[dict[str, Any]]) -> int:
        """Write the files `source`, one after the other, to `target` with `before` added to the lines of each.

        Return the number of rows.
        """
        with open_parquet(path_of(pieces[0]["source"])) as file:
            schema = file.schema_arrow
        column = schema.get_field_index("line")
        with new_part(path_of(pieces[0]["target"]), schema) as write:
            for piece in pieces:
                with open_parquet(path_of(piece["source"])) as file:
                    for batch in file.iter_batches():
                        lines = pa.array(batch["line"].to_numpy() + piece["before"])
                        write(pa.Table.from_batches([batch.set_column(column, schema.field(column), lines)]))
        return sum(piece["rows"] for piece in pieces)
