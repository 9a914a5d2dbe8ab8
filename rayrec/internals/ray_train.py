"""Private parts of Ray Train: what its processes inherit from the driver, and which nodes it knows to be ending."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.train.torch import TorchTrainer

START_TIMEOUT = "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"
"""Seconds that Ray Train waits for the resources of all workers before it tries again with fewer."""
POLL_INTERVAL = "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"
"""Seconds between two looks at the workers; so much later than its workers a run may end."""
PREEMPTION_WATCHER = "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"
"""Whether ("1" or "0") a process of each run asks for nodes that the cluster is about to take away."""


@contextmanager
def environment_of_processes(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables in this process and in those that Ray Train starts from it, within the block."""
    from ray.train.v2._internal.constants import ENV_VARS_TO_PROPAGATE

    ENV_VARS_TO_PROPAGATE.update(variables)
    before = {name: os.environ[name] for name in variables if name in os.environ}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]
        os.environ.update(before)


def preempted_nodes() -> int:
    """Return how many nodes with workers of this worker's run are about to be taken away, as far as it was told.

    Ray Train's own `get_preemption_info` waits for all workers each time.
    """
    from ray.train.v2._internal.execution.context import get_train_context

    info = get_train_context().preemption_context.preemption_info
    return 0 if info is None else len(info.preempted_node_to_ranks)


def needed_callbacks(callbacks: list[Any]) -> list[Any]:
    """Leave out the callbacks of Ray Train that start processes which a run does not need.

    Nothing shares Ray's data sets out to the workers, which get none. What gives back the resources of a run that was
    killed is not needed where the session ends with it, nor where `train_reservations` does it.
    """
    from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
    from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback

    left_out = (DatasetsCallback, PlacementGroupCleanerCallback)
    return [callback for callback in callbacks if not isinstance(callback, left_out)]


def trainer_of_own_session(environment: dict[str, str], *arguments: Any, **options: Any) -> "TorchTrainer":
    """Return a `TorchTrainer` for a Ray session that this process has started for itself alone; it begins and ends
    sooner.

    Its processes have the variables `environment`; if there are none, those that Ray started in advance will do.
    """
    import ray
    from ray.data._internal.cluster_autoscaler.default_autoscaling_coordinator import (
        get_or_create_autoscaling_coordinator,
    )
    from ray.train.torch import TorchTrainer
    from ray.train.v2._internal.execution.controller import TrainController

    class Trainer(TorchTrainer):
        def _create_default_callbacks(self) -> list[Any]:
            return needed_callbacks(super()._create_default_callbacks())

        def _initialize_and_run_controller(self, **arguments: Any) -> Any:
            own: dict[str, Any] = {"runtime_env": {"env_vars": environment}} if environment else {}
            controller = ray.remote(num_cpus=0, **own)(TrainController).remote(**arguments)
            # The controller would start this actor, and wait for it.
            get_or_create_autoscaling_coordinator()
            if threading.current_thread() is threading.main_thread():
                self._register_sigint_handler(controller)
            ray.get(controller.run.remote())
            return ray.get(controller.get_result.remote())

    return Trainer(*arguments, **options)
