"""Private parts of Ray Train: what a run starts beside its workers, and the nodes that it knows to be ending."""

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.train.torch import TorchTrainer

START_TIMEOUT = "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"
"""Seconds that Ray Train waits for the resources of all workers before it tries again with fewer."""
POLL_INTERVAL = "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"
"""Seconds between two looks at the workers, 2 by default; so much later than its workers a run may end."""
PREEMPTION_WATCHER = "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"
"""Whether ("1" or "0") a process of each run asks for nodes that the cluster is about to take away."""
WARN_OF_WAITS = "RAY_WARN_BLOCKING_GET_INSIDE_ASYNC"
"""Whether ("1" or "0") Ray warns of waiting in asynchronous actors, as the one that controls a run does."""


def preempted_nodes() -> int:
    """Return how many nodes with workers of this worker's run are about to be taken away, as far as it was told.

    Ray Train's own `get_preemption_info` waits for all workers each time, so that each step would wait for the slowest.
    """
    from ray.train.v2._internal.execution.context import get_train_context

    info = get_train_context().preemption_context.preemption_info
    return 0 if info is None else len(info.preempted_node_to_ranks)


def lean_trainer(*arguments: Any, **options: Any) -> "TorchTrainer":
    """Return a `TorchTrainer` that starts no processes which a run does not need, made from its arguments.

    It leaves out two of Ray Train's callbacks, and so takes 4 to 7 seconds less from its start to its end, of 13 to 18
    (20 steps of one worker on two busy CPUs). One shares Ray's data sets out to the workers, which get none. The other
    gives back the resources of a run whose driver died, which Ray does where a job ends. Within a job, as in a trial of
    Ray Tune, `Reservations` does it: Ray Train's own is told of the resources only once all workers have started, and
    does not notice without a dashboard that the run is dead.

    It starts the run's controller in a process that Ray has ready, which takes some 2 seconds less (of 20, from `rayrec
    train --workers 2` to its end; benchmarks/start_up.py).
    """
    import ray
    from ray.data._internal.cluster_autoscaler.default_autoscaling_coordinator import (
        get_or_create_autoscaling_coordinator,
    )
    from ray.train.torch import TorchTrainer
    from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
    from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
    from ray.train.v2._internal.constants import get_env_vars_to_propagate
    from ray.train.v2._internal.execution.controller import TrainController
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    class LeanTrainer(TorchTrainer):
        def _create_default_callbacks(self) -> list[Any]:
            left_out = (DatasetsCallback, PlacementGroupCleanerCallback)
            needed = [one for one in super()._create_default_callbacks() if not isinstance(one, left_out)]
            is_actor = ray.get_runtime_context().get_actor_id() is not None
            return [*needed, _reserving_callback()] if is_actor else needed

        def _initialize_and_run_controller(self, **parts: Any) -> Any:
            # A process with variables of its own would have to be started first. Ray Train gives it one always, which
            # silences a warning; rayrec's sessions set it (`cluster/ray_session.py`).
            variables = get_env_vars_to_propagate()
            own: dict[str, Any] = {"runtime_env": {"env_vars": variables}} if variables else {}
            here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
            controller = ray.remote(num_cpus=0, scheduling_strategy=here, **own)(TrainController).remote(**parts)
            get_or_create_autoscaling_coordinator()  # the controller would start this actor itself, and wait for it
            if threading.current_thread() is threading.main_thread():
                self._register_sigint_handler(controller)
            ray.get(controller.run.remote())
            return ray.get(controller.get_result.remote())

    return LeanTrainer(*arguments, **options)


def _reserving_callback() -> Any:
    """Return the callback that lets a run's controller, in whose process it is called, reserve by `Reservations`."""
    import ray
    from ray._common.constants import HEAD_NODE_RESOURCE_NAME
    from ray.train.v2._internal.execution.callback import ControllerCallback
    from ray.train.v2._internal.execution.worker_group import WorkerGroup
    from ray.train.v2._internal.execution.worker_group.placement_group_handle import DefaultPlacementGroupHandle

    class Reserve(ControllerCallback):
        def after_controller_start(self, train_run_context: Any) -> None:
            options = {
                "lifetime": "detached",
                "max_restarts": -1,
                # On the head, so that the end of a node with workers does not end it.
                "resources": {HEAD_NODE_RESOURCE_NAME: 0.001},
                # Not within the resources of the driver, as if it were part of a trial of Ray Tune.
                "scheduling_strategy": "DEFAULT",
            }
            controller = ray.get_runtime_context().get_actor_id()
            reservations = ray.remote(num_cpus=0, **options)(Reservations).remote(controller)

            def reserve(self: Any, scaling_config: Any, context: Any) -> Any:
                bundles = [context.resources_per_worker] * context.num_workers
                group = ray.get(reservations.reserve.remote(bundles, context.placement_strategy))
                return DefaultPlacementGroupHandle(group)

            WorkerGroup._create_placement_group = reserve  # this process has no other controller

    return Reserve()


class Reservations:
    """The placement groups of a run, made by a detached actor, with which Ray removes them; it ends when the run does.

    Ray leaves the groups of other actors until their job ends. Without this a sweep lost the CPUs of a trial that died
    while its workers waited for resources or started (tests/integration/test_lost_drivers.py).
    """

    def __init__(self, controller: str) -> None:
        """`controller`: the id of the run's controller, in hexadecimal."""
        threading.Thread(target=self._end_with, args=(controller,), daemon=True).start()

    def reserve(self, bundles: list[dict[str, float]], strategy: str) -> Any:
        """Return a new placement group of these resources."""
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
