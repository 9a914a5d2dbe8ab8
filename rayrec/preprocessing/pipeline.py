"""Turns raw files into a dataset folder with the job of any source.

Stages hand rows to each other as Parquet files in a scratch folder, so memory stays flat and a task that runs again
finds its input. Everything lies in an unfinished folder beside the output, on a disk that all nodes see or at the URI
of the output, which takes the output's name at the end; a job that was killed continues with the files there.
"""

import hashlib
import json
from functools import partial
from pathlib import Path, PurePath
from typing import Any, Protocol

from rayrec.common.machine import available_cpus
from rayrec.common.progress import Progress, SilentProgress
from rayrec.config.execution import Execution
from rayrec.ingest.dataset import Dataset, DatasetManifest, SourceFile
from rayrec.preprocessing.engine import Engine
from rayrec.preprocessing.extension import facts_of, source_file
from rayrec.preprocessing.workspace import Workspace, WrittenDataset, no_tasks_left_behind, run_brief_tasks, user_errors
from rayrec.raw.input_files import InputFile
from rayrec.recipes import Recipe
from rayrec.store.artifact import MANIFEST_FILE, read_manifest, stored_file
from rayrec.store.files import files_below, is_output
from rayrec.store.folders import new_folder, unfinished_work
from rayrec.store.paths import is_uri, place_on_this_node

_SCRATCH = ".scratch"
_MOST_CPUS, _MOST_TEXT = 8, 2**32
"""CPUs of this machine up to which its threads are always sooner done than Spark, and bytes of raw text on any machine.

A sixth of the threads' work holds Python's lock, so they use six CPUs at most. Spark uses all, but takes half as much
time again for the same rows, and 12 s to start: with 16 CPUs, both take 20 s for 4 GiB.
"""
_TEXT_OF_PACKED = 4
"""Bytes of text that a byte of a packed or Parquet file is taken for."""
_STAGES_VERSION = 8
"""Goes up when the files of a stage change, so that they are not mixed with those of an earlier version."""


class PreprocessingJob(Protocol):
    """Turns the raw files of a source into a dataset; its inputs and config were checked."""

    @property
    def files(self) -> tuple[InputFile, ...]:
        """All raw files that are read."""

    def write(self, workspace: Workspace) -> WrittenDataset:
        """Write everything in the dataset but the schema and the manifest. Raises UserError.

        After a kill the workspace holds what was written before; `rayrec.preprocessing.workspace.Stages` tells what of
        it is whole.
        """


class Preprocessing:
    """A checked job: what can be refused without Spark is refused by the constructor."""

    def __init__(self, job: PreprocessingJob, recipe: Recipe, output: Path, parent: Dataset | None = None) -> None:
        """`job` comes from the recipe's source; with `parent`, it extends that."""
        self._parent = parent
        self._resolved = recipe.model_dump(mode="json")
        self._output = output.absolute()
        self._job = job

    @property
    def needs_no_disk(self) -> bool:
        """Return whether the output and all raw files are at URIs, which are the same on each node."""
        return all(map(is_uri, (str(self._output), *(file.name for file in self._job.files))))

    @property
    def bytes(self) -> int:
        """Return the size of all raw files."""
        return sum(file.bytes for file in self._job.files)

    @property
    def suits_threads(self) -> bool:
        """Tell if threads of this process are done with the work before Spark on this machine would be."""
        text = sum(file.bytes * (_TEXT_OF_PACKED if _is_dense(file) else 1) for file in self._job.files)
        return available_cpus() <= _MOST_CPUS or text <= _MOST_TEXT

    def run(
        self,
        engine: Engine,
        progress: Progress | None = None,
        *,
        shared: bool = False,
        execution: Execution | None = None,
    ) -> DatasetManifest:
        """Write the dataset folder. Whatever fails, the output stays as it was. Raises UserError.

        A job that was killed, or failed for another reason than its inputs, continues after its last finished stage
        when the same files are preprocessed to the same output by the same recipe. `shared`: the output is at a URI,
        and so is what tasks write, as the executors share no disk. `execution`: what the manifest says of `engine`.
        """
        progress = progress or SilentProgress()
        settings = self._settings()
        # Work that was begun at a URI is ended there, by this process or another.
        shared = shared or settings in unfinished_work(self._output)
        with (
            user_errors(),
            new_folder(self._output, settings, shared=shared) as folder,
            no_tasks_left_behind(engine),
        ):
            scratch = folder / _SCRATCH
            begun = (name for name in files_below(folder) if name != MANIFEST_FILE)
            if any(is_output(name) or PurePath(name).parts[0] == _SCRATCH for name in begun):
                progress.message(f"{folder}: continuing unfinished work of an earlier run")
            # Where the manifest is there, all work was done before a kill.
            if read_manifest(folder) is None:
                place_on_this_node(scratch).mkdir(parents=True, exist_ok=True)
                self._write(Workspace(engine.within(scratch), folder, scratch, progress), execution)
        return DatasetManifest.load(self._output)

    def _write(self, workspace: Workspace, execution: Execution | None) -> None:
        """Write all files of the dataset; the manifest is the last."""
        folder = workspace.folder
        written = self._job.write(workspace)
        written.schema.save(folder)
        parts = {part.path for split in written.splits.values() for part in split.parts}
        parts.add(MANIFEST_FILE)  # at a URI it is there before, as the claim on the folder
        wanted = [name for name in files_below(folder) if is_output(name) and name not in parts]
        manifest = DatasetManifest(
            splits=written.splits,
            files=tuple(run_brief_tasks(workspace.engine, wanted, partial(stored_file, folder))),
            rejected=written.rejected,
            dropped=written.dropped,
            found_keys=written.found_keys,
            known_values=written.known_values,
            warnings=tuple(written.warnings),
            sources=source_files(self._job),
            config=self._resolved,
            times=written.times,
            moment=written.moment,
            execution=execution,
            **({} if self._parent is None else facts_of(self._parent)),
        )
        manifest.save(folder)

    def _settings(self) -> str:
        """Return a hash that differs whenever the files of a stage, or their paths, would differ."""
        sections: dict[str, dict[str, Any]] = {name: self._resolved[name] for name in ("source", "preprocess")}
        sections["preprocess"] = {name: value for name, value in sections["preprocess"].items() if name != "spark"}
        content = {
            "version": _STAGES_VERSION,
            "output": str(self._output),
            "sources": [source.model_dump() for source in source_files(self._job)],
            "parent": None if self._parent is None else self._parent.id,
            **sections,
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def source_files(job: PreprocessingJob) -> tuple[SourceFile, ...]:
    """Return the raw files as a dataset's manifest describes them."""
    return tuple(map(source_file, job.files))


def _is_dense(file: InputFile) -> bool:
    return file.packing is not None or file.is_parquet
