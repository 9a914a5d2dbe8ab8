"""What batch jobs share: a pool of actors that each hold a model, and the Parquet parts of the output."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from rayrec.common.ray_blocks import ReportingTask, ReportingWorker, stream_blocks

if TYPE_CHECKING:
    from ray.data import Dataset as RayDataset

_BLOCK_BYTES = 2**23
_ROWS_PER_PART = 4_194_304


def map_with_pool(
    tasks: list[pa.Table],
    reader: Callable[[pa.Table], Iterator[pa.Table]],
    worker: type[Callable[[pa.Table], pa.Table]],
    arguments: dict[str, Any],
) -> Iterator[pa.Table]:
    """The blocks that actors `worker(**arguments)` make of what `reader` reads, in the order of the tasks.

    Memory is bounded: Ray Data pauses tasks whose output nobody takes. Needs a Ray session. Raises the UserError that
    a reader or a worker raises.
    """
    import ray
    from ray.data import ActorPoolStrategy, DataContext

    # Ray Data logs what it does; the job shows progress by itself.
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = DataContext.get_current().copy()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.target_max_block_size = _BLOCK_BYTES
    # A Ray session on one machine may declare more CPUs than there are.
    nodes = sum(node["Alive"] for node in ray.nodes())
    actors = max(1, min(len(tasks), nodes * (os.cpu_count() or 1)))
    # Ray Data fuses the two maps: an actor reads what it scores, so raw rows do not pass through the object store.
    with DataContext.current(context):
        data: RayDataset = (
            ray.data.from_arrow(tasks)
            .map_batches(ReportingTask(reader), batch_size=None, batch_format="pyarrow")
            .map_batches(
                ReportingWorker,
                fn_constructor_kwargs={"worker": worker, "arguments": arguments},
                batch_size=None,
                batch_format="pyarrow",
                compute=ActorPoolStrategy(min_size=1, max_size=actors),
            )
        )
    with closing(stream_blocks(data)) as blocks:
        yield from blocks


@contextmanager
def new_parts(folder: Path, schema: pa.Schema) -> Iterator[Callable[[pa.Table], None]]:
    """Yield a function that writes tables one after the other to `folder`/part-00000.parquet, ...

    The folder is made with the first row.
    """
    writer: pq.ParquetWriter | None = None
    parts = rows = 0

    def write(table: pa.Table) -> None:
        nonlocal writer, parts, rows
        if table.num_rows == 0:
            return
        if writer is None:
            folder.mkdir(exist_ok=True)
            writer = pq.ParquetWriter(folder / f"part-{parts:05d}.parquet", schema, compression="zstd")
            parts, rows = parts + 1, 0
        writer.write_table(table)
        rows += table.num_rows
        if rows >= _ROWS_PER_PART:
            writer.close()
            writer = None

    try:
        yield write
    finally:
        if writer is not None:
            writer.close()
