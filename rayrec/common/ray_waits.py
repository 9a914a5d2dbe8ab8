"""Says what a command waits for that Ray has no room for, and that nodes were lost."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rayrec.common.process import in_background
from rayrec.common.progress import Progress
from rayrec.common.text import format_bytes
from rayrec.internals.ray_core import Resources, Room, look_for_room

_LOOK_SECONDS = 2.0
_PATIENCE_SECONDS, _REPEAT_SECONDS = 5.0, 30.0
"""How long something waits until it is said, as resources that were just given back are had at once; and again."""
_ANSWER_SECONDS = 5.0


@contextmanager
def waits_shown(progress: Progress, look: Callable[[float], Room] = look_for_room) -> Iterator[None]:
    """Show during the block, which has a Ray session, what its job waits for: workers of Ray Train, executors of Spark,
    actors of Ray Data, trials, replicas; and which nodes were lost.
    """
    watch = _Watch(progress)

    def run(ended: threading.Event) -> None:
        while not ended.wait(_LOOK_SECONDS):
            with suppress(Exception):  # the head does not answer for a while, which is for others to say
                watch.take(look(_ANSWER_SECONDS), time.monotonic())

    with in_background(run, "rayrec-waits"):
        yield


class _Watch:
    """Passes on what changes between two looks."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._nodes: dict[str, str] = {}
        self._since: float | None = None
        self._say_at = 0.0
        self._has_said = False

    def take(self, room: Room, now: float) -> None:
        """Take in the state of the cluster at a time, in seconds."""
        lost = [address for node, address in self._nodes.items() if node not in room.nodes]
        self._nodes = dict(room.nodes)
        if lost:
            what = "a node was" if len(lost) == 1 else f"{len(lost)} nodes were"
            self._progress.message(f"{what} lost ({', '.join(sorted(lost))}); {_free(room, ['CPU'])}")
        if not room.waiting:
            if self._has_said and self._since is not None:
                self._progress.message(f"resources are free again after {now - self._since:.0f} s")
            self._since, self._has_said = None, False
            return
        if self._since is None:
            self._since, self._say_at = now, now + _PATIENCE_SECONDS
        if now >= self._say_at:
            wanted = sorted({name for _, resources in room.waiting for name, _ in resources})
            workers = ", ".join(_workers(count, resources) for count, resources in room.waiting)
            self._progress.message(f"waiting for resources for {workers}; {_free(room, wanted)}")
            self._say_at, self._has_said = now + _REPEAT_SECONDS, True


def _workers(count: int, resources: Resources) -> str:
    of_each = " and ".join(_amount(name, amount) for name, amount in resources)
    return f"{count} worker{'' if count == 1 else 's'} of {of_each or 'no resources'}"


def _free(room: Room, names: list[str]) -> str:
    """Say what is free of the named resources, over all nodes."""
    free = ", ".join(f"{_amount(name, room.free.get(name, 0))}" for name in names)
    return f"free: {free} on {len(room.nodes)} node{'' if len(room.nodes) == 1 else 's'}"


def _amount(name: str, amount: float) -> str:
    if name == "memory":
        return f"{format_bytes(amount)} of memory"
    return f"{amount:g} {name}{'s' if name in {'CPU', 'GPU'} and amount != 1 else ''}"
