"""`rayrec generate`: raw data with the real layout, drawn from a known truth."""

from typing import Annotated

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveInt

from jobs.command import Command, Positional, Request, Result, main
from rayrec.common.errors import ConfigError
from rayrec.common.plugins import SOURCES
from rayrec.common.progress import Progress
from rayrec.storage.location import Folder


class GenerateRequest(Request):
    """Write data with the real layout, drawn from a known truth."""

    source: Annotated[str, AfterValidator(SOURCES.known), Positional("|".join(SOURCES.packages))]
    """Kind of the source whose layout the data have."""
    rows: PositiveInt
    """Rows to write."""
    output: Folder
    """Folder to write, with truth.json if the best reachable metric is known; must not exist."""
    seed: NonNegativeInt = 0
    """Seed of the rows."""
    days: PositiveInt | None = None
    """Number of days to write a file for each, if the source has such files; by default one file."""
    drift: float | None = Field(None, ge=0, le=10)
    """How much values and preferences change from day to day: 1 by default, 0 not at all, 10 at most; with --days."""
    compress: bool = False
    """Write gzip files."""

    def check(self) -> None:
        if self.drift is not None and self.days is None:
            raise ConfigError("drift: without days nothing changes; add --days N")


def run(request: GenerateRequest, progress: Progress) -> Result:
    """Write the data; `details` has what is known about it."""
    from rayrec.sources.registry import source_of

    source = source_of(request.source)
    if request.days is not None and not (source.generated and source.generated.has_days):
        raise ConfigError(f"days: source '{request.source}' has no files of days; leave it out")
    details = source.generate(
        request.output,
        request.rows,
        seed=request.seed,
        days=request.days,
        drift=1.0 if request.drift is None else request.drift,
        compress=request.compress,
        progress=progress,
    )
    return Result(command="generate", output=request.output, rows=request.rows, details=details)


COMMAND = Command("generate", GenerateRequest, run)

if __name__ == "__main__":
    raise SystemExit(main(COMMAND))
