"""Loads the batches of one epoch onto a device: a thread reads ahead of the consumer, from a stream or from memory."""

import contextlib
import threading
import time
from collections.abc import Generator, Iterator
from queue import SimpleQueue
from typing import Self, Unpack

import torch

from rayrec.common.errors import UserError
from rayrec.config.train import IngestConfig
from rayrec.ingest.batches import InMemorySplit, ResidentSplit, assemble, read_split
from rayrec.ingest.broker import SharedEpoch
from rayrec.ingest.dataset import Dataset
from rayrec.ingest.order import BatchOrder, EpochOptions, row_groups_of
from rayrec.ingest.row_groups import stream_row_groups
from rayrec.models.common.batch import Batch


class EpochLoader:
    """The batches of one epoch of a split for one rank, from `start_batch` on; used once, as a context manager."""

    def __init__(self, order: BatchOrder) -> None:
        self._order = order
        self.wait_seconds = 0.0
        """Seconds for which the consumer has waited for batches so far."""

    @property
    def num_batches(self) -> int:
        """Batches of the epoch, including those before `start_batch`; the same on every rank."""
        return self._order.num_batches

    @property
    def rows_dropped(self) -> int:
        """Rows, or samples if negatives are drawn, that are in no batch of this epoch; estimated with whole groups."""
        return self._order.rows_dropped

    def row_count(self, batch: int) -> int | None:
        """Return the number of rows of the global batch over all ranks, without padding.

        It is the sum of the weights if the schema has no weight column. Return None with whole groups, where
        only the batch itself tells.
        """
        return None if self._order.longest_group is not None else self._order.row_count(batch)

    def share(self, batch: int) -> float:
        """Return the rows of the global batch by those of a full one; with whole groups, about that."""
        return self._order.row_count(batch) / self._order.global_batch_size

    def __enter__(self) -> Self:
        return self

    def __iter__(self) -> Iterator[Batch]:
        raise NotImplementedError

    def __exit__(self, *error: object) -> None:
        """Stop what the loader has begun, at whatever batch."""

    @contextlib.contextmanager
    def _waited_for(self) -> Iterator[None]:
        """Count the seconds of the block as waiting."""
        began = time.perf_counter()
        yield
        self.wait_seconds += time.perf_counter() - began


def open_batches(
    dataset: Dataset,
    split: str,
    config: IngestConfig,
    *,
    device: str | torch.device = "cpu",
    contiguous: bool = False,
    whole_groups: bool = False,
    store: InMemorySplit | ResidentSplit | None = None,
    shared: SharedEpoch | None = None,
    by_ray_data: bool = False,
    **options: Unpack[EpochOptions],
) -> "BatchLoader":
    """Open one epoch of a split for one rank; iterate inside a `with` block.

    With `contiguous` a rank's share of a batch is one run of rows of the epoch's order, instead of rows of
    `config.read_streams` places. With `whole_groups` neither a batch nor a rank's share of one cuts a group; batches
    then differ by some rows, and groups are shuffled instead of rows. `store`: the split in memory (`read_split`), kept
    by the caller over several epochs; without one the split is read into memory here if the config says so, and
    otherwise streamed. `shared`, `by_ray_data`: see `rayrec.ingest.row_groups.stream_row_groups`. `options`: see
    `BatchOrder`. Raises UserError if no batch can be filled, or the rows of a group lie in several row groups.
    """
    info = dataset.split(split)
    if whole_groups and info.longest_group is None:
        raise UserError(
            f"{dataset.folder}: the rows of a group are not kept together in split '{split}'; preprocess again, or set "
            "train.loss.listwise=0"
        )
    # Decide the order of the whole epoch, before anything is read.
    row_groups = row_groups_of(info.parts)
    streams = config.read_streams
    if contiguous:
        # A lane for each rank, which continues where its last batch ended; not possible with fewer row groups.
        world_size = options.get("world_size", 1)
        streams = world_size if min(len(row_groups), options["global_batch_size"]) >= world_size else 1
    options.setdefault("shuffle", config.shuffle)
    longest = info.longest_group if whole_groups else None
    order = BatchOrder(row_groups=row_groups, read_streams=streams, longest_group=longest, **options)
    if order.num_batches == 0:
        raise UserError(
            f"{dataset.folder}: split '{split}' has {order.total_rows} rows, which fill no batch of "
            f"{order.global_batch_size}; lower train.global_batch_size, or set train.ingest.drop_last=false"
        )
    # Choose where row groups come from: memory, if the split is kept there, else a stream that threads or Ray decode.
    place = torch.device(device)
    if place.type == "cuda" and place.index is None:
        # Each thread has its own current device, so "cuda" is resolved here, in the caller's thread.
        place = torch.device("cuda", torch.cuda.current_device())
    if store is None and config.in_memory:
        store = read_split(dataset, split, place)

    def batches() -> Generator[Batch]:
        """Yield the batches, on the device; the work for them is queued on the current stream."""
        if isinstance(store, ResidentSplit):
            yield from store.batches(order)
            return
        row_groups = (
            store.row_groups(order)
            if store is not None
            else stream_row_groups(dataset, order, by_ray_data=by_ray_data, shared=shared, task_cpus=config.task_cpus)
        )
        with contextlib.closing(row_groups):
            for arrays in assemble(dataset.schema, order, row_groups, pin_memory=place.type == "cuda"):
                yield arrays.to_batch(dataset.schema, place)

    return BatchLoader(order, batches(), place, config.prefetch_batches, shared)


_Item = tuple[Batch, torch.Event | None] | BaseException | None
"""A batch and the event that it is copied, an error of the reading thread, or None at the end of the epoch."""


class BatchLoader(EpochLoader):
    """Batches that a thread makes ready ahead of the consumer:

        with open_batches(dataset, "train", config, global_batch_size=1024, drop_last=True) as batches:
            for batch in batches: ...

    Reading starts when the block is entered and stops when it is left, at whatever batch.
    """

    def __init__(
        self,
        order: BatchOrder,
        batches: Generator[Batch],
        device: torch.device,
        ahead: int,
        shared: SharedEpoch | None,
    ) -> None:
        """`ahead`: the most batches that are ready at once. `shared` is left with the block."""
        super().__init__(order)
        self._batches, self._device, self._shared = batches, device, shared
        # Not a `Queue`: the exception of a signal (Ctrl-C) can leave its lock taken, and then nobody would end.
        self._ready: SimpleQueue[_Item] = SimpleQueue()
        self._room: SimpleQueue[None] = SimpleQueue()
        """An entry for each batch that may still be made ready."""
        for _ in range(ahead):
            self._room.put(None)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._produce, name="rayrec-ingest", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __iter__(self) -> Iterator[Batch]:
        while True:
            with self._waited_for():
                item = self._ready.get()
            self._room.put(None)
            if item is None:
                self._ready.put(None)  # another loop ends at once, as over any exhausted iterator
                return
            if isinstance(item, BaseException):
                raise item
            batch, copied = item
            if copied is not None:
                stream = torch.cuda.current_stream(self._device)
                stream.wait_event(copied)
                # The memory belongs to the copying stream, which must not reuse it while this stream reads it.
                batch.record_stream(stream)
            yield batch

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        if self._shared is not None:
            self._shared.leave()
        # This unblocks a producer that waits for room; one that waits for Ray Data ends with the next read.
        self._room.put(None)
        self._thread.join()

    def _produce(self) -> None:
        """Make batches ready, in the thread, until there are no more or the consumer has left."""
        is_cuda = self._device.type == "cuda"
        try:
            with contextlib.closing(self._batches) as batches:
                if is_cuda:
                    torch.cuda.set_device(self._device)  # otherwise pinning would open a context on the first GPU
                # Copies to the GPU have a stream of their own, so that they run beside the steps.
                stream = torch.cuda.Stream(self._device) if is_cuda else None
                while True:
                    with torch.cuda.stream(stream):
                        batch = next(batches, None)
                        copied = None if stream is None else stream.record_event()
                    if batch is None or not self._put((batch, copied)):
                        break
            self._put(None)
        except BaseException as error:  # raised again in the consumer
            self._put(error)

    def _put(self, item: _Item) -> bool:
        """Put an item as soon as there is room; False if the consumer has left."""
        if not self._stopped.is_set():
            self._room.get()
        if self._stopped.is_set():
            return False
        self._ready.put(item)
        return True
