"""Pool of batch jobs: workers that each hold a model and write Parquet parts; the driver sees reports."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rayrec.common.errors import UserError
from rayrec.common.machine import available_cpus
from rayrec.common.ray_blocks import ReportingWorker, session_size, stream_blocks
from rayrec.store.parquet import new_parquet, open_parquet
from rayrec.store.paths import RemotePath, path_of

if TYPE_CHECKING:
    from ray.data import Dataset as RayDataset

_Worker = Callable[..., Callable[[pa.Table], pa.Table]]

ROWS_PER_PART = 1_048_576
_PARTS_AIMED_AT = 64


def run_in_pool(
    tasks: Sequence[pa.Table], worker: _Worker, arguments: dict[str, Any], *, in_threads: bool
) -> Iterator[pa.Table]:
    """Yield the reports, small tables, of workers `worker(**arguments)` on tasks, in the order of the tasks.

    The workers are threads of this process, or actors of the Ray session. Raises the UserError that a worker raises.
    """
    if tasks:
        yield from (_run_in_threads if in_threads else _run_in_actors)(tasks, worker, arguments)


def _run_in_threads(tasks: Sequence[pa.Table], worker: _Worker, arguments: dict[str, Any]) -> Iterator[pa.Table]:
    import torch

    own = threading.local()

    def run(task: pa.Table) -> pa.Table:
        if not hasattr(own, "worker"):
            own.worker = worker(**arguments)
        return own.worker(task)

    threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(min(len(tasks), available_cpus()), "rayrec-predict") as pool:
            yield from pool.map(run, tasks)
    finally:
        torch.set_num_threads(threads)  # workers beside each other take one each


def _run_in_actors(tasks: Sequence[pa.Table], worker: _Worker, arguments: dict[str, Any]) -> Iterator[pa.Table]:
    import ray
    from ray.data import ActorPoolStrategy, DataContext

    # Ray Data logs what it does; the job shows progress by itself.
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = DataContext.get_current().copy()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    actors = min(len(tasks), session_size()[1])
    with DataContext.current(context):
        data: RayDataset = ray.data.from_arrow(list(tasks)).map_batches(
            ReportingWorker,
            fn_constructor_kwargs={"worker": worker, "arguments": arguments},
            batch_size=None,
            batch_format="pyarrow",
            compute=ActorPoolStrategy(min_size=1, max_size=actors),
        )
    with closing(stream_blocks(data)) as blocks:
        yield from blocks


def rows_of_parts(rows: int) -> int:
    """Return about how many rows a part of `rows` rows in all has: many parts are written at once, and none is long."""
    return max(1, min(-(-rows // _PARTS_AIMED_AT), ROWS_PER_PART))


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
    if not isinstance(folder, RemotePath) and not folder.is_dir():
        raise UserError(
            f"{folder.parent}: not the same folder on all nodes of the cluster; give an --output that all nodes share"
        )


class NumberLines:
    """A worker of the pool: writes rows again whose column `line` counts from the beginning of a piece of a file."""

    def __call__(self, task: pa.Table) -> pa.Table:
        """Write the files `source`, one after the other, to `target` with `before` added to the lines of each."""
        pieces = task.to_pylist()
        with open_parquet(path_of(pieces[0]["source"])) as file:
            schema = file.schema_arrow
        column = schema.get_field_index("line")
        with new_part(path_of(pieces[0]["target"]), schema) as write:
            for piece in pieces:
                with open_parquet(path_of(piece["source"])) as file:
                    for batch in file.iter_batches():
                        lines = pa.array(batch["line"].to_numpy() + piece["before"])
                        write(pa.Table.from_batches([batch.set_column(column, schema.field(column), lines)]))
        return pa.table({"rows": [sum(piece["rows"] for piece in pieces)]})


def grouped(rows: Sequence[int], most: int) -> Iterator[range]:
    """Yield the numbers of items that follow each other, in groups that have `most` rows or a few less; `rows` are the
    items'.
    """
    ends = np.cumsum(rows)
    starts = [0]
    while starts[-1] < len(rows):
        before = ends[starts[-1] - 1] if starts[-1] else 0
        starts.append(max(starts[-1] + 1, int(np.searchsorted(ends, before + most, side="right"))))
    yield from (range(first, end) for first, end in pairwise(starts))
