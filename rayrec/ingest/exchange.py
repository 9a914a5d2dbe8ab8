"""Hands row groups from the worker that decoded them to the others that need them, through Ray's object store.

A node holds one copy, which all workers on it read. An actor keeps the references from their offer until all that need
a row group have taken it. Ray and torch are imported inside functions: the actor needs neither torch nor the rows.
"""

import asyncio
import threading
import uuid
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray import ObjectRef

    from rayrec.ingest.reader import PackedRows

_POLL_SECONDS = 0.2
"""How soon a worker that waits for a row group notices that it has left the epoch."""


@dataclass
class Exchange:
    """One worker's access to the exchange of all workers of a training; their n-th epochs belong together."""

    _office: Any
    """Handle of the actor, which ends with the worker that made it."""
    _opened: int = 0

    @classmethod
    def of_all_ranks(cls) -> "Exchange":
        """Make the exchange of the default process group. A collective; needs a Ray session."""
        import torch
        import torch.distributed as dist

        name = [f"rayrec-exchange-{uuid.uuid4().hex}"]
        device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
        dist.broadcast_object_list(name, src=0, device=device)
        return cls(office(name[0], dist.get_world_size()))

    def open(self) -> "EpochExchange":
        """Return this worker's access to the next epoch."""
        self._opened += 1
        return EpochExchange(self._office, self._opened)


@dataclass(frozen=True)
class EpochExchange:
    """One worker's access to the row groups of one epoch."""

    _office: Any
    _epoch: int
    _left: threading.Event = field(default_factory=threading.Event)

    def offer(self, unit: int, rows: "PackedRows", takers: int) -> None:
        """Offer a row group to the `takers` other workers that need it."""
        import ray

        # In a list, so that the actor gets the reference and not the rows.
        self._office.offer.remote(self._epoch, unit, [ray.put(rows)], takers)

    def take(self, unit: int) -> "PackedRows":
        """Wait for a row group that another worker offers. Raises LeftError if this one leaves the epoch meanwhile."""
        import ray

        answer = self._office.take.remote(self._epoch, unit)
        while not ray.wait([answer], timeout=_POLL_SECONDS)[0]:
            if self._left.is_set():
                raise LeftError
        (reference,) = ray.get(answer)
        rows: PackedRows = ray.get(reference)
        return rows

    def leave(self) -> None:
        """Say that this worker needs no more row groups; those not taken are forgotten when all workers have left."""
        self._left.set()
        self._office.leave.remote(self._epoch)


class LeftError(Exception):
    """The worker has left the epoch, so nobody needs what it waited for."""


def office(name: str, world_size: int) -> Any:
    """Return the actor with this name, which the first worker that asks for it starts."""
    import ray

    actor: Any = ray.remote(_Office)
    return actor.options(name=name, get_if_exists=True, num_cpus=0, max_concurrency=10_000).remote(world_size)


@dataclass
class _Offer:
    there: asyncio.Event = field(default_factory=asyncio.Event)
    reference: "list[ObjectRef[Any]]" = field(default_factory=list)
    takers: int = 0


class _Office:
    """The actor, which never sees rows, only references to them."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._offers: defaultdict[int, defaultdict[int, _Offer]] = defaultdict(lambda: defaultdict(_Offer))
        """The offers by epoch and row group, made when somebody first offers a row group or waits for it."""
        self._left: Counter[int] = Counter()

    async def offer(self, epoch: int, unit: int, reference: "list[ObjectRef[Any]]", takers: int) -> None:
        if not self._is_over(epoch):
            offer = self._offers[epoch][unit]
            offer.reference, offer.takers = reference, takers
            offer.there.set()

    async def take(self, epoch: int, unit: int) -> "list[ObjectRef[Any]]":
        if self._is_over(epoch):
            return []  # to a worker that has left
        offer = self._offers[epoch][unit]
        await offer.there.wait()
        offer.takers -= 1
        if not offer.takers:
            self._offers[epoch].pop(unit, None)
        return offer.reference

    async def leave(self, epoch: int) -> None:
        self._left[epoch] += 1
        if self._is_over(epoch):
            for offer in self._offers.pop(epoch, defaultdict(_Offer)).values():
                offer.there.set()  # ends the calls that still wait

    def _is_over(self, epoch: int) -> bool:
        return self._left[epoch] == self._world_size

    async def held(self) -> int:
        """Return the number of row groups that somebody has yet to take."""
        return sum(map(len, self._offers.values()))
