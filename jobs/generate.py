"""`rayrec generate`: raw data with the real layout, drawn from a known truth."""

from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveInt, ValidationInfo, field_validator

from jobs.entry_point import Job, main
from jobs.request import Request
from jobs.result import Result
from rayrec.common.progress import Progress
from rayrec.storage.location import Folder


class GenerateRequest(Request):
    """Which data to make up, and how much of it."""

    source: Literal["criteo", "movielens", "outbrain"]
    rows: PositiveInt
    output: Folder
    """New folder: the data; for criteo also truth.json with the best reachable AUC, for outbrain with the best MAP."""
    seed: NonNegativeInt = 0
    days: PositiveInt | None = None
    """Write day_0 ... day_N-1, as Criteo Terabyte has them, instead of one file; criteo only."""
    compress: bool = False
    """Write gzip files."""

    @field_validator("days")
    @classmethod
    def _days_are_of_criteo(cls, days: int | None, info: ValidationInfo) -> int | None:
        source = info.data.get("source", "criteo")
        if days is not None and source != "criteo":
            raise ValueError(f"source '{source}' has no files of days; leave it out")
        return days


def run(request: GenerateRequest, progress: Progress) -> Result:
    """Write the data; `details` has what is known about it."""
    write = {"criteo": _criteo, "movielens": _movielens, "outbrain": _outbrain}[request.source]
    details = write(request, progress)
    return Result(command="generate", output=request.output, rows=request.rows, details=details)


def _criteo(request: GenerateRequest, progress: Progress) -> dict[str, Any]:
    """The truth of the click model."""
    from rayrec.sources.criteo.generator import generate

    truth = generate(
        request.output,
        request.rows,
        seed=request.seed,
        days=request.days,
        compress=request.compress,
        progress=progress,
    )
    return {"truth": truth.model_dump(mode="json", exclude={"files", "method"})}


def _movielens(request: GenerateRequest, progress: Progress) -> dict[str, Any]:
    """How many users and items there are."""
    from rayrec.sources.movielens.generator import generate

    made = generate(request.output, request.rows, seed=request.seed, compress=request.compress, progress=progress)
    return {"users": made.users, "items": made.items}


def _outbrain(request: GenerateRequest, progress: Progress) -> dict[str, Any]:
    """The truth of the preferences."""
    from rayrec.sources.outbrain.generator import generate

    truth = generate(request.output, request.rows, seed=request.seed, compress=request.compress, progress=progress)
    return {"truth": truth.model_dump(mode="json", exclude={"method"})}


JOB = Job("generate", GenerateRequest, run)

if __name__ == "__main__":
    raise SystemExit(main(JOB))
