"""From raw files to a dataset folder: a job for sources of examples, of interactions, of displays.

Stages hand rows to each other as Parquet files in a scratch folder, so memory stays flat and a task that runs again
finds its input. Everything lies in an unfinished folder beside the output, which takes the output's name at the end.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rayrec.common.errors import DiskFullError, UserError
from rayrec.common.files import new_folder, remove_unfinished_files, require_absent, resumable_folder
from rayrec.common.progress import Progress, SilentProgress
from rayrec.config import Recipe
from rayrec.config.preprocess import DisplayPreprocessConfig, InteractionPreprocessConfig, PreprocessConfig
from rayrec.ingest.dataset import Manifest, SourceFile
from rayrec.preprocessing.displays.job import DisplayJob
from rayrec.preprocessing.example_job import ExampleJob
from rayrec.preprocessing.interaction_job import InteractionJob
from rayrec.preprocessing.spark_tasks import no_tasks_left_behind, user_errors
from rayrec.preprocessing.workspace import Workspace, WrittenDataset
from rayrec.sources.files import InputFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCRATCH = ".scratch"
_STAGES_VERSION = 1
"""Goes up when a stage leaves something else, so that nothing is mixed with what an earlier version left."""


class _Job(Protocol):
    """A checked job."""

    @property
    def files(self) -> tuple[InputFile, ...]:
        """The raw files."""

    @property
    def is_resumable(self) -> bool:
        """Whether `write` goes on from what it finds in the workspace."""

    def write(self, workspace: Workspace) -> WrittenDataset:
        """Write what the dataset holds beside the schema and the manifest. Raises UserError."""


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
        """Write the dataset folder. Whatever fails, the output stays as it was. Raises UserError.

        A resumable job that was killed, or failed for another reason than its inputs, goes on from its last finished
        stage when the same files are preprocessed to the same output by the same recipe.
        """
        progress = progress or SilentProgress()
        with user_errors(), self._unfinished_folder(progress) as folder, no_tasks_left_behind(spark):
            scratch = folder / _SCRATCH
            scratch.mkdir(exist_ok=True)
            written = self._job.write(Workspace(spark, folder, scratch, progress))
            shutil.rmtree(scratch)
            remove_unfinished_files(folder)
            written.schema.save(folder)
            manifest = Manifest(
                splits=written.splits, rejected=written.rejected, sources=self._sources, config=self._resolved
            )
            manifest.save(folder)
            return manifest

    @property
    def _sources(self) -> tuple[SourceFile, ...]:
        return _source_files(self._job)

    @property
    def _resolved(self) -> dict[str, Any]:
        return self._recipe.model_dump(mode="json")

    @contextmanager
    def _unfinished_folder(self, progress: Progress) -> Iterator[Path]:
        if not self._job.is_resumable:
            with new_folder(self._output) as folder:
                yield folder
            return
        with resumable_folder(self._output, self._fingerprint()) as folder:
            if any(folder.iterdir()):
                progress.message(f"{folder}: unfinished work of an earlier run; going on from there")
            try:
                yield folder
            except BaseException as error:
                if isinstance(error, DiskFullError) or not isinstance(error, UserError):
                    progress.message(f"{folder}: keeps the finished stages; the same command goes on from there")
                raise

    def _fingerprint(self) -> str:
        """Tells apart what leads to other files of a stage, or to other places of these."""
        resolved = self._resolved
        del resolved["preprocess"]["spark"]
        content = {
            "version": _STAGES_VERSION,
            "output": str(self._output),
            "sources": [source.model_dump() for source in self._sources],
            **{section: resolved[section] for section in ("source", "preprocess")},
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


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
        case DisplayPreprocessConfig():
            return DisplayJob(recipe.preprocess, inputs)
