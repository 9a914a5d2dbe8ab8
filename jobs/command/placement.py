"""Decides how a command runs. No other code does; docs/cluster.md has it as a table.

First the place, before anything starts (`place_preprocessing`, `place_training`, ...):

    --on process      in this process, or an error if only Ray can do what is asked
    --on ray          on Ray: a running cluster (RAY_ADDRESS), or a session on this machine for the command alone
    --on auto         on Ray if only Ray can do it, if a cluster is there, or if the work is large; else in this process

What is large, and what only Ray can do, each command says below. Then, where the session has started if there is one,
the `Execution`: nodes, CPUs, and for training the device and the reader. It is handed to what does the work, and
recorded.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from jobs.command.request import Request
from rayrec.common.errors import ConfigError, SmallClusterError
from rayrec.common.process import import_meanwhile
from rayrec.common.progress import Progress, SilentProgress
from rayrec.common.text import format_bytes
from rayrec.config.execution import DATA, SPARK, TRAIN, Execution, Place
from rayrec.config.preprocess import SparkConfig
from rayrec.config.train import DeviceName, TrainConfig

if TYPE_CHECKING:
    from rayrec.preprocessing.pipeline import Preprocessing

_WantedDevice = Literal["auto"] | DeviceName

_ROWS_SCORED_HERE = 2**20
_BYTES_SCORED_HERE = 2**28
_PAIRS_SCORED_HERE = 2**30
"""What one machine scores in about the time that the actors of a pool take to start; pairs are users times items."""


class PlacedRequest(Request):
    """The request of a command that runs in its own process or on Ray."""

    on: Literal["auto", "process", "ray"] = "auto"
    """Run in this process or on Ray; auto chooses Ray for large work, several workers, a GPU or a running cluster."""


def place_preprocessing(request: PlacedRequest, job: "Preprocessing", spark: SparkConfig, progress: Progress) -> Place:
    """Return where raw files become a dataset; large are 4 GiB of text where this machine has many CPUs
    (`Preprocessing.suits_threads`).
    """
    only_ray = None if spark == SparkConfig() else "preprocess.spark"
    return _place(
        "preprocess",
        request,
        engine=SPARK,
        work=format_bytes(job.bytes),
        only_ray=only_ray,
        is_large=not job.suits_threads,
        progress=progress,
    )


def place_training(request: PlacedRequest, train: TrainConfig, progress: Progress) -> Place:
    """Return where a recipe is trained; only Ray Train runs several workers, or any number, and GPUs."""
    workers = f"{train.min_workers}:{train.workers}" if train.min_workers is not None else str(train.workers)
    only_ray = _only_ray_workers(workers, train.device)
    return _place("train", request, engine=TRAIN, work=f"workers: {workers}", only_ray=only_ray, progress=progress)


def place_scoring(
    command: Literal["evaluate", "predict"],
    request: PlacedRequest,
    progress: Progress,
    *,
    rows: int | None = None,
    raw_bytes: int | None = None,
    pairs: int | None = None,
    workers: int | None = None,
    device: _WantedDevice = "cpu",
) -> Place:
    """Return where rows of a dataset, raw files, or pairs of a user and an item are scored.

    Only Ray runs several `workers`, and GPUs. With `rows` and `raw_bytes` so many rows of these files are scored; large
    are then both.
    """
    amounts = []
    if rows is not None:
        amounts.append((f"{rows:,} rows", rows > _ROWS_SCORED_HERE))
    if raw_bytes is not None:
        amounts.append((format_bytes(raw_bytes), raw_bytes > _BYTES_SCORED_HERE))
    if pairs is not None:
        amounts.append((f"{pairs:,} pairs of a user and an item", pairs > _PAIRS_SCORED_HERE))
    works, are_large = zip(*amounts, strict=True)
    return _place(
        command,
        request,
        engine=DATA,
        work=" of ".join(works),
        only_ray=_only_ray_workers(str(workers or 1), device),
        is_large=all(are_large),
        progress=progress,
    )


@contextmanager
def training_session(
    place: Place,
    train: TrainConfig,
    progress: Progress = SilentProgress(),  # noqa: B008 -- it has no state
    *,
    by_ray_data: bool = False,
) -> Iterator[Execution]:
    """Hold what a recipe is trained in, a Ray session or nothing; yield how it is done there.

    Tasks of Ray Data read where they are asked for (`by_ray_data`), where they can do so on other nodes, and for
    several GPUs, whose few processes would not keep up with them. Raises SmallClusterError as `ray_training` does.
    """
    if place == "process":
        yield Execution.in_process(train.threads, "cpu")
        return
    from cluster.ray_session import ray_session

    import_meanwhile("rayrec.models.registry")  # takes seconds, in which Ray's processes start
    with ray_session(progress=progress):
        yield ray_training(train, by_ray_data=by_ray_data)


def ray_training(train: TrainConfig, *, by_ray_data: bool = False) -> Execution:
    """Return how workers of Ray Train train in this process's Ray session; see `training_session`.

    Raises SmallClusterError where the cluster has room for too few of them, ConfigError where a GPU is asked for that
    it does not have.
    """
    import ray

    from rayrec.training.run.preflight import resolve_device

    resources = ray.cluster_resources()
    device = resolve_device(train.device, gpus=resources.get("GPU", 0))
    least = train.min_workers or train.workers
    for unit in ("GPU", "CPU") if device == "cuda" else ("CPU",):
        if least > (available := int(resources.get(unit, 0))):
            raise SmallClusterError(
                f"train.workers: each of {least} workers needs a {unit}, but Ray has {available}; lower --workers"
            )
    found = Execution.on_ray(TRAIN, train.workers)
    by_ray_data = by_ray_data or found.nodes > 1 or (device == "cuda" and train.workers > 1)
    return found.model_copy(update={"device": device, "reads": "Ray Data" if by_ray_data else "threads"})


def trial_training(train: TrainConfig) -> Execution:
    """Return how a trial of a sweep trains, in whose actor this is called: one worker on a CPU is the actor itself.

    Raises what `ray_training` raises.
    """
    found = ray_training(train)
    return Execution.in_process(train.threads, "cpu") if found.workers == 1 and found.device == "cpu" else found


def _only_ray_workers(workers: str, device: _WantedDevice) -> str | None:
    """Say what of a training or an evaluation only Ray can do, if anything."""
    require_gpu(device)
    if workers != "1":
        return f"work of {workers} workers"
    if device == "cuda" or (device == "auto" and _gpus_here()):
        return f"a GPU (device: {device})"
    return None


def require_gpu(device: _WantedDevice) -> None:
    """Raise ConfigError where cuda is asked for on a machine without a GPU; a running cluster tells for itself."""
    from cluster.ray_session import has_cluster
    from rayrec.training.run.preflight import resolve_device

    if device == "cuda" and not has_cluster():
        resolve_device(device, gpus=_gpus_here())


def _gpus_here() -> int:
    import torch

    return torch.cuda.device_count()


def _place(
    command: str,
    request: PlacedRequest,
    *,
    engine: str,
    work: str,
    progress: Progress,
    only_ray: str | None = None,
    is_large: bool = False,
) -> Place:
    """Return where a command runs, and say so in a line. Raises ConfigError for `process` if only Ray can do it.

    Args:
        engine: What does the work on Ray.
        work: How much it is, for people.
        only_ray: What only Ray can do of it; None if this process can do all.
        is_large: Tell that Ray does it sooner, or in less memory.
    """
    from cluster.ray_session import has_cluster

    # What was asked for, unless it cannot be; else Ray where it alone can do it, where it is worth it, or is there.
    if request.on == "process" and only_ray is not None:
        raise ConfigError(f"--on process: {only_ray} needs {engine}; leave out --on, or do without")
    if request.on == "auto":
        place: Place = "ray" if only_ray is not None or is_large or has_cluster() else "process"
    else:
        place = request.on
    if place == "process":
        progress.message(f"{command}: in this process, {work}; --on ray for {engine}")
    else:
        progress.message(f"{command}: {engine}, {work}" + ("" if only_ray else "; --on process for this process"))
    return place
