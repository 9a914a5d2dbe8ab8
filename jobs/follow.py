"""`rayrec follow`: takes in files as they land in a folder, and publishes the model that has learned from them."""

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import model_validator

from jobs.command import Command, Result, main
from jobs.pipeline.days import adopt_run, days_of, inputs_of, run_day, unfinished_input
from jobs.pipeline.phases import PipelineRequest
from jobs.run import owned_pipeline
from rayrec.common.errors import ConfigError, PassingError, UserError
from rayrec.common.progress import Progress
from rayrec.inference.folder.versions import versions_in
from rayrec.store.files import remove
from rayrec.store.folders import OutputKind
from rayrec.store.paths import LocalPath

REFUSED_FILE = "refused.jsonl"
_POLL_SECONDS = 0.5
_MOST_BYTES = 2**28
"""Bytes of files that are taken in at once, the oldest first; the others wait for the next round."""
_UNFINISHED = (".tmp", ".part", ".partial", ".inprogress", ".crdownload")


class FollowRequest(PipelineRequest):
    serve: LocalPath
    """Folder of versions to publish to, which `rayrec serve` reads."""
    output: LocalPath = None  # type: ignore[assignment]
    """Folder of the pipeline (docs/daily.md); by default that of --serve with `.days` added."""

    outputs: ClassVar[Mapping[str, OutputKind]] = {"output": "place", "serve": "place"}

    def owns(self, output: Path) -> bool:
        return super().owns(output) or (output.is_dir() and bool(versions_in(output)))

    @model_validator(mode="before")
    @classmethod
    def _output_beside_versions(cls, values: Any) -> Any:
        if values.get("output") is not None or values.get("serve") is None:
            return values
        return {**values, "output": f"{str(values['serve']).rstrip('/')}.days"}

    @property
    def landing(self) -> Path:
        """Folder in which files land. Raises ConfigError unless --input is one that this machine sees."""
        if len(self.input) != 1 or not Path(self.input[0]).is_dir():
            raise ConfigError(f"--input {' '.join(self.input)}: give one local folder to watch")
        return Path(self.input[0]).absolute()


def run(request: FollowRequest, progress: Progress) -> Result:
    """Take in files for ever; every file once, whatever is killed."""
    landing = request.landing
    with owned_pipeline(request):
        adopt_run(request, request.output, request.serve)
        follower = _Follower(request, landing, progress)
        while True:
            if not follower.take():
                time.sleep(_POLL_SECONDS)


class _Follower:
    def __init__(self, request: FollowRequest, landing: Path, progress: Progress) -> None:
        self._request, self._landing, self._progress = request, landing, progress
        self._seen: dict[Path, tuple[int, int]] = {}
        """Bytes and time of change of each file, when it was last looked at."""
        self._taken = set(_taken(request.output))

    def take(self) -> bool:
        """Take in the files that wait, the oldest first; whether there were any."""
        # A day that was begun before a crash goes first, with the same files.
        begun = unfinished_input(self._request.output, self._request.serve)
        if begun is not None:
            self._run(list(map(Path, begun)), waiting=0)
            return True
        files = self._finished()
        if not files:
            self._progress.note(f"waiting for files in {self._landing}")
            return False
        # The oldest files, as many as make a day of bounded size.
        batch: list[Path] = []
        size = 0
        for file in files:
            size += self._seen[file][0]
            if batch and size > _MOST_BYTES:
                break
            batch.append(file)
        self._run(batch, waiting=len(files) - len(batch))
        return True

    def _finished(self) -> list[Path]:
        """Return the files that were not taken in and have not changed since the last look, the oldest first."""
        before, self._seen = self._seen, {}
        for path in self._landing.iterdir():
            if path.name[0] in "._" or path.suffix in _UNFINISHED or str(path) in self._taken or not path.is_file():
                continue
            status = path.stat()
            self._seen[path] = status.st_size, status.st_mtime_ns
        finished = [path for path, state in self._seen.items() if before.get(path) == state and state[0]]
        return sorted(finished, key=lambda path: (self._seen[path][1], path.name))

    def _run(self, files: list[Path], waiting: int) -> None:
        request = self._request.model_copy(update={"input": tuple(map(str, files))})
        is_first = not versions_in(self._request.serve)
        try:
            result = run_day(request, self._request.output, self._request.serve, self._progress)
        except (ConfigError, PassingError):  # a full disk says nothing of the files
            raise
        except UserError as error:
            if is_first:
                raise
            self._refuse(files, error)
            return
        self._taken |= set(map(str, files))
        age = time.time() - max(path.stat().st_mtime for path in files)
        taken = f"{len(files)} files, {result.rows or 0:,} rows"
        self._progress.message(
            f"version {result.details['version']}: {taken}, published {age:.1f} s after the last file arrived; "
            f"{waiting} files are waiting"
        )

    def _refuse(self, files: list[Path], error: UserError) -> None:
        """Leave out what cannot be taken in; files that came together are tried one by one."""
        self._progress.message(f"refused: {error}")
        days = days_of(self._request.output)
        day = days[-1] if days and days[-1].input == tuple(map(str, files)) else None
        if day is not None and day.is_over:
            self._taken |= set(map(str, files))  # the gate refused the model, and the day stands
            return
        if day is not None:
            remove(day.folder)  # no model can be made of it, and it would be tried for ever
        if len(files) == 1:
            with (self._request.output / REFUSED_FILE).open("a") as refused:
                refused.write(json.dumps({"file": str(files[0]), "error": str(error)}) + "\n")
            self._taken.add(str(files[0]))
        else:
            for file in files:
                self._run([file], waiting=0)


def _taken(output: Path) -> Iterator[str]:
    """Yield the files that were taken in or refused before."""
    yield from inputs_of(output)
    refused = output / REFUSED_FILE
    if refused.exists():
        yield from (json.loads(line)["file"] for line in refused.read_text().splitlines())


COMMAND = Command("follow", FollowRequest, run)

if __name__ == "__main__":
    raise SystemExit(main(COMMAND))
