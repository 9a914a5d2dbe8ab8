"""Ray Data over tasks of a batch job: read by tasks, worked on by a pool of actors that hold a model, in order."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rayrec.common.errors import UserError
from rayrec.common.ray_blocks import stream_blocks

if TYPE_CHECKING:
    from ray.data import Dataset as RayDataset

_BLOCK_BYTES = 2**23


def map_with_pool(
    tasks: list[pa.Table],
    reader: Callable[[pa.Table], Iterator[pa.Table]],
    worker: type[Callable[[pa.Table], pa.Table]],
    arguments: dict[str, Any],
) -> Iterator[pa.Table]:
    """The blocks that `worker(**arguments)` makes of what `reader` reads, in the order of the tasks.

    Memory is bounded: Ray Data pauses tasks whose output nobody takes. Needs a Ray session. A UserError of a task
    arrives as one.
    """
    import ray
    from ray.data import ActorPoolStrategy, DataContext

    # It reports on its own doings; progress is shown by the job.
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
            .map_batches(reader, batch_size=None, batch_format="pyarrow")
            .map_batches(
                worker,
                fn_constructor_kwargs=arguments,
                batch_size=None,
                batch_format="pyarrow",
                compute=ActorPoolStrategy(min_size=1, max_size=actors),
            )
        )
    with _user_errors(), closing(stream_blocks(data)) as blocks:
        yield from blocks


@contextmanager
def _user_errors() -> Iterator[None]:
    """Raise a UserError that a task raised as it was raised there, without Ray's traceback."""
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:
            inner = getattr(cause, "cause", None)
            for candidate in (inner, cause):
                if isinstance(candidate, UserError):
                    raise UserError(str(candidate).splitlines()[-1]) from None
            cause = inner if isinstance(inner, BaseException) else cause.__cause__
        raise
