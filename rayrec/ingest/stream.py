"""A rank's reads through Ray Data: decoded and packed by tasks ahead of the consumer, in the plan's order."""

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from rayrec.common.ray_blocks import ReportingTask, stream_blocks
from rayrec.ingest.dataset import Dataset
from rayrec.ingest.plan import BatchPlan
from rayrec.ingest.reader import PackedRows, RowPacker
from rayrec.ingest.row_order import RowOrder

# One task reads about this many rows: enough to outweigh a task's overhead of some milliseconds.
_ROWS_PER_TASK = 131_072
# Tasks of one rank that run at once: enough for about 4M rows/s, beyond what a rank trains on.
_MOST_TASKS = 8
_BLOCK_BYTES = 2**22
# A rank's own, and one for each stream that it may have open: training's stays open while another is evaluated on, and
# its tasks keep their CPUs when nobody takes what they have read.
_CPUS_OF_A_RANK = 3


def stream_reads(
    dataset: Dataset, plan: BatchPlan, *, executions: int | None = None, task_cpus: int | None = None
) -> Generator[PackedRows]:
    """The plan's reads, in its order. Needs a Ray session; closing the iterator ends the execution.

    `executions`: how many share the cluster at this time, by default one a rank of the plan. `task_cpus`: see
    `IngestConfig`.

    Memory is bounded whatever the number of reads: Ray Data pauses tasks whose output nobody takes.
    """
    import ray
    from ray.data import ExecutionResources, TaskPoolStrategy

    executions = executions or plan.world_size
    packer = RowPacker(dataset.folder, dataset.schema)
    reader = _PlannedReader(packer, plan.row_order)
    cpus = int(ray.cluster_resources().get("CPU", 1)) // executions
    concurrency = max(1, min(_MOST_TASKS, cpus // 2))
    if task_cpus is None:
        task_cpus = 1 if cpus >= _CPUS_OF_A_RANK else 0

    tasks = _descriptors(plan, concurrency)
    # Not `from_arrow`, which asks a task, and so a CPU, what is in them.
    descriptors = ray.data.from_blocks(tasks)
    # The dataset's own copy: other datasets of the process keep theirs.
    context = descriptors.context
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    # Reads are handed over as they are packed, not when the task ends; tiny ones together.
    context.target_max_block_size = _BLOCK_BYTES
    # Each rank's execution takes itself for the only one of the cluster.
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
            yield from packer.from_table(block)


@dataclass(frozen=True)
class _PlannedReader:
    """What a task does with its part of the list of reads."""

    packer: RowPacker
    order: RowOrder

    def __call__(self, reads: pa.Table) -> Iterator[pa.Table]:
        for read in reads.to_pylist():
            place = read["path"], read["row_group"]
            group = self.packer.read_group(*place) if self.order.whole_groups else None
            rows = self.order.rows(read["unit"], read["rows"], read["start"], read["stop"], group)
            yield self.packer.to_table(self.packer.read(*place, rows))


def _descriptors(plan: BatchPlan, concurrency: int) -> list[pa.Table]:
    """The reads, in order, as one table a task."""
    units, reads = plan.units, [plan.read(index) for index in range(plan.num_reads)]
    table = pa.table(
        {
            "unit": pa.array([read.unit for read in reads], pa.int64()),
            "path": pa.array([units.files[units.file[read.unit]] for read in reads], pa.string()),
            "row_group": pa.array([int(units.row_group[read.unit]) for read in reads], pa.int32()),
            "rows": pa.array([int(units.rows[read.unit]) for read in reads], pa.int64()),
            "start": pa.array([read.start for read in reads], pa.int64()),
            "stop": pa.array([read.stop for read in reads], pa.int64()),
        }
    )
    mean_rows = max(1, int(units.rows.mean()))
    # Short splits are cut finer, so that all tasks have work.
    per_task = max(1, min(_ROWS_PER_TASK // mean_rows, -(-len(reads) // (4 * concurrency))))
    return [table.slice(start, per_task).combine_chunks() for start in range(0, len(reads), per_task)]
