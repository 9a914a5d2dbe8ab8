"""`rayrec generate`: raw data with the real layout, drawn from a known truth."""

from pathlib import Path
from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from jobs.entry_point import Job, main
from jobs.result import Result
from rayrec.common.progress import Progress
from rayrec.config import Config


class GenerateRequest(Config):
    """Which data to make up, and how much of it."""

    source: Literal["criteo"]
    rows: PositiveInt
    output: Path
    """New folder: the data, and truth.json with the best reachable AUC."""
    seed: NonNegativeInt = 0
    days: PositiveInt | None = None
    """Write day_0 ... day_N-1, as Criteo Terabyte has them, instead of one file."""
    compress: bool = False
    """Write gzip files."""


def run(request: GenerateRequest, progress: Progress) -> Result:
    """Write the data; `details` has the truth of the click model."""
    from rayrec.sources.criteo.generator import generate

    truth = generate(
        request.output,
        request.rows,
        seed=request.seed,
        days=request.days,
        compress=request.compress,
        progress=progress,
    )
    return Result(
        command="generate",
        output=request.output,
        rows=request.rows,
        details={"truth": truth.model_dump(mode="json", exclude={"files", "method"})},
    )


JOB = Job("generate", GenerateRequest, run)

if __name__ == "__main__":
    raise SystemExit(main(JOB))
