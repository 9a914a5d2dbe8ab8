"""Turns raw files into a dataset folder: what every source's job has around it.

Stages hand rows to each other as Parquet files in a scratch folder, so memory stays flat and a task that runs again
finds its input. Everything lies in an unfinished folder beside the output, which takes the output's name at the end.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rayrec.common.errors import DiskFullError, UserError
from rayrec.common.files import new_folder, remove_unfinished_files, require_absent, resumable_folder
from rayrec.common.progress import Progress, SilentProgress
from rayrec.ingest.dataset import Manifest, SourceFile
from rayrec.preprocessing.spark_tasks import no_tasks_left_behind, user_errors
from rayrec.preprocessing.workspace import Workspace, WrittenDataset
from rayrec.raw.files import InputFile
from rayrec.recipes import Recipe

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCRATCH = ".scratch"
_STAGES_VERSION = 1
"""Goes up when the files of a stage change, so that they are not mixed with those of an earlier version."""


class PreprocessingJob(Protocol):
    """Turns the raw files of a source into a dataset; its inputs and config were checked."""

    @property
    def files(self) -> tuple[InputFile, ...]:
        """The raw files."""

    @property
    def is_resumable(self) -> bool:
        """Whether `write` goes on from what it finds in the workspace."""

    def write(self, workspace: Workspace) -> WrittenDataset:
        """Write everything in the dataset but the schema and the manifest. Raises UserError."""


class Preprocessing:
    """A checked job: what can be refused without Spark is refused by the constructor."""

    def __init__(self, job: PreprocessingJob, recipe: Recipe, output: Path) -> None:
        """`job` comes from the recipe's source. Raises UserError if the output exists."""
        self._resolved = recipe.model_dump(mode="json")
        self._output = Path(output).absolute()
        require_absent(self._output)
        self._job = job

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
                splits=written.splits, rejected=written.rejected, sources=source_files(self._job), config=self._resolved
            )
            manifest.save(folder)
            return manifest

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
        """Differs whenever the files of a stage, or their paths, would differ."""
        settings: dict[str, dict[str, Any]] = {name: self._resolved[name] for name in ("source", "preprocess")}
        settings["preprocess"] = {name: value for name, value in settings["preprocess"].items() if name != "spark"}
        content = {
            "version": _STAGES_VERSION,
            "output": str(self._output),
            "sources": [source.model_dump() for source in source_files(self._job)],
            **settings,
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def source_files(job: PreprocessingJob) -> tuple[SourceFile, ...]:
    """The raw files as a dataset's manifest describes them."""
    return tuple(SourceFile(path=file.name, bytes=file.bytes, modified=file.modified) for file in job.files)
