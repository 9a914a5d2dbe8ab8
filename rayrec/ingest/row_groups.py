"""The row groups that a rank needs in an epoch, in turn (`BatchOrder.needs`), each with its rows in the epoch's order.

They are decoded and packed ahead of the batches, by threads of this process or by tasks of Ray Data on all nodes. One
that other ranks need, too, is decoded by one of them, who offers it to the others (`rayrec.ingest.broker`).
"""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, islice
from typing import Protocol

import pyarrow as pa

from rayrec.common.machine import available_cpus
from rayrec.common.ray import ReportingTask, stream_blocks
from rayrec.ingest.dataset import Dataset
from rayrec.ingest.order import BatchOrder, RowGroup, RowOrder
from rayrec.ingest.packed_rows import PackedRows, RowPacker, from_table, to_table

# A task reads about this many rows, enough to outweigh its overhead of some milliseconds.
_ROWS_PER_TASK = 131_072
# So many tasks of one rank run at once. By estimate about 4M rows/s of 39 features: a fast GPU could train on more.
_MOST_TASKS = 8
# Each thread holds a row group that nobody has taken yet, some 20 MiB.
_MOST_THREADS = 32
_BLOCK_BYTES = 2**22
# One CPU for the rank and one for each stream that it may have open: training's stays open during an evaluation, and
# its tasks keep their CPUs while nobody takes their output.
_CPUS_OF_A_RANK = 3


class Sharing(Protocol):
    """What one rank does to share row groups with the others (`rayrec.ingest.broker.SharedEpoch`)."""

    def offer(self, row_group: int, rows: PackedRows, takers: int) -> None: ...

    def take(self, row_group: int) -> PackedRows: ...


def stream_row_groups(
    dataset: Dataset,
    order: BatchOrder,
    *,
    by_ray_data: bool,
    shared: Sharing | None = None,
    executions: int | None = None,
    task_cpus: int | None = None,
) -> Generator[PackedRows]:
    """Yield what `order.needs` lists. Closing the iterator ends the work.

    `by_ray_data`: tasks of Ray Data decode instead of threads. `shared`: all ranks read this epoch at the same time,
    and decode each row group once among them; without, this rank decodes all that it needs. `executions`: how many
    executions of Ray Data share the cluster, by default one for each rank. `task_cpus`: see `IngestConfig`.

    Memory is bounded for any number of row groups: tasks and threads pause while nobody takes their output.
    """
    own = [need.row_group for need in order.needs if shared is None or need.decoder == order.rank]
    if by_ray_data:
        rows = _decode_in_tasks(dataset, order, own, executions or order.world_size, task_cpus)
    else:
        rows = _decode_in_threads(dataset, order, own)
    with closing(rows) as decoded:
        # Every rank begins to decode before any of them waits for another.
        first = list(islice(decoded, 1))
        everything = chain(first, decoded)
        yield from everything if shared is None else share(order, everything, shared)


def share(order: BatchOrder, decoded: Iterator[PackedRows], shared: Sharing) -> Iterator[PackedRows]:
    """Yield what `order.needs` lists: from `decoded`, those that this rank decodes for all, and from other ranks.

    No two ranks wait for each other. All have the row groups in one order, that of the batches, in which a row group
    comes nowhere earlier than at its decoder. So the rank that is behind all others never waits.
    """
    for need in order.needs:
        if need.decoder != order.rank:
            yield shared.take(need.row_group)
            continue
        rows = next(decoded)
        if takers := len(need.ranks) - 1:
            shared.offer(need.row_group, rows, takers)
        yield rows


def _decode_in_threads(dataset: Dataset, order: BatchOrder, row_groups: Sequence[int]) -> Generator[PackedRows]:
    reader = _RowGroupReader(RowPacker.of(dataset), order.row_order)
    count = max(1, min(_MOST_THREADS, available_cpus() // order.world_size))  # all ranks are on this node
    ahead: deque[Future[PackedRows]] = deque()
    with ThreadPoolExecutor(count, "rayrec-decode") as threads:
        try:
            for number in row_groups:
                ahead.append(threads.submit(reader.read, number, order.row_groups[number]))
                if len(ahead) > count:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()


def _decode_in_tasks(
    dataset: Dataset, order: BatchOrder, row_groups: Sequence[int], executions: int, task_cpus: int | None
) -> Generator[PackedRows]:
    if not row_groups:
        return
    import ray
    from ray.data import ExecutionResources, TaskPoolStrategy

    # The cluster's CPUs are divided among the executions, of which each may have several tasks at once.
    cpus = int(ray.cluster_resources().get("CPU", 1)) // executions
    concurrency = max(1, min(_MOST_TASKS, cpus // 2))
    if task_cpus is None:
        task_cpus = 1 if cpus >= _CPUS_OF_A_RANK else 0

    # Each task gets a table that lists what it reads. Small splits are cut finer, so that all tasks have work.
    chosen = [order.row_groups[number] for number in row_groups]
    listed = pa.table(
        {
            "row_group": row_groups,
            "path": [group.path for group in chosen],
            "number": [group.number for group in chosen],
            "rows": [group.rows for group in chosen],
        }
    )
    mean_rows = max(1, order.total_rows // len(order.row_groups))
    per_task = max(1, min(_ROWS_PER_TASK // mean_rows, -(-len(chosen) // (4 * concurrency))))
    tasks = [listed.slice(start, per_task).combine_chunks() for start in range(0, len(chosen), per_task)]

    # `from_arrow` would run a task, which needs a CPU, to look into them.
    descriptors = ray.data.from_blocks(tasks)
    # This context belongs to the dataset; other datasets of the process keep theirs.
    context = descriptors.context
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    # Row groups are handed over as soon as they are packed, small ones with each other, not when the task ends.
    context.target_max_block_size = _BLOCK_BYTES
    # Each execution would otherwise plan as if it were the only one on the cluster.
    store = ray.cluster_resources().get("object_store_memory", 0.0)
    context.execution_options.resource_limits = ExecutionResources(object_store_memory=store / 4 / executions)
    data = descriptors.map_batches(
        ReportingTask(_RowGroupReader(RowPacker.of(dataset), order.row_order)),
        batch_size=None,
        batch_format="pyarrow",
        zero_copy_batch=True,
        num_cpus=task_cpus,
        compute=TaskPoolStrategy(size=min(concurrency, len(tasks))),
    )
    with closing(stream_blocks(data)) as blocks:
        for block in blocks:
            yield from from_table(block)


@dataclass(frozen=True)
class _RowGroupReader:
    """Decodes and packs row groups, their rows in the epoch's order."""

    packer: RowPacker
    row_order: RowOrder

    def __call__(self, listed: pa.Table) -> Iterator[pa.Table]:
        """Decode what a task's table lists."""
        for each in listed.to_pylist():
            yield to_table(self.read(each["row_group"], RowGroup(each["path"], each["number"], each["rows"])))

    def read(self, number: int, place: RowGroup) -> PackedRows:
        """Decode the row group at a place, which has this number in the split."""
        # Of the last row group of a split's head, only the first rows count.
        group = self.packer.read_group(place.path, place.number)[: place.rows] if self.row_order.whole_groups else None
        return self.packer.read(place.path, place.number, self.row_order.rows(number, place.rows, group))
