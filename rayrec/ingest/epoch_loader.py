"""What the training loop asks of batches, wherever they come from."""

from collections.abc import Iterator
from types import TracebackType
from typing import Protocol, Self

from rayrec.models.common.batch import Batch


class EpochLoader(Protocol):
    """The batches of one epoch of a split for one rank; used once, as a context manager."""

    wait_seconds: float
    """Time that the consumer has waited for batches so far."""

    @property
    def num_batches(self) -> int:
        """Batches of the epoch, those before the first one that is given included; the same on every rank."""

    @property
    def rows_dropped(self) -> int:
        """Rows (samples, where negatives are drawn) that are in no batch of this epoch."""

    def row_count(self, batch: int) -> int | None:
        """Rows of the global batch over all ranks, padding not counted; None where only the batch itself tells."""

    def __enter__(self) -> Self: ...

    def __iter__(self) -> Iterator[Batch]: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
