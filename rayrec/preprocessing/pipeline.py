"""From raw files to a dataset folder: one job for sources of examples, one for sources of interactions.

Stages hand rows to each other as Parquet files in a scratch folder, so memory stays flat and a task that runs again
finds its input. Everything lies in an unfinished folder beside the output, which takes the output's name at the end.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rayrec.common.files import new_folder, require_absent
from rayrec.common.progress import Progress, SilentProgress
from rayrec.config import Recipe
from rayrec.config.preprocess import InteractionPreprocessConfig, PreprocessConfig
from rayrec.ingest.dataset import VOCABULARY_FOLDER, Manifest, SourceFile
from rayrec.preprocessing.example_job import ExampleJob
from rayrec.preprocessing.interaction_job import InteractionJob
from rayrec.preprocessing.spark_tasks import no_tasks_left_behind, user_errors
from rayrec.preprocessing.workspace import Workspace, WrittenDataset
from rayrec.sources.files import InputFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCRATCH = ".scratch"


class _Job(Protocol):
    """A checked job."""

    @property
    def files(self) -> tuple[InputFile, ...]:
        """The raw files."""

    def write(self, workspace: Workspace) -> WrittenDataset:
        """Write vocabularies, splits and bad rows. Raises UserError."""


class Preprocessing:
    """A checked job: what can be refused without Spark is refused by the constructor."""

    def __init__(self, recipe: Recipe, inputs: Mapping[str | None, Sequence[str]], output: Path) -> None:
        """`inputs`: paths (file, folder, glob or URI) by split, or all under None where splits do not come as files.

        Raises UserError on inputs, a recipe or an output that cannot work.
        """
        self._recipe = recipe
        self._output = Path(output).absolute()
        require_absent(self._output)
        self._job = _job(recipe, inputs)

    def run(self, spark: "SparkSession", progress: Progress | None = None) -> Manifest:
        """Write the dataset folder. Whatever fails, the output stays as it was. Raises UserError."""
        with user_errors(), new_folder(self._output) as folder, no_tasks_left_behind(spark):
            scratch = folder / _SCRATCH
            scratch.mkdir()
            (folder / VOCABULARY_FOLDER).mkdir()
            written = self._job.write(Workspace(spark, folder, scratch, progress or SilentProgress()))
            shutil.rmtree(scratch)
            written.schema.save(folder)
            manifest = Manifest(
                splits=written.splits,
                rejected=written.rejected,
                sources=_source_files(self._job),
                config=self._recipe.model_dump(mode="json"),
            )
            manifest.save(folder)
            return manifest


def preprocess(
    spark: "SparkSession",
    recipe: Recipe,
    inputs: Mapping[str | None, Sequence[str]],
    output: Path,
    progress: Progress | None = None,
) -> Manifest:
    """Check and run a `Preprocessing` job on a Spark session."""
    return Preprocessing(recipe, inputs, output).run(spark, progress)


def source_files(recipe: Recipe, inputs: Mapping[str | None, Sequence[str]]) -> tuple[SourceFile, ...]:
    """What a dataset's manifest would say of these inputs as they are now. Raises UserError as `Preprocessing` does."""
    return _source_files(_job(recipe, inputs))


def _source_files(job: _Job) -> tuple[SourceFile, ...]:
    return tuple(SourceFile(path=file.name, bytes=file.bytes, modified=file.modified) for file in job.files)


def _job(recipe: Recipe, inputs: Mapping[str | None, Sequence[str]]) -> _Job:
    match recipe.preprocess:
        case PreprocessConfig():
            return ExampleJob(recipe, recipe.preprocess, inputs)
        case InteractionPreprocessConfig():
            return InteractionJob(recipe, recipe.preprocess, inputs)
