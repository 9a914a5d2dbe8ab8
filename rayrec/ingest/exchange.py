"""Hands row groups from the worker that decoded them to the others that need them, through Ray's object store.

A node holds one copy, which all workers on it read. An actor keeps the references from their offer until all that need
a row group have taken it. Imports Ray and torch inside functions: the actor's process needs neither torch nor rows.
"""

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray import ObjectRef

    from rayrec.ingest.reader import PackedRows

_POLL_SECONDS = 0.2
"""How soon a worker that waits for a row group notices that its consumer has left."""


@dataclass
class Exchange:
    """One worker's access to the exchange of all workers of a training; their n-th epochs belong together."""

    world_size: int
    _office: Any
    """Handle of the actor; the first worker's keeps it alive."""
    _opened: int = 0

    @classmethod
    def of_all_ranks(cls) -> "Exchange":
        """Make the exchange of the default process group. A collective; needs a Ray session."""
        import ray
        import torch
        import torch.distributed as dist

        name = [f"rayrec-exchange-{uuid.uuid4().hex}"]
        office = None
        if dist.get_rank() == 0:
            office = ray.remote(_Office).options(name=name[0], num_cpus=0, max_concurrency=10_000).remote()
            ray.get(office.held.remote())  # it is found by its name once it answers
        device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
        dist.broadcast_object_list(name, src=0, device=device)
        return cls(dist.get_world_size(), office or ray.get_actor(name[0]))

    def open(self) -> "EpochExchange":
        """The next epoch's."""
        self._opened += 1
        return EpochExchange(self._office, self._opened, self.world_size)


@dataclass(frozen=True)
class EpochExchange:
    """One worker's access to the row groups of one epoch."""

    _office: Any
    _epoch: int
    _world_size: int

    def offer(self, unit: int, rows: "PackedRows", takers: int) -> None:
        """Offer a row group to the `takers` other workers that need it."""
        import ray

        # In a list, so that the actor gets the reference and not the rows.
        self._office.offer.remote(self._epoch, unit, [ray.put(rows)], takers)

    def take(self, unit: int, is_over: Callable[[], bool]) -> "PackedRows | None":
        """Wait for a row group that another worker offers; None if the consumer has left (`is_over`) meanwhile."""
        import ray

        answer = self._office.take.remote(self._epoch, unit)
        while not ray.wait([answer], timeout=_POLL_SECONDS)[0]:
            if is_over():
                return None
        (reference,) = ray.get(answer)
        rows: PackedRows = ray.get(reference)
        return rows

    def close(self) -> None:
        """Leave the epoch; what nobody has taken is forgotten when all have left."""
        self._office.leave.remote(self._epoch, self._world_size)


@dataclass
class _Offer:
    there: asyncio.Event = field(default_factory=asyncio.Event)
    reference: "list[ObjectRef[Any]]" = field(default_factory=list)
    takers: int = 0


class _Office:
    """The actor."""

    def __init__(self) -> None:
        self._offers: dict[int, dict[int, _Offer]] = {}
        self._left: Counter[int] = Counter()
        self._over: set[int] = set()

    async def held(self) -> int:
        """The number of row groups that somebody has yet to take, or waits for."""
        return sum(map(len, self._offers.values()))

    async def offer(self, epoch: int, unit: int, reference: "list[ObjectRef[Any]]", takers: int) -> None:
        if epoch in self._over:
            return  # an offer that comes later than its worker's farewell
        offer = self._offer(epoch, unit)
        offer.reference, offer.takers = reference, takers
        offer.there.set()

    async def take(self, epoch: int, unit: int) -> "list[ObjectRef[Any]]":
        offer = self._offer(epoch, unit)
        await offer.there.wait()
        offer.takers -= 1
        if not offer.takers:
            del self._offers[epoch][unit]
        return offer.reference

    async def leave(self, epoch: int, world_size: int) -> None:
        self._left[epoch] += 1
        if self._left[epoch] == world_size:
            self._over.add(epoch)
            self._offers.pop(epoch, None)

    def _offer(self, epoch: int, unit: int) -> _Offer:
        return self._offers.setdefault(epoch, {}).setdefault(unit, _Offer())
