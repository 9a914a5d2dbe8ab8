"""The end of a node that is announced: all ranks hear of it at the same step, after which they save a checkpoint."""

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

_SECONDS = 2.0
"""About how long it takes until all ranks know what one of them was told."""


class PreemptionWatch:
    """Tells every rank at the same step that more nodes of the run are about to be taken away.

    The ranks ask each other, which is a wait for a GPU, only after as many steps as take about two seconds. That number
    follows from what they tell each other, so it is the same on all of them.
    """

    def __init__(self, preempted_nodes: Callable[[], int], device: torch.device) -> None:
        """`preempted_nodes`: how many nodes this rank knows to be about to go."""
        self._preempted_nodes, self._device = preempted_nodes, device
        self._interval, self._steps = 1, 0
        self._asked_at = time.perf_counter()
        self._known = 0

    def is_announced(self) -> bool:
        """Return whether nodes are about to go that no earlier call told of.

        Every rank calls it once a step, and some of the calls are collectives.
        """
        self._steps += 1
        if self._steps < self._interval:
            return False
        now = time.perf_counter()
        largest = torch.tensor([self._preempted_nodes(), now - self._asked_at], device=self._device)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        nodes, seconds = largest.tolist()
        # Twice as many steps at most: the first ones are slow or fast by chance.
        self._interval = max(1, min(2 * self._interval, int(self._steps * _SECONDS / max(seconds, 1e-6))))
        self._steps, self._asked_at = 0, now
        is_news = nodes > self._known
        self._known = max(self._known, int(nodes))
        return is_news
