"""`rayrec verify`: compares every file of a dataset folder with the checksums in its manifest."""

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated

from jobs.command import Command, Positional, Request, Result, main
from rayrec.common.errors import UserError
from rayrec.common.machine import available_cpus
from rayrec.common.progress import Progress
from rayrec.store.files import sha256_in
from rayrec.store.paths import Folder

if TYPE_CHECKING:
    from rayrec.ingest.dataset import StoredFile


class VerifyRequest(Request):
    """Compare the files of a dataset with their checksums."""

    folder: Annotated[Folder, Positional()]
    """Dataset folder."""


def run(request: VerifyRequest, progress: Progress) -> Result:
    """Read all files; `rows` are those of the dataset. Raises UserError if a file is missing or was changed."""
    from rayrec.ingest.dataset import Manifest, wrong_size
    from rayrec.store.files import sizes_in

    folder = request.folder
    manifest = Manifest.load(folder)
    files, sizes = manifest.every_file, sizes_in(folder)

    def check(file: "StoredFile") -> str | None:
        path = folder / file.path
        wrong = wrong_size(folder, file, sizes)
        if wrong is None:
            with path.open("rb") as content:
                if sha256_in(content) != file.sha256:
                    wrong = f"{path}: content changed since it was written"
        progress.advance(1)
        return wrong

    progress.stage("files", len(files))
    with ThreadPoolExecutor(available_cpus()) as pool:  # computing a hash lets other threads run
        damaged = [wrong for wrong in pool.map(check, files) if wrong is not None]
    for wrong in damaged:
        progress.message(wrong)
    if damaged:
        raise UserError(f"{damaged[0]}; {len(damaged):,} of {len(files):,} files are damaged; preprocess again")
    return Result(
        command="verify",
        rows=sum(split.rows for split in manifest.splits.values()),
        details={"files": len(files), "bytes": sum(file.bytes for file in files)},
    )


COMMAND = Command("verify", VerifyRequest, run)

if __name__ == "__main__":
    raise SystemExit(main(COMMAND))
