"""Private parts of Ray Train: what its processes inherit from the driver, and which nodes it knows to be ending."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

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
    """How many nodes with workers of this worker's run are about to be taken away, as far as it was told.

    Ray Train's own `get_preemption_info` waits for all workers each time.
    """
    from ray.train.v2._internal.execution.context import get_train_context

    info = get_train_context().preemption_context.preemption_info
    return 0 if info is None else len(info.preempted_node_to_ranks)
