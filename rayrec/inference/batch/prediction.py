"""Scores of whole files: read by Ray Data tasks, scored by a pool of predictors, written in the order of the input.

OUTPUT/scores/part-00000.parquet ...    OUTPUT/rejected/part-00000.parquet ... (raw rows that cannot be used)
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from rayrec.common.allocator import keep_freed_memory
from rayrec.common.errors import UserError
from rayrec.common.files import new_folder
from rayrec.common.progress import Progress
from rayrec.inference.batch.pool import map_with_pool, new_parts
from rayrec.inference.folder.model_folder import ModelFolder
from rayrec.inference.predictor import load_model
from rayrec.ingest.dataset import REJECTED_FOLDER, Dataset
from rayrec.raw.blocks import REJECTED_SCHEMA, ExampleReader
from rayrec.raw.files import Chunk, InputFile, list_inputs, plan_chunks

SCORES_FOLDER = "scores"
_CHUNK_BYTES = 2**26

# Columns that travel beside the features; no feature's name begins with \0.
_LABEL, _SCORE, _CHUNK, _LINE, _REASON = "\0label", "\0score", "\0chunk", "\0line", "\0reason"
_LABEL_AND_SCORE = [pa.field("label", pa.float32()), pa.field("score", pa.float32(), nullable=False)]
_RAW_SCORES = pa.schema(
    [pa.field("file", pa.string(), nullable=False), pa.field("line", pa.int64(), nullable=False), *_LABEL_AND_SCORE]
)
_REJECTED_COLUMNS = {name: f"\0{name}" for name in REJECTED_SCHEMA.names if name != "file"}
# The columns of every raw block, whether its rows are good or bad, with or without labels.
_EMPTY_RAW = pa.schema(
    [(_LABEL, pa.float32()), *((inner, REJECTED_SCHEMA.field(name).type) for name, inner in _REJECTED_COLUMNS.items())]
).empty_table()


@dataclass(frozen=True)
class PredictionCounts:
    """The numbers of rows of a batch prediction."""

    rows: int
    """Rows scored."""
    rejected: dict[str, int]
    """Rows set aside, by reason."""


def predict_dataset(
    model: ModelFolder, dataset: Dataset, split: str, output: Path, progress: Progress
) -> PredictionCounts:
    """Score a split of a dataset folder; needs a Ray session. `output` is written whole or not at all.

    `scores/` has columns row (int64, position in the split), label (float32), score (float32), in the split's order. If
    the dataset's schema names candidates, the columns of its groups and candidates (int64) stand after row.
    Raises UserError if the dataset was not encoded as the model's training data was.
    """
    schema = dataset.schema
    model.schema.require_same_features(schema, dataset.folder)
    parts = dataset.split(split).parts
    tasks = [
        pa.table({"path": [str(dataset.folder / part.path)], "row_group": [index]})
        for part in parts
        for index in range(len(part.row_groups))
    ]
    kept = [schema.group, schema.candidate] if schema.group and schema.candidate else []
    renamed = {schema.label: _LABEL, **{name: f"\0{name}" for name in kept}}
    reader = _DatasetReader(tuple(f.name for f in model.schema.features), renamed)
    ids = [pa.field(name, pa.int64(), nullable=False) for name in ("row", *kept)]
    columns = pa.schema([*ids, *_LABEL_AND_SCORE])
    progress.stage(f"predict {split}", dataset.split(split).rows)
    rows = 0
    with new_folder(output) as folder, new_parts(folder / SCORES_FOLDER, columns) as write:
        for block in map_with_pool(tasks, reader, _ScoreBlocks, {"folder": model.folder, "is_raw": False}):
            position = pa.array(np.arange(rows, rows + len(block)))
            shown = [block[name] for name in (*(renamed[name] for name in kept), _LABEL, _SCORE)]
            write(pa.table([position, *shown], schema=columns))
            rows += len(block)
            progress.advance(len(block))
    return PredictionCounts(rows, {})


def predict_raw(
    model: ModelFolder,
    open_reader: Callable[[Sequence[InputFile]], ExampleReader],
    paths: list[str],
    output: Path,
    progress: Progress,
) -> PredictionCounts:
    """Score raw files, with or without a label column; needs a Ray session. `output` is written whole or not at all.

    `open_reader` opens the files with the reader of the model's source.

    `scores/` has columns file, line (int64, from 1), label (float32, null if the file has none), score (float32), in
    the order of the input; `rejected/` has the rows that cannot be used, with the columns of `REJECTED_SCHEMA`. Raises
    UserError if a path gives no file, or no row can be used.
    """
    files = list_inputs(paths)
    chunks = plan_chunks(files, _CHUNK_BYTES)
    reader = _RawReader(open_reader(files), chunks)
    tasks = [pa.table({"chunk": pa.array([index], pa.int32())}) for index in range(len(chunks))]
    progress.stage("predict")
    lines = _LineNumbers(chunks)
    scored, rejected = 0, Counter[str]()
    with (
        new_folder(output) as folder,
        new_parts(folder / SCORES_FOLDER, _RAW_SCORES) as write_scores,
        new_parts(folder / REJECTED_FOLDER, REJECTED_SCHEMA) as write_rejected,
    ):
        for block in map_with_pool(tasks, reader, _ScoreBlocks, {"folder": model.folder, "is_raw": True}):
            file, line = lines.of(block)
            placed = block.append_column("file", file).append_column("line", line)
            is_good = pc.is_null(block[_REASON])
            good, bad = placed.filter(is_good), placed.filter(pc.invert(is_good))
            write_scores(pa.table([good[n] for n in ("file", "line", _LABEL, _SCORE)], schema=_RAW_SCORES))
            shown = [bad[n] if n in ("file", "line") else bad[_REJECTED_COLUMNS[n]] for n in REJECTED_SCHEMA.names]
            write_rejected(pa.table(shown, schema=REJECTED_SCHEMA))
            scored += len(good)
            rejected.update(bad[_REASON].to_pylist())
            progress.advance(len(block))
        if scored == 0:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in rejected.items()) or "no rows"
            raise UserError(
                f"{', '.join(paths)}: nothing to score ({reasons}); give files of kind '{model.recipe.source.kind}'"
            )
    return PredictionCounts(scored, dict(rejected))


@dataclass(frozen=True)
class _DatasetReader:
    """Reads row groups of a dataset's parts."""

    features: tuple[str, ...]
    others: dict[str, str]
    """Columns that are not features, with their new names."""

    def __call__(self, tasks: pa.Table) -> Iterator[pa.Table]:
        for task in tasks.to_pylist():
            with pq.ParquetFile(task["path"], memory_map=True) as part:
                rows = part.read_row_group(task["row_group"], columns=[*self.features, *self.others])
            yield rows.rename_columns([self.others.get(name, name) for name in rows.column_names])


@dataclass(frozen=True)
class _RawReader:
    """Reads and parses chunks of raw files: good rows, and bad ones with a reason; lines count per chunk."""

    reader: ExampleReader
    chunks: list[Chunk]

    def __call__(self, tasks: pa.Table) -> Iterator[pa.Table]:
        label = self.reader.label
        for index in tasks["chunk"].to_pylist():
            for block in self.reader.read(self.chunks[index]):
                good = pa.Table.from_batches([block.rows]).append_column(_LINE, pa.array(block.lines))
                good = good.rename_columns([_LABEL if name == label else name for name in good.column_names])
                bad = pa.table({inner: block.rejected[name] for name, inner in _REJECTED_COLUMNS.items()})
                rows = pa.concat_tables([_EMPTY_RAW, good, bad], promote_options="default")
                yield rows.append_column(_CHUNK, pa.array(np.full(len(rows), index, np.int32)))


class _ScoreBlocks:
    """An actor of the pool: adds the score to the columns that are not features, which it drops."""

    def __init__(self, folder: Path, is_raw: bool) -> None:
        torch.set_num_threads(1)  # the actors of the pool run in parallel
        keep_freed_memory()
        self._predictor = load_model(folder)
        self._predict = self._predictor.predict if is_raw else self._predictor.predict_encoded
        self._features = frozenset(
            self._predictor.raw_rows.columns.names if is_raw else (f.name for f in self._predictor.schema.features)
        )

    def __call__(self, block: pa.Table) -> pa.Table:
        rows = block.select([name for name in block.column_names if name in self._features])
        scores = np.full(len(block), np.nan, np.float32)
        good = np.ones(len(block), bool)
        if _REASON in block.column_names:
            good = pc.is_null(block[_REASON]).to_numpy()
            rows = rows.filter(pa.array(good))
        if len(rows):
            (batch,) = rows.combine_chunks().to_batches()
            scores[good] = self._predict(batch)
        return block.drop_columns(rows.column_names).append_column(_SCORE, pa.array(scores))


class _LineNumbers:
    """Finds file and line of rows that come in order, from their chunk and their line in it."""

    def __init__(self, chunks: list[Chunk]) -> None:
        self._file_index = np.array([chunk.file_index for chunk in chunks])
        self._names = pa.array([chunk.file.name for chunk in chunks], pa.string())
        # The last line of a chunk gives a row, good or bad, and all of its rows come before those of the next chunk.
        self._lines = np.zeros(len(chunks), np.int64)

    def of(self, block: pa.Table) -> tuple[pa.Array, pa.Array]:
        chunk = block[_CHUNK].to_numpy()
        line = block[_LINE].to_numpy()
        np.maximum.at(self._lines, chunk, line)
        before = np.cumsum(self._lines) - self._lines
        first_of_file = np.searchsorted(self._file_index, self._file_index)
        base = before - before[first_of_file]
        return self._names.take(pa.array(chunk)), pa.array(line + base[chunk])
