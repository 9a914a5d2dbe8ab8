"""Batches of one epoch on a device: read ahead of the consumer by a thread, from a stream or from memory."""

import contextlib
import queue
import threading
import time
from collections.abc import Generator, Iterator
from types import TracebackType
from typing import Self

import torch

from rayrec.common.errors import UserError
from rayrec.config.train import IngestConfig
from rayrec.ingest.batches import BatchAssembler
from rayrec.ingest.dataset import Dataset
from rayrec.ingest.in_memory import InMemorySplit
from rayrec.ingest.plan import BatchPlan, Shuffle, Units
from rayrec.ingest.reader import PackedRows, RowPacker
from rayrec.ingest.stream import stream_reads
from rayrec.models.common.batch import Batch


def open_batches(
    dataset: Dataset,
    split: str,
    config: IngestConfig,
    *,
    global_batch_size: int,
    rank: int = 0,
    world_size: int = 1,
    seed: int = 0,
    epoch: int = 0,
    start_batch: int = 0,
    drop_last: bool,
    shuffle: Shuffle | None = None,
    contiguous: bool = False,
    whole_groups: bool = False,
    device: str | torch.device = "cpu",
    store: InMemorySplit | None = None,
) -> "BatchLoader":
    """Open one epoch of a split for one rank; iterate inside a `with` block.

    `shuffle` overrides the config's. With `contiguous` a rank's share of a batch is one run of rows of the epoch's
    order, instead of rows of `config.read_streams` places. With `whole_groups` no batch and no rank's share of one cuts
    a group; batches then differ by some rows, and what shuffles rows shuffles groups. `store`: the split in memory,
    kept by the caller over several epochs; without one the split is read into memory here if the config says so, else
    streamed through Ray Data (needs a Ray session).
    Raises UserError where no batch can be filled, or the rows of a group lie in several row groups.
    """
    info = dataset.split(split)
    if whole_groups and info.longest_group is None:
        raise UserError(
            f"{dataset.folder}: the rows of a group are not kept together in split '{split}'; preprocess again, or set "
            "train.loss.listwise=0"
        )
    units = Units.of(info.parts)
    streams = config.read_streams
    if contiguous:
        # A lane for each rank, which then reads on where its last batch ended; not possible with fewer row groups.
        streams = world_size if min(len(units), global_batch_size) >= world_size else 1
    plan = BatchPlan(
        units=units,
        global_batch_size=global_batch_size,
        world_size=world_size,
        rank=rank,
        read_streams=streams,
        shuffle=shuffle or config.shuffle,
        seed=seed,
        epoch=epoch,
        drop_last=drop_last,
        start_batch=start_batch,
        longest_group=info.longest_group if whole_groups else None,
    )
    if plan.num_batches == 0:
        raise UserError(
            f"{dataset.folder}: split '{split}' has {plan.total_rows} rows, which fill no batch of "
            f"{global_batch_size}; lower global_batch_size"
        )
    if store is None and config.in_memory:
        store = InMemorySplit.read(dataset, split)
    return BatchLoader(dataset, plan, store, torch.device(device), config)


class BatchLoader:
    """The batches of a plan from its `start_batch` on. Use it once, as a context manager:

        with open_batches(dataset, "train", config, global_batch_size=1024, drop_last=True) as batches:
            for batch in batches: ...

    Reading starts when the block is entered and stops when it is left, at whatever batch.
    """

    def __init__(
        self,
        dataset: Dataset,
        plan: BatchPlan,
        store: InMemorySplit | None,
        device: torch.device,
        config: IngestConfig,
    ) -> None:
        self._dataset = dataset
        self._plan = plan
        self._store = store
        self._task_cpus = config.task_cpus
        # A thread has a current device of its own, so "the current one" is settled here, on the caller's.
        unsettled = device.type == "cuda" and device.index is None
        self._device = torch.device("cuda", torch.cuda.current_device()) if unsettled else device
        self._ready: queue.Queue[tuple[Batch, torch.Event | None] | BaseException | None] = queue.Queue(
            config.prefetch_batches
        )
        self._exhausted = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._produce, name="rayrec-ingest", daemon=True)
        self.wait_seconds = 0.0
        """Time that the consumer has waited for batches so far."""

    @property
    def num_batches(self) -> int:
        """Batches of the epoch, those before `start_batch` included; the same on every rank."""
        return self._plan.num_batches

    @property
    def rows_dropped(self) -> int:
        """Rows of the split that are in no batch of this epoch; with whole groups about as many."""
        return self._plan.rows_dropped

    def row_count(self, batch: int) -> int | None:
        """Rows of the global batch over all ranks, padding not counted: the sum of its weights where the schema has
        no weight column. None with whole groups: the batch itself tells."""
        return None if self._plan.longest_group is not None else self._plan.row_count(batch)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __iter__(self) -> Iterator[Batch]:
        while not self._exhausted:
            waiting_since = time.perf_counter()
            item = self._ready.get()
            self.wait_seconds += time.perf_counter() - waiting_since
            if item is None:
                self._exhausted = True
                return
            if isinstance(item, BaseException):
                raise item
            batch, copied = item
            if copied is not None:
                stream = torch.cuda.current_stream(self._device)
                stream.wait_event(copied)
                # The memory was allocated on the copying stream: it must not be reused while this one reads it.
                batch.record_stream(stream)
            yield batch

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopped.set()
        while self._thread.is_alive():
            # Unblocks a producer that waits for room; one that waits for Ray Data ends with the next read.
            with contextlib.suppress(queue.Empty):
                self._ready.get_nowait()
            self._thread.join(timeout=0.01)

    def _produce(self) -> None:
        try:
            self._produce_batches()
            self._put(None)
        except BaseException as error:  # raised again where the batches are consumed
            self._put(error)

    def _produce_batches(self) -> None:
        packer = RowPacker(self._dataset.folder, self._dataset.schema)
        cuda = self._device.type == "cuda"
        if cuda:
            torch.cuda.set_device(self._device)  # else pinning memory would open a context on the first GPU
        assembler = BatchAssembler(packer, self._plan, pin_memory=cuda)
        stream = torch.cuda.Stream(self._device) if cuda else None
        reads = self._reads()
        try:
            for host_batch in assembler.batches(reads):
                copied = None
                with torch.cuda.stream(stream):
                    batch = host_batch.to_batch(self._dataset.schema, self._device)
                    if stream is not None:
                        copied = stream.record_event()
                if not self._put((batch, copied)):
                    return
        finally:
            reads.close()

    def _reads(self) -> Generator[PackedRows]:
        if self._store is not None:
            return self._store.reads(self._plan)
        return stream_reads(self._dataset, self._plan, task_cpus=self._task_cpus)

    def _put(self, item: tuple[Batch, torch.Event | None] | BaseException | None) -> bool:
        """Wait for room; False where the consumer has left."""
        while not self._stopped.is_set():
            try:
                self._ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False
