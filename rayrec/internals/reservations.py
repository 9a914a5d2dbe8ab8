"""What makes the placement groups of a run; its process imports nothing of Ray Train, which would take seconds."""

import threading
import time
from contextlib import suppress
from typing import Any


class Reservations:
    """The placement groups of a run, as a detached actor, with which Ray removes them; it ends when the run does."""

    def __init__(self, controller: str) -> None:
        """`controller`: the id of the run's controller, in hexadecimal."""
        threading.Thread(target=self._end_with, args=(controller,), daemon=True).start()

    def reserve(self, bundles: list[dict[str, float]], strategy: str) -> Any:
        """A new placement group of these resources."""
        from ray.util.placement_group import placement_group

        return placement_group(bundles, strategy)

    def _end_with(self, controller: str) -> None:
        import ray
        from ray._private.state import actors

        is_dead = False
        while not is_dead:
            time.sleep(1)
            with suppress(Exception):  # the cluster's head does not answer for a while
                is_dead = actors(controller).get("State") == "DEAD"
        ray.kill(ray.get_runtime_context().current_actor)
