"""How many trials run at once, so that none waits for what another holds."""

import os
import socket

from rayrec.common.errors import ConfigError
from rayrec.recipes import Recipe
from rayrec.training.device import resolve_device


def concurrent_trials(recipe: Recipe, trials: int, wanted: int | None) -> int:
    """How many of `trials` trials of `recipe` run at once, `wanted` if given, on the cluster of the Ray session.

    A trial holds a CPU (and a GPU, where it trains on GPUs) for each worker from its start to its end, all or none, and
    waits for nothing else: the process that drives it and its reading tasks ask for no CPU.
    Raises ConfigError where one trial does not fit, or not as many as wanted.
    """
    import ray

    available = ray.cluster_resources()
    cpus, gpus = int(available.get("CPU", 0)), int(available.get("GPU", 0))
    workers = recipe.train.workers
    on_gpus = resolve_device(recipe.train.device, gpus=gpus) == "cuda"
    if workers > cpus or (on_gpus and workers > gpus):
        unit, there = ("GPU", gpus) if on_gpus and workers > gpus else ("CPU", cpus)
        raise ConfigError(
            f"train.workers: a trial of {workers} workers needs {workers} {unit}s, the cluster has {there}; "
            "lower --workers"
        )
    fitting = min(cpus, gpus) // workers if on_gpus else cpus // workers
    if wanted is not None and wanted > fitting:
        raise ConfigError(
            f"--concurrent {wanted}: {fitting} trials of {workers} workers fit the cluster's {cpus} CPUs"
            f"{f' and {gpus} GPUs' if on_gpus else ''}; lower it, or --workers"
        )
    if not on_gpus:
        fitting = max(1, _cores(cpus) // workers)
    return min(trials, wanted or fitting)


def _cores(cpus: int) -> int:
    """CPUs that compute: a Ray session on this machine alone may declare more than the machine has."""
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]
    is_here = len(nodes) == 1 and nodes[0]["NodeManagerHostname"] == socket.gethostname()
    return min(cpus, os.cpu_count() or 1) if is_here else cpus
