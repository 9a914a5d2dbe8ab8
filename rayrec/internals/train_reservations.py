"""Private parts of Ray Train: how a run reserves the resources of its workers, and who takes them back.

Ray Train has a process that gives a placement group back whose run was killed. But it names the group to it only once
all workers have started. So a Ray session would lose the resources if the run's driver died before that, or if the run,
which outlives its driver for a moment, saw its workers die and asked for the resources of others. Here a detached actor
makes the groups, with which Ray removes them in any case, and it ends when the run does.
"""

from typing import Any

import ray
from ray._common.constants import HEAD_NODE_RESOURCE_NAME
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.execution.callback import ControllerCallback
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.worker_group import WorkerGroup
from ray.train.v2._internal.execution.worker_group.placement_group_handle import DefaultPlacementGroupHandle

from rayrec.internals.ray_core import Reservations
from rayrec.internals.ray_train import needed_callbacks


class ReservingTrainer(TorchTrainer):
    """For a Ray session with other work: its workers' resources return to the session whenever the run ends."""

    def _create_default_callbacks(self) -> list[Any]:
        return [_Reserve(), *needed_callbacks(super()._create_default_callbacks())]


class _Reserve(ControllerCallback):
    """Let the controller, in whose process this is called, have its placement groups from `Reservations`."""

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

        class Workers(WorkerGroup):
            def _create_placement_group(self, scaling_config: Any, context: Any) -> DefaultPlacementGroupHandle:
                bundles = [context.resources_per_worker] * context.num_workers
                group = ray.get(reservations.reserve.remote(bundles, context.placement_strategy))
                return DefaultPlacementGroupHandle(group)

        TrainController.worker_group_cls = Workers  # this process has no other controller
