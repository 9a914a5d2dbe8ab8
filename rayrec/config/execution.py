"""Execution of a command: decided once, handed to what does the work, and recorded with its result."""

from typing import Literal, Self

from rayrec.common.machine import available_cpus
from rayrec.config.base import Config
from rayrec.config.train import DeviceName

Place = Literal["process", "ray"]
SPARK, TRAIN, DATA, TUNE, SERVE = "Spark on Ray", "Ray Train", "Ray Data", "Ray Tune", "Ray Serve"
"""The engines on Ray."""


class Execution(Config):
    """Place, engine and number of CPUs of a command's work.

    `jobs.command.placement` decides it. The command's result, a dataset's manifest and a run's `run.json` have it.
    """

    on: Place
    """Place: the command's own process, or processes of Ray."""
    engine: str
    """Engine: `threads`, or one on Ray."""
    reads: Literal["threads", "Ray Data"] | None = None
    """Reader of the dataset for workers that train or evaluate."""
    device: DeviceName | None = None
    """Device of the workers that train or evaluate."""
    workers: int
    """Number of threads, tasks at once, actors, ranks of a training, trials at once, or replicas."""
    nodes: int = 1
    """Number of nodes with CPUs in the Ray session."""
    cpus: int
    """Number of CPUs that this process may use, or that the nodes of the Ray session have."""

    @classmethod
    def in_process(cls, workers: int | None = None, device: DeviceName | None = None) -> Self:
        """Return the execution by threads of this process: by default one for each CPU that it may use."""
        cpus = available_cpus()
        return cls(on="process", engine="threads", device=device, workers=workers or cpus, cpus=cpus)

    @classmethod
    def on_ray(cls, engine: str, workers: int) -> Self:
        """Return the execution by an engine in the Ray session of this process."""
        from rayrec.common.ray import session_size  # pyarrow takes a while to import

        nodes, cpus = session_size()
        return cls(on="ray", engine=engine, workers=workers, nodes=nodes, cpus=cpus)
