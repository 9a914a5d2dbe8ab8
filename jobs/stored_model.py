"""The model of a run or a model folder, to score with: checked, opened, and handed to the workers that score."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from jobs.export import is_run_folder, neither_model_nor_run
from rayrec.common.errors import ConfigError
from rayrec.common.progress import Progress
from rayrec.common.ray import session_size
from rayrec.config.evaluate import InferencePrecision
from rayrec.config.execution import DATA, Execution, Place

if TYPE_CHECKING:
    from rayrec.inference.batch.pool import ScoringPool
    from rayrec.inference.scorer import StoredModel


def measurable(source: Path, data: Path) -> tuple[Path, list[str]]:
    """Return the folder whose model is to score the rows of a dataset, and a note where it is another one.

    `rayrec run` trains the exported model anew on all rows, those that were held out too: on these a figure of it would
    be one of training, and its ids are others. The run that it repeats never saw them, and has the dataset's ids.
    """
    from rayrec.inference.folder.table_files import is_delta, is_model_folder
    from rayrec.inference.folder.versions import DeltaManifest, ModelManifest
    from rayrec.store.artifact import found
    from rayrec.training.run.folder import RunFolder

    run = source
    if is_model_folder(source):
        manifest = (DeltaManifest if is_delta(source) else ModelManifest).load(source)
        checkpoint = manifest.made_of.get("checkpoint")
        if checkpoint is None:
            return source, []
        run = found(checkpoint, source).parent.parent
    judged = RunFolder.open(run).refit_of if is_run_folder(run) else None
    if judged is None or not judged.was_trained_on(data):
        return source, []
    return judged.path, [
        f"{source} was trained on the held-out rows of {data}, too; {judged.path} takes its place here, the same "
        "recipe without them"
    ]


@contextmanager
def stored_model(path: Path, checkpoint: str = "best") -> Iterator["StoredModel"]:
    """Yield the model of a model folder, or of a run's checkpoint, which every node can open during the block.

    Raises UserError for a folder without a model, or without such a checkpoint.
    """
    from rayrec.inference.folder.table_files import is_model_folder

    if is_model_folder(path):
        from rayrec.inference.folder.model_folder import ModelFolder

        if checkpoint != "best":
            raise ConfigError(
                "--checkpoint: a model folder has only one checkpoint; leave it out, or give the run folder"
            )
        yield ModelFolder.open(path)
        return
    if not is_run_folder(path):
        raise neither_model_nor_run(path)
    from rayrec.training.run.folder import RunFolder

    run = RunFolder.open(path)
    chosen = run.checkpoint(checkpoint)
    from rayrec.inference.scorer import CheckpointModel

    trained_on = run.dataset_folder if run.was_trained_on(run.dataset_folder) else None
    with tempfile.TemporaryDirectory(prefix="rayrec-model-") as files:
        try:
            yield CheckpointModel(chosen, run.recipe, run.schema, trained_on, Path(files))
        finally:
            _remove_on_other_nodes(files)


def _remove_on_other_nodes(folder: str) -> None:
    """Remove a folder that workers may have made on other nodes of the Ray session."""
    if session_size()[0] < 2:
        return
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    remove = ray.remote(num_cpus=0)(shutil.rmtree)
    nodes = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=True) for node in ray.nodes() if node["Alive"]]
    ray.wait([remove.options(scheduling_strategy=node).remote(folder, True) for node in nodes], num_returns=len(nodes))


@contextmanager
def scoring_pool(
    place: Place,
    progress: Progress,
    *,
    workers: int | None = None,
    device: Literal["auto", "cpu", "cuda"] = "cpu",
    precision: InferencePrecision = "fp32",
) -> Iterator[tuple["ScoringPool", Execution]]:
    """Provide what scores, in a Ray session if that is the place, and the record of it.

    Raises ConfigError where `device` is cuda and the session has no GPU.
    """
    from rayrec.inference.batch.pool import ScoringPool

    if place == "process":
        if precision != "fp32":
            from rayrec.models.common.precision import resolve_precision

            resolved = resolve_precision(precision, "cpu", "--precision")
            progress.message(f"precision {resolved.name} ({resolved.reason})")
        yield ScoringPool(workers=workers, precision=precision), Execution.in_process(workers)
        return
    from cluster.ray_session import ray_session
    from rayrec.training.run.preflight import resolve_device

    with ray_session(progress=progress):
        import ray

        gpus = int(ray.cluster_resources().get("GPU", 0))
        found = resolve_device(device, gpus=gpus)
        workers = workers or (gpus if found == "cuda" else session_size()[1])
        yield ScoringPool("ray", workers, found, precision), Execution.on_ray(DATA, workers)
