"""A user's mistake that a worker met, noted where all workers and the driver see it, whatever nodes they are on."""

from dataclasses import dataclass
from typing import Any

from rayrec.common.errors import UserError
from rayrec.storage.location import shown


@dataclass(frozen=True)
class MistakeNote:
    """Refers to an actor, which ends with the driver."""

    _actor: Any

    def write(self, error: UserError) -> None:
        """Note an error, unless another one was noted before."""
        import ray

        # Its paths are those of this node.
        ray.get(self._actor.write.remote(type(error)(shown(str(error)))))

    def is_there(self) -> bool:
        """Whether an error was noted."""
        import ray

        return ray.get(self._actor.read.remote()) is not None

    def raise_if_any(self) -> None:
        """Raise the error that was noted."""
        import ray

        if (error := ray.get(self._actor.read.remote())) is not None:
            raise error from None


def mistake_note() -> MistakeNote:
    """A new note, on the node of this process, without which there is no run either. Needs a Ray session."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor: Any = ray.remote(_Note)
    return MistakeNote(actor.options(num_cpus=0, scheduling_strategy=node).remote())


class _Note:
    def __init__(self) -> None:
        self._error: UserError | None = None

    def write(self, error: UserError) -> None:
        self._error = self._error or error

    def read(self) -> UserError | None:
        return self._error
