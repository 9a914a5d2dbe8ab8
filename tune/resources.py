"""How many trials run at once, so that none waits for what another holds."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayrec.common.errors import ConfigError
from rayrec.config import Recipe
from rayrec.training.device import resolve_device

if TYPE_CHECKING:
    from ray.tune import PlacementGroupFactory

_ACTOR_BYTES = 2**29
"""Memory of the process that drives a trial."""


@dataclass(frozen=True)
class TrialPlaces:
    """Room for trials on a cluster."""

    concurrent: int
    in_memory: bool
    """Whether workers must read the data themselves, as no CPU is left for the tasks that would."""


def trial_places(recipe: Recipe, trials: int, wanted: int | None) -> TrialPlaces:
    """Places for `trials` trials of `recipe`, `wanted` at once, on the cluster of the running Ray session.

    A trial holds a CPU (and a GPU, where it trains on GPUs) for each worker from its start to its end, all or none. Its
    reading tasks need a CPU now and then, so one more is kept free for each trial: were all held, every trial would
    wait for batches that no task can read. Where the cluster has only the workers' CPUs, one trial runs and reads by
    itself.
    Raises ConfigError where one trial does not fit, or not as many as wanted.
    """
    import ray

    available = ray.cluster_resources()
    cpus, gpus = int(available.get("CPU", 0)), int(available.get("GPU", 0))
    workers, in_memory = recipe.train.workers, recipe.train.ingest.in_memory
    on_gpus = resolve_device(recipe.train.device, gpus=gpus) == "cuda"
    if workers > cpus or (on_gpus and workers > gpus):
        unit, there = ("GPU", gpus) if on_gpus and workers > gpus else ("CPU", cpus)
        raise ConfigError(
            f"train.workers: a trial of {workers} workers needs {workers} {unit}s, the cluster has {there}; "
            "lower --workers"
        )
    in_memory = in_memory or workers == cpus
    fitting = cpus // (workers if in_memory else workers + 1)
    if on_gpus:
        fitting = min(fitting, gpus // workers)
    if wanted is not None and wanted > fitting:
        raise ConfigError(
            f"--concurrent {wanted}: {fitting} trials of {workers} workers fit the cluster's {cpus} CPUs"
            f"{f' and {gpus} GPUs' if on_gpus else ''}; lower it, or --workers"
        )
    return TrialPlaces(min(trials, wanted or fitting), in_memory)


def trial_request() -> "PlacementGroupFactory":
    """What the process that drives a trial reserves: no CPU, as the workers it starts take theirs from the cluster."""
    from ray.tune import PlacementGroupFactory

    return PlacementGroupFactory([{"memory": _ACTOR_BYTES}])
