"""Execution of a command: its result, a dataset's manifest and a run's `run.json` record it."""

from typing import Literal, Self

from rayrec.common.machine import available_cpus
from rayrec.config.base import Config

Place = Literal["process", "ray"]
SPARK, TRAIN, DATA, SERVE = "Spark on Ray", "Ray Train", "Ray Data", "Ray Serve"
"""The engines on Ray."""


class Execution(Config):
    """Place, engine and number of CPUs of a command's work."""

    on: Place
    """Place: the command's own process, or processes of Ray."""
    engine: str
    """Engine: `threads`, or one on Ray."""
    reads: Literal["threads", "Ray Data"] | None = None
    """Reader of the dataset for workers that trained or evaluated."""
    workers: int
    """Number of threads, tasks at once, actors, or ranks of a training."""
    nodes: int = 1
    """Number of nodes with CPUs in the Ray session."""
    cpus: int
    """Number of CPUs that this process may use, or that the nodes of the Ray session have."""

    @classmethod
    def here(cls, workers: int | None = None) -> Self:
        """Return the record of work by threads of this process: by default one for each CPU that it may use."""
        cpus = available_cpus()
        return cls(on="process", engine="threads", workers=workers or cpus, cpus=cpus)

    @classmethod
    def on_ray(cls, engine: str, workers: int, reads: Literal["threads", "Ray Data"] | None = None) -> Self:
        """Return the record of work in this process's Ray session."""
        from rayrec.common.ray_blocks import session_size  # pyarrow takes a while to import

        nodes, cpus = session_size()
        return cls(on="ray", engine=engine, reads=reads, workers=workers, nodes=nodes, cpus=cpus)
