"""`rayrec predict`: scores a file or folder, or recommends items to every user."""

import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PositiveInt

from jobs.command import Command, PathText, Positional, Result, describe_result, main
from jobs.command.placement import PlacedRequest, place_scoring
from jobs.evaluate import part_of_split
from jobs.export import exported, read_schema
from jobs.stored_model import measurable, scoring_pool, stored_model
from rayrec.common.errors import ConfigError
from rayrec.common.progress import Progress
from rayrec.config.evaluate import InferencePrecision
from rayrec.store.paths import Folder, to_path


class PredictRequest(PlacedRequest):
    model: Annotated[Folder, Positional("RUN|MODEL")]
    """Run folder, model folder, or its URI."""
    output: Folder
    """New folder for scores/ and rejected/ (unusable raw rows), or recommendations/."""
    input: PathText | None = None
    """Dataset folder or its URI; with --raw a file, folder, glob or URI of raw rows."""
    raw: bool = False
    """Read raw rows, not a dataset folder."""
    split: str = "test"
    """Split of the dataset."""
    rows: PositiveInt | None = None
    """Number of rows to score, from the start; by default all."""
    max_rejected_fraction: float | None = Field(None, ge=0.0, le=1.0)
    """Largest share of raw rows that may stay without a score; by default that of the recipe."""
    precision: InferencePrecision = "fp32"
    """Arithmetic of the dense network; the result says how far bf16 and fp16 move the scores."""
    top_k: PositiveInt | None = None
    """Number of new items to recommend to each user, instead of scores; takes no input."""

    def check(self) -> None:
        if self.input is None and self.top_k is None:
            raise ConfigError("input: missing; give what to score, or --top-k to recommend items to every user")
        if self.rows is not None and self.top_k is not None:
            raise ConfigError("--rows: --top-k recommends to every user and reads no rows; leave one of them out")
        if self.precision != "fp32" and self.top_k is not None:
            raise ConfigError("--precision: --top-k computes in float32; leave one of them out")
        if self.max_rejected_fraction is not None and not self.raw:
            raise ConfigError("--max-rejected-fraction: only for raw rows; add --raw, or leave it out")

    @property
    def dataset(self) -> Path | None:
        """Dataset folder, if the input is one."""
        return None if self.input is None or self.raw else to_path(self.input)


def run(request: PredictRequest, progress: Progress) -> Result:
    """Score every row in the order of the input; `rows` counts those scored.

    Of raw rows, `details.rejected` counts those without a score by reason, `details.unknown` has by column how many
    values there are and how many of them the model does not know, and `details.unread` the columns of the files that
    the recipe does not know. `details.rows_per_second` counts the rows that were read, and the start of workers;
    `details.part` says that --rows left rows out, as far as it is known.
    """
    from rayrec.ingest.dataset import Dataset
    from rayrec.store.artifact import kind_of

    if request.top_k is not None:
        return _recommend(request, request.top_k, progress)
    assert request.input is not None, "the request was checked"
    if request.dataset is not None and kind_of(request.dataset) != "dataset":
        raise ConfigError(f"--input {request.input}: not a dataset folder; add --raw for raw rows")
    from rayrec.raw.input_files import list_inputs

    # How much there is to score decides where it is done.
    source, notes = request.model, list[str]()
    if request.dataset is not None:
        source, notes = measurable(request.model, request.dataset)
    recipe, schema = read_schema(source)
    if request.dataset is not None:
        dataset = Dataset.open(request.dataset)
        schema.require_same_features(dataset.schema, dataset.folder)
        part = dataset.head(request.split, request.rows)
        place = place_scoring("predict", request, progress, rows=part.split(request.split).rows)
    else:
        raw_bytes = sum(file.bytes for file in list_inputs([request.input]))
        place = place_scoring("predict", request, progress, rows=request.rows, raw_bytes=raw_bytes)
    # Imported after the checks: a mistake is answered at once, not when torch has been loaded.
    from rayrec.inference.batch.prediction import predict_dataset, predict_raw
    from rayrec.sources.registry import source_of

    # Score encoded rows, or raw ones as the recipe's source reads them.
    with stored_model(source) as model:
        began = time.perf_counter()
        with scoring_pool(place, progress, precision=request.precision) as (pool, execution):
            if request.dataset is not None:
                counts = predict_dataset(model, part, request.split, request.output, pool, progress)
            else:
                reader = partial(source_of(recipe.source.kind).reader, recipe.source, model.schema)
                most = request.max_rejected_fraction
                most = recipe.preprocess.max_rejected_fraction if most is None else most
                counts = predict_raw(
                    model,
                    reader,
                    [request.input],
                    request.output,
                    pool,
                    progress,
                    rows=request.rows,
                    max_rejected=most,
                )
        seconds = time.perf_counter() - began
    # How fast it was, and what could not be scored as it should.
    read = counts.rows + sum(counts.rejected.values())
    details: dict[str, Any] = {"rows_per_second": read / seconds}
    if request.dataset is not None:
        details |= {"split": request.split, **part_of_split(dataset, request.split, counts.rows)}
        details["notes"] = [*notes, *details.get("notes", ())]
    else:
        unknown = {column: asdict(found) for column, found in counts.unknown.items()}
        details |= {"rejected": counts.rejected, "unknown": unknown, "unread": counts.unread}
        details |= {"warnings": list(counts.warnings)} if counts.warnings else {}
        if read == request.rows:
            details |= {"part": {"rows": read}, "notes": [f"rows after the first {read:,} were not read"]}
    if request.precision != "fp32":
        details |= counts.amp_error.metrics()
    return Result(command="predict", output=request.output, rows=counts.rows, execution=execution, details=details)


def _recommend(request: PredictRequest, k: int, progress: Progress) -> Result:
    if request.input is not None:
        raise ConfigError("--top-k recommends to every user of the model and reads no --input; leave one of them out")
    from rayrec.inference.batch.prediction import recommend_to_all
    from rayrec.inference.recommender import load_recommender

    with exported(request.model) as folder:
        recommender = load_recommender(folder)
        users = len(recommender.user_ids)
        place = place_scoring("predict", request, progress, pairs=users * recommender.num_items)
        with scoring_pool(place, progress) as (pool, execution):
            recommend_to_all(recommender, k, request.output, pool, progress)
    details: dict[str, Any] = {"top_k": k}
    if (rank := recommender.settings.rank) is not None:
        details["notes"] = [
            f"lists are of the model itself; '{rank}' ranks them over HTTP alone (serve.recommend.rank)"
        ]
    return Result(command="predict", output=request.output, rows=users, execution=execution, details=details)


def describe(result: Result) -> str:
    """Return the outcome; of raw rows, what has no score and what the model does not know."""
    from rayrec.inference.unknown_values import UnknownValues
    from rayrec.ingest.dataset import REJECTED_FOLDER
    from rayrec.raw.rows import LEFT_OUT, describe_reasons

    lines, details = [describe_result(result)], result.details
    if rejected := {reason: n for reason, n in details.get("rejected", {}).items() if reason not in LEFT_OUT}:
        assert result.rows is not None and result.output is not None
        lost = sum(rejected.values())
        folder = f"{result.output}/{REJECTED_FOLDER}"
        lines.append(
            f"{lost:,} of {result.rows + lost:,} rows have no score ({describe_reasons(rejected)}); see {folder}"
        )
    for column, counts in details.get("unknown", {}).items():
        found = UnknownValues(**counts)
        lines += [found.described(column)] if found.are_most else []
    lines += [f"column '{name}': ignored, because the recipe does not name it" for name in details.get("unread", ())]
    return "\n".join(lines)


COMMAND = Command("predict", PredictRequest, run, describe)

if __name__ == "__main__":
    raise SystemExit(main(COMMAND))
