"""`rayrec preprocess`: turns raw logs into a dataset folder."""

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field

from jobs.command import Command, PathTexts, RecipeRequest, Result, absolute_path, main
from jobs.command.placement import PlacedRequest, place_preprocessing
from rayrec.common.errors import UserError
from rayrec.common.progress import Progress
from rayrec.config.execution import SPARK, Execution
from rayrec.config.preprocess import SparkConfig
from rayrec.recipes import Recipe
from rayrec.store.files import remove
from rayrec.store.folders import owned, unfinished_work
from rayrec.store.paths import Folder, place_on_this_node

if TYPE_CHECKING:
    from rayrec.ingest.dataset import DatasetManifest
    from rayrec.preprocessing.pipeline import Preprocessing

_NAMED = re.compile(r"(?P<split>[A-Za-z_]\w*)=(?P<path>.+)", re.DOTALL)


class InputRequest(RecipeRequest):
    """The request of a command that takes a recipe and raw files."""

    input: Annotated[PathTexts, Field(min_length=1)]
    """Raw file, folder, glob or URI; SPLIT=PATH if preprocess.split.kind is files; repeatable."""
    output: Folder
    """New dataset folder."""

    def inputs(self, recipe: Recipe) -> dict[str | None, list[str]]:
        """Return the input paths by split; those that name no split under None."""
        return inputs_by_split(self.input, named=recipe.preprocess.reads_splits_from_files)

    def with_absolute_paths(self) -> Self:
        inputs = tuple(
            absolute_path(path) if split is None else f"{split}={absolute_path(path)}"
            for split, paths in self.inputs(self.load_recipe()).items()
            for path in paths
        )
        return super().with_absolute_paths().model_copy(update={"input": inputs})


class PreprocessRequest(InputRequest, PlacedRequest):
    extend: Folder | None = None
    """Dataset folder to extend: known values keep their ids, new values get new ones."""

    def kept(self) -> str:
        with suppress(UserError):
            if unfinished_work(self.output):
                return "finished parts are kept; run the same command again to continue"
        return super().kept()


def run(request: PreprocessRequest, progress: Progress) -> Result:
    """Preprocess; `rows` counts those of all splits, `details` those of each, the bad ones and the dropped ones.

    `details.warnings` says which splits measure little, `details.notes` which differ as splits by time may.
    """
    from rayrec.ingest.dataset import Dataset
    from rayrec.preprocessing.engine import EmbeddedEngine
    from rayrec.preprocessing.extension import require_other_rows
    from rayrec.sources.registry import preprocessing

    # What is to be done: the source of the recipe makes the job.
    recipe = request.load_recipe()
    parent = None if request.extend is None else Dataset.open(request.extend)
    job = preprocessing(recipe, request.inputs(recipe), request.output, parent)
    spark = recipe.preprocess.spark
    # Do it by threads of this process, or by Spark on Ray. Both write the same files.
    with owned(request.output):
        if place_preprocessing(request, job, spark, progress) == "process":
            manifest = job.run(EmbeddedEngine.of_this_machine(), progress, execution=Execution.in_process())
        else:
            manifest = _run_on_spark(job, request.output, spark, progress)
    if parent is not None:
        try:
            require_other_rows(Dataset.open(request.output))
        except UserError:
            remove(request.output)
            raise
    return result_of(manifest, request.output)


def result_of(manifest: "DatasetManifest", output: Path) -> Result:
    """Return the result of the preprocessing that made a dataset."""
    from rayrec.inspection.split_checks import split_notes, split_warnings

    splits = {name: split.rows for name, split in manifest.splits.items()}
    details: dict[str, Any] = {
        "splits": splits,
        "rejected": manifest.rejected,
        "warnings": [*manifest.warnings, *split_warnings(manifest)],
        "notes": split_notes(manifest),
    }
    if manifest.dropped:
        details["dropped"] = manifest.model_dump(mode="json")["dropped"]
    for counts in ("found_keys", "known_values"):
        if getattr(manifest, counts):
            details[counts] = manifest.model_dump(mode="json")[counts]
    rows = sum(splits.values())
    return Result(command="preprocess", output=output, rows=rows, execution=manifest.execution, details=details)


def _run_on_spark(job: "Preprocessing", output: Path, config: SparkConfig, progress: Progress) -> "DatasetManifest":
    from cluster.ray_session import all_nodes_see, ray_session
    from cluster.spark_session import spark_session
    from rayrec.preprocessing.spark import SparkEngine

    # Where tasks write: beside the output, or for one at a URI to a folder of this node, unless others do not see it.
    place = place_on_this_node(output).parent
    place.mkdir(parents=True, exist_ok=True)
    with ray_session(progress=progress):
        progress.stage("start Spark on Ray")
        # Executors on other nodes need to see what this process sees; a bucket is seen by all.
        is_seen = all_nodes_see(place)
        shared = job.needs_no_disk and not is_seen
        if shared:
            progress.message(f"Spark writes to {output}, not to a disk of this node")
        elif not is_seen:
            progress.message(f"not all nodes can read {place}, so Spark runs on this node only")
        with spark_session(config, on_all_nodes=is_seen or shared) as spark:
            if (address := spark.sparkContext.uiWebUrl) is not None:
                progress.message(f"Spark's UI: {address}")
            workers = SparkEngine(spark)
            execution = Execution.on_ray(SPARK, workers.parallelism)
            return job.run(workers, progress, shared=shared, execution=execution)


def inputs_by_split(inputs: Iterable[str], *, named: bool) -> dict[str | None, list[str]]:
    """Return the paths by split; those that name no split under None.

    `named`: whether the recipe expects SPLIT=PATH. If not, only the usual names of splits are read as such, since a
    path may contain an equals sign (`year=2014/clicks`).
    """
    paths: dict[str | None, list[str]] = {}
    for text in inputs:
        match = _NAMED.fullmatch(text)
        is_split = match is not None and (named or match["split"] in {"train", "validation", "test"})
        split, path = (match["split"], match["path"]) if match and is_split else (None, text)
        paths.setdefault(split, []).append(path)
    return paths


COMMAND = Command("preprocess", PreprocessRequest, run)

if __name__ == "__main__":
    raise SystemExit(main(COMMAND))
