"""`rayrec verify`: says what a folder is and what it is made of, and compares its files with their checksums."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any

from jobs.command import Command, Positional, Request, Result, main
from jobs.command.result import describe_outcome
from rayrec.common.errors import UserError
from rayrec.common.machine import available_cpus
from rayrec.common.progress import Progress
from rayrec.store.paths import Folder

if TYPE_CHECKING:
    from rayrec.store.artifact import Manifest, StoredFile

_KINDS = {
    "dataset": "rayrec.ingest.dataset:DatasetManifest",
    "checkpoint": "rayrec.training.run.folder:CheckpointManifest",
    "model": "rayrec.inference.folder.versions:ModelManifest",
    "delta": "rayrec.inference.folder.versions:DeltaManifest",
    "prediction": "rayrec.inference.batch.pool:PredictionManifest",
    "day": "jobs.pipeline.days:DayManifest",
}
"""The class of each kind's manifest, by name: to verify a dataset loads no torch."""
_SHOWN = 12
"""Characters of an id that people are shown."""


class VerifyRequest(Request):
    folder: Annotated[Folder, Positional()]
    """Folder with a manifest.json, such as a dataset's."""


def run(request: VerifyRequest, progress: Progress) -> Result:
    """Read all files; `rows` are those of a dataset. Raises UserError if a file is missing or was changed.

    `details` has kind, id, the numbers of files and bytes, and what it is made of, by role: id, folder, whether it is
    still found there, and then what that is made of.
    """
    from rayrec.store.artifact import describe_parents, stored_file, wrong_size
    from rayrec.store.files import sizes_in

    folder = request.folder
    manifest = load_manifest(folder)
    files, sizes = manifest.every_file, sizes_in(folder)

    def check(file: "StoredFile") -> str | None:
        wrong = wrong_size(folder, file, sizes)
        if wrong is None and file.sha256 is not None and stored_file(folder, file.path).sha256 != file.sha256:
            wrong = f"{folder / file.path}: content changed since it was written"
        progress.advance(1)
        return wrong

    progress.stage("files", len(files))
    with ThreadPoolExecutor(available_cpus()) as pool:  # computing a hash lets other threads run
        damaged = [wrong for wrong in pool.map(check, files) if wrong is not None]
    for wrong in damaged:
        progress.message(wrong)
    if damaged:
        raise UserError(
            f"{damaged[0]}; {len(damaged):,} of {len(files):,} files are damaged; make the {manifest.kind} again"
        )
    splits = getattr(manifest, "splits", None)
    return Result(
        command="verify",
        rows=None if splits is None else sum(split.rows for split in splits.values()),
        details={
            "kind": manifest.kind,
            "id": manifest.id,
            "made_of": describe_parents(manifest.made_of, folder),
            "files": len(files),
            "bytes": sum(file.bytes for file in files),
        },
    )


def load_manifest(folder: Path) -> "Manifest":
    """Read the manifest in a folder, of whatever kind. Raises UserError if it is absent or of an unknown kind."""
    from rayrec.store.artifact import MANIFEST_FILE, read_manifest

    content = read_manifest(folder)
    if content is None:
        raise UserError(f"{folder}: no {MANIFEST_FILE}, so it is unfinished, or none of rayrec's")
    # One without a known kind is of another version, which any class says.
    kind: type[Manifest] = resolve_name(_KINDS.get(content.get("kind", ""), _KINDS["dataset"]))
    return kind.load(folder)


def describe(result: Result) -> str:
    """Return the outcome, then a line for the artifact and below it one for each that it is made of."""
    details = result.details
    if not details:
        return describe_outcome(result)
    return "\n".join([
        describe_outcome(result),
        f"  {details['kind']} {details['id'][:_SHOWN]}: {details['files']:,} files, {details['bytes']:,} bytes",
        *_described(details["made_of"], "    "),
    ])  # fmt: skip


def _described(made_of: Mapping[str, Any], indent: str) -> Iterator[str]:
    for role, parent in made_of.items():
        gone = "" if parent["found"] else ", which is no longer there"
        yield f"{indent}{role} {parent['id'][:_SHOWN]}: {parent['folder']}{gone}"
        yield from _described(parent.get("made_of", {}), f"{indent}  ")


COMMAND = Command("verify", VerifyRequest, run, describe)

if __name__ == "__main__":
    raise SystemExit(main(COMMAND))
