"""Scores of whole files, and the best items of every user, by a pool of predictors; in the order of rows or users.

OUTPUT/scores/part-00000.parquet ...    OUTPUT/rejected/part-00000.parquet ... (raw rows that cannot be used)
OUTPUT/recommendations/part-00000.parquet ...    OUTPUT/manifest.json (written last)
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.common.progress import Progress
from rayrec.inference.batch.pool import (
    ROWS_PER_PART,
    NumberLines,
    ScoringPool,
    finish_prediction,
    new_part,
    part_path,
    require_output,
)
from rayrec.inference.batch.scoring import ScoredBatches, grouped, rows_of_parts, score_split
from rayrec.inference.raw_rows import FindRows, RawRows
from rayrec.inference.recommender import Recommender, load_recommender
from rayrec.inference.scorer import StoredModel
from rayrec.inference.unknown_values import UnknownValues
from rayrec.ingest.dataset import REJECTED_FOLDER, Dataset
from rayrec.models.common.precision import AmpError
from rayrec.raw.input_files import Chunk, InputFile, list_inputs, plan_chunks
from rayrec.raw.rows import LEFT_OUT, REJECTED_SCHEMA, ExampleReader, Reason, describe_reasons, describe_rejected
from rayrec.store.folders import new_folder
from rayrec.store.parquet import WrittenFile, new_parquet_files

SCORES_FOLDER = "scores"
_Pieces = list[dict[str, Any]]
_CHUNK_BYTES = 2**26
_CHUNKS_FOLDER = ".chunks"
"""Holds the rows of each chunk, until it is known in which lines of its file the chunk lies."""
_LABEL_AND_SCORE = [pa.field("label", pa.float32()), pa.field("score", pa.float32(), nullable=False)]
_RAW_SCORES = pa.schema(
    [pa.field("file", pa.string(), nullable=False), pa.field("line", pa.int64(), nullable=False), *_LABEL_AND_SCORE]
)
_FOLDERS = {SCORES_FOLDER: _RAW_SCORES, REJECTED_FOLDER: REJECTED_SCHEMA}
RECOMMENDATIONS_FOLDER = "recommendations"
_SCORES_AT_ONCE = 4_194_304
_COLUMNS = pa.schema(
    [
        pa.field("user", pa.string(), nullable=False),
        pa.field("rank", pa.int32(), nullable=False),
        pa.field("item", pa.string(), nullable=False),
        pa.field("score", pa.float32(), nullable=False),
    ]
)


@dataclass(frozen=True)
class PredictionCounts:
    """The numbers of rows of a batch prediction."""

    rows: int
    """Rows scored."""
    rejected: dict[str, int]
    """Rows set aside, by reason, with those that are no data (`LEFT_OUT`)."""
    unknown: dict[str, UnknownValues]
    """Counts by raw column: the values and those among them that the model does not know."""
    amp_error: AmpError
    """Error of mixed precision in the scores of some of the rows."""
    unread: tuple[str, ...] = ()
    """Columns of the files that the recipe does not know."""
    warnings: tuple[str, ...] = ()
    """Warnings about the files."""


@dataclass(frozen=True)
class WriteScores:
    """A sink that writes the rows of a task as a part of the scores."""

    folder: Path
    """The output, unfinished."""
    ids: tuple[str, ...]
    """Columns (int64) that stand after the row's position."""
    label: str

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the rows that are written."""
        return (*self.ids, self.label)

    def __call__(self, number: int, first: int, batches: ScoredBatches) -> None:
        ids = [pa.field(name, pa.int64(), nullable=False) for name in ("row", *self.ids)]
        schema = pa.schema([*ids, *_LABEL_AND_SCORE])
        row = first
        with new_part(part_path(self.folder / SCORES_FOLDER, number), schema) as write:
            for rows, logits in batches:
                scores = torch.from_numpy(logits).sigmoid().numpy()
                columns = [np.arange(row, row + len(rows)), *(rows.column(name) for name in self.columns), scores]
                write(pa.table(columns, schema=schema))
                row += len(rows)


def predict_dataset(
    model: StoredModel, dataset: Dataset, split: str, output: Path, pool: ScoringPool, progress: Progress
) -> PredictionCounts:
    """Score a split of a dataset folder that was encoded as the model's training data was.

    `output` is written whole or not at all. `scores/` has columns row (int64, position in the split), label (float32),
    score (float32), in the split's order. If the dataset's schema names candidates, the columns of its groups and
    candidates (int64) stand after row.
    """
    schema, rows = dataset.schema, dataset.split(split).rows
    ids = (schema.group, schema.candidate) if schema.group and schema.candidate else ()
    errors = [AmpError()]
    progress.stage(f"predict {split}", rows)
    with new_folder(output, shared=True) as folder:
        write = WriteScores(folder, ids, schema.label)
        for task in score_split(model, dataset, split, write, pool, write.columns):
            progress.advance(task.rows)
            errors.append(task.amp_error)
        finish_prediction(folder, model, dataset)
    return PredictionCounts(rows, {}, {}, AmpError.of_all(errors))


def predict_raw(
    model: StoredModel,
    open_reader: Callable[[Sequence[InputFile]], ExampleReader],
    paths: list[str],
    output: Path,
    pool: ScoringPool,
    progress: Progress,
    *,
    rows: int | None = None,
    max_rejected: float,
) -> PredictionCounts:
    """Score raw files, or their first `rows` rows, with or without labels.

    `output` is written whole or not at all. `open_reader` opens the files with the reader of the model's source.

    `scores/` has columns file, line (int64, from 1), label (float32, null if there is none that can be read), score
    (float32), in the order of the input; `rejected/` has the rows that cannot be used, with the columns of
    `REJECTED_SCHEMA`. Raises UserError if a path gives no file, if a larger share of the rows than `max_rejected`
    cannot be used, or if none can.
    """
    # Chunks of the files are scored side by side; in which lines of its file a chunk lies shows when all before it are
    # read, so their rows are written into files of their own first.
    files = list_inputs(paths)
    chunks = plan_chunks(files, _CHUNK_BYTES)
    tasks = [[numbered] for numbered in enumerate(chunks)]
    if rows is not None:
        # Which rows of a chunk are among the first, only the chunks before it tell.
        tasks = [[*enumerate(chunks)]]
    progress.stage("predict")
    reader = open_reader(files)
    reports: list[_ChunkReport] = []
    rejected = Counter[str]()
    unknown: dict[str, UnknownValues] = {}
    with new_folder(output, shared=True) as folder:
        arguments = {"model": model, "output": folder, "reader": reader, "pool": pool, "rows": rows}
        for done in pool.run(tasks, _ScoreChunks, arguments):
            for report in done:
                reports.append(report)
                rejected.update(report.rejected)
                _add(unknown, report.unknown)
                progress.advance(report.lines)
        # Too many rows without a score, or none with one, are an error: the first of them is shown.
        before = _lines_before(chunks[: len(reports)], [report.lines for report in reports])
        scored = sum(file.rows for report in reports for file in report.files[SCORES_FOLDER])
        lost = sum(count for reason, count in rejected.items() if reason not in LEFT_OUT)
        if not scored or lost > max_rejected * (scored + lost):
            reasons = describe_reasons(rejected) or "no rows"
            bad = ((report.first_rejected, lines) for report, lines in zip(reports, before, strict=True))
            first = next(({**row, "line": row["line"] + lines} for row, lines in bad if row is not None), None)
            example = "" if first is None else f"; the first is {describe_rejected(first)}"
            if not scored:
                kind = f"give files of kind '{model.recipe.source.kind}'"
                raise UserError(f"{', '.join(paths)}: nothing to score ({reasons}); {kind}{example}")
            raise UserError(
                f"{lost:,} of {scored + lost:,} rows have no score ({reasons}), more than "
                f"--max-rejected-fraction ({max_rejected:g}){example}; fix them, or raise it "
                "to keep the scores of the others"
            )
        # Join the chunks into parts, with the lines as the files have them.
        progress.stage("number lines", scored + rejected.total())
        numbering = _numbering(folder, before, [report.files for report in reports])
        for numbered in pool.run(numbering, NumberLines, {}):
            progress.advance(numbered)
        finish_prediction(folder, model)
    # Columns that nobody asked for may be a mistake in their names.
    known = RawRows(model.schema, model.recipe.unneeded_columns)
    names = (name for name in reader.file_columns if name not in known.columns.names)
    unread = tuple(name for name in names if not known.is_unneeded(name))
    amp_error = AmpError.of_all([AmpError(), *(report.amp_error for report in reports)])
    return PredictionCounts(scored, dict(rejected), unknown, amp_error, unread, tuple(reader.warnings))


def _add(counts: dict[str, UnknownValues], more: Mapping[str, UnknownValues]) -> None:
    """Add up counts by column, in place."""
    for column, found in more.items():
        counts[column] = counts.get(column, UnknownValues()) + found


def _lines_before(chunks: Sequence[Chunk], lines: Sequence[int]) -> list[int]:
    """Return, for each chunk, the number of lines of its file before it."""
    before = Counter[int]()
    result = []
    for chunk, of_chunk in zip(chunks, lines, strict=True):
        result.append(before[chunk.file_index])
        before[chunk.file_index] += of_chunk
    return result


def _numbering(folder: Path, before: Sequence[int], written: Sequence[dict[str, list[WrittenFile]]]) -> list[_Pieces]:
    """Return the tasks of `NumberLines` that make the parts, from what was written for each chunk."""
    tasks = []
    for name in _FOLDERS:
        files = [(file, lines) for lines, files in zip(before, written, strict=True) for file in files[name]]
        for number, places in enumerate(grouped([file.rows for file, _ in files], ROWS_PER_PART)):
            target = str(part_path(folder / name, number))
            pieces = [files[place] for place in places]
            rows = [{"source": str(f.path), "rows": f.rows, "before": lines, "target": target} for f, lines in pieces]
            tasks.append(rows)
    return tasks


@dataclass(frozen=True)
class _ChunkReport:
    """Findings of a worker in a chunk of a raw file."""

    lines: int
    files: dict[str, list[WrittenFile]]
    """What it wrote, by folder; lines count from the chunk's first."""
    rejected: dict[str, int]
    """Bad rows by reason."""
    first_rejected: dict[str, Any] | None
    """The first bad row as `REJECTED_SCHEMA` has it; its line counts from the chunk's first."""
    unknown: dict[str, UnknownValues]
    amp_error: AmpError


class _ScoreChunks:
    """A worker of the pool: parses a chunk of a raw file, scores its good rows and sets the bad ones aside."""

    def __init__(
        self, model: StoredModel, output: Path, reader: ExampleReader, pool: ScoringPool, rows: int | None
    ) -> None:
        """`rows`: how many are to be scored or set aside, by all calls together; None for all."""
        self._predictor, self._left = pool.predictor(model), rows
        self._output, self._reader = output, reader
        raw_rows = self._predictor.raw_rows
        self._features = frozenset(raw_rows.columns.names)
        self._refused: dict[Reason, FindRows] = {
            Reason.PAST: raw_rows.too_old,
            Reason.BROUGHT: raw_rows.bring_wrong_events,
        }
        """Functions that find rows which can be read but not completed, by the reason for setting these aside."""

    def __call__(self, chunks: Sequence[tuple[int, Chunk]]) -> list[_ChunkReport]:
        return [self._score(number, chunk) for number, chunk in chunks if self._left != 0]

    def _score(self, number: int, chunk: Chunk) -> _ChunkReport:
        require_output(self._output)
        folder = self._output / _CHUNKS_FOLDER
        new_files = partial(new_parquet_files, most_rows=ROWS_PER_PART)
        lines, rejected = 0, Counter[str]()
        first: dict[str, Any] | None = None
        unknown: dict[str, UnknownValues] = {}
        errors = [AmpError()]
        with (
            new_files(folder / f"scores-{number:06d}", _RAW_SCORES) as (write, scores),
            new_files(folder / f"rejected-{number:06d}", REJECTED_SCHEMA) as (set_aside, bad),
        ):
            for whole in self._reader.read(chunk):
                # The first rows alone, if so many are wanted.
                block = whole if self._left is None else whole.head(self._left)
                if self._left is not None:
                    self._left -= len(block.lines) + len(block.rejected)
                lost, rows, numbers = block.rejected, block.rows, block.lines
                for reason, find in self._refused.items():
                    if (wrong := self._wrong(rows, find)).any():
                        refused = _set_aside(rows.filter(pa.array(wrong)), chunk.file.name, numbers[wrong], reason)
                        lost = pa.concat_tables([lost, refused])
                        rows, numbers = rows.filter(pa.array(~wrong)), numbers[~wrong]
                if rows.num_rows:
                    batch, found, error = self._scored(rows, numbers, chunk.file.name)
                    _add(unknown, found)
                    errors.append(error)
                    # A score that is no number sets its row aside, as a value that cannot be read does.
                    has_score = pc.is_finite(batch["score"])
                    write(batch.filter(has_score))
                    if has_score.true_count < len(batch):
                        without = pc.invert(has_score)
                        places = batch["line"].filter(without).to_numpy()
                        failed = _set_aside(rows.filter(without), chunk.file.name, places, Reason.SCORE)
                        lost = pa.concat_tables([lost, failed])
                lost = lost.sort_by("line").combine_chunks()
                for batch in lost.to_batches():
                    set_aside(batch)
                reasons = lost["reason"].to_pylist()
                if first is None and not LEFT_OUT.issuperset(reasons):
                    first = next(row for row in lost.to_pylist() if row["reason"] not in LEFT_OUT)
                rejected.update(reasons)
                lines += block.num_lines
                if self._left == 0:
                    break
        written = {SCORES_FOLDER: scores, REJECTED_FOLDER: bad}
        return _ChunkReport(lines, written, dict(rejected), first, unknown, AmpError.of_all(errors))

    def _wrong(self, rows: pa.RecordBatch, find: FindRows) -> NDArray[np.bool_]:
        types, names = self._predictor.raw_rows.columns, rows.schema.names

        def column(name: str) -> pa.Array:
            return rows[name] if name in names else pa.nulls(len(rows), types.field(name).type)

        return find(column, len(rows))

    def _scored(
        self, rows: pa.RecordBatch, lines: NDArray[np.int64], file: str
    ) -> tuple[pa.RecordBatch, dict[str, UnknownValues], AmpError]:
        """Return the rows of `scores/`, the values that the model does not know, and the error of mixed precision."""
        predictor = self._predictor
        raw = predictor.raw_rows.from_batch(rows.select([name for name in rows.schema.names if name in self._features]))
        encoded = predictor.encode(raw)
        label = self._reader.label
        labels = rows[label] if label in rows.schema.names else pa.nulls(len(rows), pa.float32())
        files = pa.array([file]).take(pa.array(np.zeros(len(rows), np.int32)))
        columns = [files, pa.array(lines), labels.cast(pa.float32()), pa.array(predictor.predict_encoded(encoded))]
        scores = pa.RecordBatch.from_arrays(columns, schema=_RAW_SCORES)
        return scores, predictor.count_unknown(raw, encoded), predictor.amp_error(encoded)


def _set_aside(rows: pa.RecordBatch, file: str, lines: NDArray[np.int64], reason: Reason) -> pa.Table:
    """Return the rows of `rejected/` for rows that could be read, but that no score is known for."""
    texts = [str(row) for row in rows.to_pylist()]
    nothing = pa.nulls(len(texts), pa.string())
    columns = [[file] * len(texts), lines, [str(reason)] * len(texts), nothing, nothing, texts]
    return pa.table(columns, schema=REJECTED_SCHEMA)


def recommend_to_all(recommender: Recommender, k: int, output: Path, pool: ScoringPool, progress: Progress) -> None:
    """Write the `k` best items of each user; the workers open the recommender's folder.

    The columns are user, rank (int32, from 1), item and score (float32): k rows a user, fewer if no more items are new
    to the user. `output` is written whole or not at all.
    """
    rows_a_user = max(1, min(k, recommender.num_items))
    users = len(recommender.user_ids)
    users_per_part = max(1, rows_of_parts(users * rows_a_user) // rows_a_user)
    starts = range(0, users, users_per_part)
    ends = [min(start + users_per_part, users) for start in starts]
    tasks = [(part, start, end) for part, (start, end) in enumerate(zip(starts, ends, strict=True))]
    progress.stage("recommend", users)
    with new_folder(output, shared=True) as temporary:
        arguments = {"folder": recommender.predictor.folder, "k": k, "output": temporary}
        for ranked in pool.run(tasks, _RecommendBlocks, arguments):
            progress.advance(ranked)
        finish_prediction(temporary, recommender.predictor.model)


class _RecommendBlocks:
    """A worker of the pool: writes the best items of some users as a part."""

    def __init__(self, folder: Path, k: int, output: Path) -> None:
        torch.set_num_threads(1)  # the workers of the pool run in parallel
        self._recommender = load_recommender(folder)
        self._users = self._recommender.user_ids
        self._k, self._output = k, output

    def __call__(self, task: tuple[int, int, int]) -> int:
        part, first, end = task
        users_at_once = max(1, _SCORES_AT_ONCE // max(1, self._recommender.num_items))
        with new_part(part_path(self._output / RECOMMENDATIONS_FOLDER, part), _COLUMNS) as write:
            for start in range(first, end, users_at_once):
                write(self._best(self._users[start : min(start + users_at_once, end)]))
        return end - first

    def _best(self, users: NDArray[np.int64]) -> pa.Table:
        """Return the rows of users, by their ids."""
        ranked = self._recommender.recommend_ids(users, self._k)
        counts = np.array([len(items) for items, _ in ranked], np.int64)
        items = np.concatenate([np.empty(0, np.int64), *(items for items, _ in ranked)])
        scores = np.concatenate([np.empty(0, np.float32), *(scores for _, scores in ranked)])
        first = np.repeat(np.cumsum(counts) - counts, counts)
        return pa.table(
            {
                "user": self._recommender.user_values(np.repeat(users, counts)),
                "rank": (np.arange(len(items)) - first + 1).astype(np.int32),
                "item": self._recommender.item_values(items),
                "score": scores,
            },
            schema=_COLUMNS,
        )
