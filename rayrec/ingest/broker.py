"""Hands row groups from the rank that decoded them to the others that need them, through Ray's object store.

A node holds one copy, which all ranks on it read. The broker, an actor, never sees rows: it keeps a reference to each
row group from its offer until all ranks that need it have taken it. Torch and Ray are imported inside functions, as the
actor needs neither torch nor the rows.
"""

import asyncio
import threading
import uuid
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray import ObjectRef

    from rayrec.ingest.packed_rows import PackedRows

_POLL_SECONDS = 0.2
"""How soon a rank that waits for a row group notices that it has left the epoch."""


def start_broker(name: str, world_size: int) -> Any:
    """Return a handle of the broker with this name, which the first rank that asks for it starts, and ends with."""
    import ray

    actor: Any = ray.remote(RowGroupBroker)
    return actor.options(name=name, get_if_exists=True, num_cpus=0, max_concurrency=10_000).remote(world_size)


def broker_of_all_ranks() -> Any:
    """Return a handle of one broker for all ranks of the default process group. A collective; needs a Ray session."""
    import torch
    import torch.distributed as dist

    name = [f"rayrec-row-groups-{uuid.uuid4().hex}"]
    device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
    dist.broadcast_object_list(name, src=0, device=device)
    return start_broker(name[0], dist.get_world_size())


@dataclass(frozen=True)
class SharedEpoch:
    """One rank's way to the row groups that the ranks share in one epoch."""

    broker: Any
    """Handle of the `RowGroupBroker`."""
    number: int
    """The same on all ranks of the epoch, and on none of another."""
    _left: threading.Event = field(default_factory=threading.Event)

    def offer(self, row_group: int, rows: "PackedRows", takers: int) -> None:
        """Offer a row group to the `takers` other ranks that need it."""
        import ray

        # In a list, so that the actor gets the reference and not the rows.
        self.broker.offer.remote(self.number, row_group, [ray.put(rows)], takers)

    def take(self, row_group: int) -> "PackedRows":
        """Wait for a row group that another rank offers. Raises LeftError if this one leaves the epoch meanwhile."""
        import ray

        answer = self.broker.take.remote(self.number, row_group)
        while not ray.wait([answer], timeout=_POLL_SECONDS)[0]:
            if self._left.is_set():
                raise LeftError
        (reference,) = ray.get(answer)
        rows: PackedRows = ray.get(reference)
        return rows

    def leave(self) -> None:
        """Say that this rank needs no more row groups; those not taken are forgotten when all ranks have left."""
        self._left.set()
        self.broker.leave.remote(self.number)


class LeftError(Exception):
    """The rank has left the epoch, so nobody needs what it waited for."""


@dataclass
class _Offer:
    made: asyncio.Event = field(default_factory=asyncio.Event)
    reference: "list[ObjectRef[Any]]" = field(default_factory=list)
    takers: int = 0
    """Ranks that have yet to take it."""


class RowGroupBroker:
    """The actor between the ranks of one training."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        # By epoch and row group: made when somebody first offers a row group, or waits for it.
        self._offers: defaultdict[int, defaultdict[int, _Offer]] = defaultdict(lambda: defaultdict(_Offer))
        self._left: Counter[int] = Counter()
        """The number of ranks that have left each epoch."""

    async def offer(self, epoch: int, row_group: int, reference: "list[ObjectRef[Any]]", takers: int) -> None:
        """Keep a reference for so many ranks."""
        if not self._is_over(epoch):
            offer = self._offers[epoch][row_group]
            offer.reference, offer.takers = reference, takers
            offer.made.set()

    async def take(self, epoch: int, row_group: int) -> "list[ObjectRef[Any]]":
        """Return the reference once it is offered; nothing to a rank that has left."""
        if self._is_over(epoch):
            return []
        offer = self._offers[epoch][row_group]
        await offer.made.wait()
        offer.takers -= 1
        if not offer.takers:
            self._offers[epoch].pop(row_group, None)
        return offer.reference

    async def leave(self, epoch: int) -> None:
        """Count a rank that has left; forget the epoch with the last one."""
        self._left[epoch] += 1
        if self._is_over(epoch):
            for offer in self._offers.pop(epoch, defaultdict(_Offer)).values():
                offer.made.set()  # ends the calls that still wait

    async def held(self) -> int:
        """Return the number of row groups that somebody has yet to take."""
        return sum(map(len, self._offers.values()))

    def _is_over(self, epoch: int) -> bool:
        return self._left[epoch] == self._world_size
