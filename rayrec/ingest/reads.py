"""The reads of a rank in the order of its batches: streamed by tasks or threads, or from memory, all the same bits."""

from collections import Counter, deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, islice
from typing import Protocol

import pyarrow as pa

from rayrec.common.machine import available_cpus
from rayrec.common.ray_blocks import ReportingTask, stream_blocks
from rayrec.ingest.batch_order import BatchOrder, RowOrder, Units
from rayrec.ingest.dataset import Dataset
from rayrec.ingest.reader import PackedRows, RowPacker, from_table, to_table

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


class Peers(Protocol):
    """The other ranks, with which row groups are shared (`rayrec.ingest.exchange.EpochExchange`)."""

    def offer(self, unit: int, rows: PackedRows, takers: int) -> None: ...

    def take(self, unit: int) -> PackedRows: ...


def stream_reads(
    dataset: Dataset,
    order: BatchOrder,
    *,
    by_ray_data: bool,
    peers: Peers | None = None,
    executions: int | None = None,
    task_cpus: int | None = None,
) -> Generator[Iterator[PackedRows]]:
    """Yield, for each batch, the reads that it is the first to need.

    They are decoded and packed ahead of the consumer: by tasks of Ray Data on all nodes (`by_ray_data`), or by threads
    of this process. Closing the iterator ends the work. Memory is bounded for any number of reads: tasks and threads
    pause while nobody takes their output.

    `peers`: all ranks read this epoch at the same time, and decode each row group once among them; without, this rank
    decodes all that it needs. `executions`: how many executions of Ray Data share the cluster, by default one for each
    rank. `task_cpus`: see `IngestConfig`.
    """
    units = [unit for _, unit in order.decoded(shares=peers is not None)]
    if by_ray_data:
        rows = _decode_in_tasks(dataset, order, units, executions, task_cpus)
    else:
        rows = _decode_in_threads(dataset, order, units)
    with closing(rows) as decoded:
        # Every rank begins to decode before any of them waits for another.
        first = list(islice(decoded, 1))
        yield from arrange(order, chain(first, decoded), peers)


def arrange(order: BatchOrder, decoded: Iterator[PackedRows], peers: Peers | None) -> Iterator[Iterator[PackedRows]]:
    """Yield, for each batch, the reads that it is the first to need, from row groups of this rank and of its peers.

    `decoded` yields whole row groups, as `order.decoded` says. Each batch's reads must be taken to their end.

    Before this rank waits for a peer in a batch, and before it leaves the batch, it has offered what it decodes for
    that batch and earlier ones. So a rank waits for one that decodes or that is in an earlier batch: never for ever.

    A row group that this rank needs again is held until then: those in which its lanes end, one a lane at most.
    """
    due = deque(order.decoded(shares=peers is not None))
    uses = Counter(order.read(index).unit for index in range(order.num_reads))
    held: dict[int, PackedRows] = {}

    def decode() -> None:
        _, unit = due.popleft()
        rows = next(decoded)
        if peers is not None and order.takers(unit):
            peers.offer(unit, rows, order.takers(unit))
        if uses[unit]:
            held[unit] = rows

    def reads_of(batch: int) -> Iterator[PackedRows]:
        for index in order.reads_of(batch):
            unit, start, stop = order.read(index)
            while unit not in held and due and due[0][0] <= batch:
                decode()
            if unit not in held:
                assert peers is not None, "without peers a rank decodes what it needs"
                held[unit] = peers.take(unit)
            uses[unit] -= 1
            rows = held[unit] if uses[unit] else held.pop(unit)
            yield rows.part(order.row_order.rows_of_whole(len(rows), start, stop, rows.group))
        while due and due[0][0] <= batch:
            decode()

    return map(reads_of, range(order.start_batch, order.num_batches))


def _decode_in_threads(dataset: Dataset, order: BatchOrder, decoded: list[int]) -> Generator[PackedRows]:
    """Decode and pack whole row groups in threads; their rows are in the epoch's order."""
    reader, units = _Reader(RowPacker.of(dataset), order.row_order), order.units
    count = max(1, min(_MOST_THREADS, available_cpus() // order.world_size))  # all ranks are on this node
    ahead: deque[Future[PackedRows]] = deque()
    with ThreadPoolExecutor(count, "rayrec-decode") as threads:
        try:
            for unit in decoded:
                place = (units.files[units.file[unit]], int(units.row_group[unit]), int(units.rows[unit]))
                ahead.append(threads.submit(reader.read, unit, *place))
                if len(ahead) > count:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for read in ahead:
                read.cancel()


def _decode_in_tasks(
    dataset: Dataset, order: BatchOrder, decoded: list[int], executions: int | None, task_cpus: int | None
) -> Generator[PackedRows]:
    """Decode and pack whole row groups by an execution of Ray Data; their rows are in the epoch's order."""
    if not decoded:
        return
    import ray
    from ray.data import ExecutionResources, TaskPoolStrategy

    executions = executions or order.world_size
    reader = _Reader(RowPacker.of(dataset), order.row_order)
    cpus = int(ray.cluster_resources().get("CPU", 1)) // executions
    concurrency = max(1, min(_MOST_TASKS, cpus // 2))
    if task_cpus is None:
        task_cpus = 1 if cpus >= _CPUS_OF_A_RANK else 0

    tasks = _descriptors(order.units, decoded, concurrency)
    # `from_arrow` would run a task, which needs a CPU, to look into them.
    descriptors = ray.data.from_blocks(tasks)
    # This context belongs to the dataset; other datasets of the process keep theirs.
    context = descriptors.context
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    # Reads are handed over as soon as they are packed, small ones together, not when the task ends.
    context.target_max_block_size = _BLOCK_BYTES
    # Each execution would otherwise plan as if it were the only one on the cluster.
    store = ray.cluster_resources().get("object_store_memory", 0.0)
    context.execution_options.resource_limits = ExecutionResources(object_store_memory=store / 4 / executions)
    data = descriptors.map_batches(
        ReportingTask(reader),
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
class _Reader:
    """Decodes and packs whole row groups, their rows in the epoch's order."""

    packer: RowPacker
    row_order: RowOrder

    def __call__(self, row_groups: pa.Table) -> Iterator[pa.Table]:
        """Decode a task's part of the list of row groups."""
        for each in row_groups.to_pylist():
            yield to_table(self.read(each["unit"], each["path"], each["row_group"], each["rows"]))

    def read(self, unit: int, path: str, row_group: int, count: int) -> PackedRows:
        group = self.packer.read_group(path, row_group)[:count] if self.row_order.whole_groups else None
        return self.packer.read(path, row_group, self.row_order.rows(unit, count, 0, count, group))


def _descriptors(units: Units, decoded: list[int], concurrency: int) -> list[pa.Table]:
    """Return the tables of the tasks, each of which lists the row groups that a task decodes, in order."""
    table = pa.table(
        {
            "unit": decoded,
            "path": [units.files[file] for file in units.file[decoded]],
            "row_group": units.row_group[decoded],
            "rows": units.rows[decoded],
        }
    )
    mean_rows = max(1, int(units.rows.mean()))
    # Small splits are cut finer, so that all tasks have work.
    per_task = max(1, min(_ROWS_PER_TASK // mean_rows, -(-len(decoded) // (4 * concurrency))))
    return [table.slice(start, per_task).combine_chunks() for start in range(0, len(decoded), per_task)]


@dataclass(frozen=True, eq=False)
class InMemorySplit:
    """Every row group of a split, packed, for all epochs.

    Each worker needs the whole split, because the order of an epoch may give it any row group.
    """

    packed: tuple[PackedRows, ...]

    @classmethod
    def read(cls, dataset: Dataset, split: str) -> "InMemorySplit":
        packer = RowPacker.of(dataset)
        return cls(tuple(packer.read_split(dataset.split(split), threads=True)))

    @property
    def bytes(self) -> int:
        """Number of bytes that the rows take."""
        return sum(rows.bytes for rows in self.packed)

    def reads(self, order: BatchOrder) -> Generator[Iterator[PackedRows]]:
        """Yield, for each batch of a rank, the reads that it is the first to need."""
        for batch in range(order.start_batch, order.num_batches):
            yield (self._read(order, *order.read(index)) for index in order.reads_of(batch))

    def _read(self, order: BatchOrder, unit: int, start: int, stop: int) -> PackedRows:
        rows = self.packed[unit]
        return rows.take(order.row_order.rows(unit, len(rows), start, stop, rows.group))
