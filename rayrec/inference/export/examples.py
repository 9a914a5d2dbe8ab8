"""Example requests of a model folder with the scores that they must get: `examples.json`.

Export writes the file; a server scores the examples before a version answers, so that it does not serve a model whose
scores differ on another machine, with another library, or in a damaged copy.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rayrec.common.errors import UserError
from rayrec.config import Config
from rayrec.config.transforms import Vocabulary
from rayrec.config.validation import read_json
from rayrec.features.schema import CategoricalFeature, Feature, MultiHotFeature, Schema
from rayrec.features.vocabulary import vocabulary_files
from rayrec.inference.folder.model_folder import EXAMPLES_FILE
from rayrec.inference.predictor import Predictor
from rayrec.ingest.held_out_rows import HELD_OUT_ROWS_FILE, HeldOutRows
from rayrec.store.files import write_json

_ROWS = 16
# Float32 sums in another order (other kernels, other batches) differ by less than a tenth of this.
_TOLERANCE = 1e-5
_NUMBERS = (0, 1, 2, 3, 5, 8, 20, 50, 100, 500, 1000, 0.5, -1, 7)
_UNKNOWN = "not in any vocabulary"


class Examples(Config):
    """The content of `examples.json`."""

    tolerance: float
    """Largest difference that other kernels may make."""
    instances: list[dict[str, Any]]
    """Raw rows."""
    scores: list[float]
    """The probability that the model gave each of them at export."""

    @classmethod
    def load(cls, folder: Path) -> "Examples":
        """Read the examples of a model folder. Raises UserError if they are missing or not whole."""
        path = folder / EXAMPLES_FILE
        examples = read_json(cls, path, "export the model again")
        if examples is None:
            raise UserError(f"{path}: missing; export the model again")
        rows, scores = len(examples.instances), len(examples.scores)
        if rows == 0 or scores != rows:
            raise UserError(f"{path}: {rows} instances with {scores} scores; export the model again")
        return examples

    def check(self, predictor: Predictor) -> None:
        """Raise UserError if the model does not give the stored scores."""
        scores = predictor.predict(self.instances)
        # Not `>`: NaN is wrong too.
        wrong = np.flatnonzero(~(np.abs(scores - np.array(self.scores)) <= self.tolerance))
        if len(wrong):
            row = int(wrong[0])
            raise UserError(
                f"{predictor.folder / EXAMPLES_FILE}: the self-check failed: {len(wrong)} of {len(scores)} scores "
                f"differ by more than {self.tolerance:g}; row {row} gives {scores[row]:.6g}, stored is "
                f"{self.scores[row]:.6g}; copy or export the model again"
            )


def write_examples(predictor: Predictor) -> None:
    """Score example rows and write both into the model's folder. Raises UserError if a score is infinite or NaN."""
    rows = example_rows(predictor.schema, predictor.raw_rows.columns, predictor.folder)
    scores = predictor.predict(rows)
    if not np.isfinite(scores).all():
        raise UserError("the checkpoint gives infinite or NaN scores: its training diverged; export another one")
    examples = Examples(tolerance=_TOLERANCE, instances=rows, scores=scores.tolist())
    write_json(predictor.folder / EXAMPLES_FILE, examples.model_dump())


def example_row(folder: Path) -> dict[str, Any]:
    """Return a raw row to try a model with: the first of its held-out rows or examples, cut to a few columns."""
    held_out = load_held_out_rows(folder)
    row = Examples.load(folder).instances[0] if held_out is None else held_out.rows[0]
    numbers = [name for name, value in row.items() if isinstance(value, float | int)][:3]
    others = [name for name, value in row.items() if not isinstance(value, float | int)][:3]
    return {name: row[name] for name in (*numbers, *others)}


def load_held_out_rows(folder: Path) -> HeldOutRows | None:
    """Read the held-out rows of a model; None if it has none. `folder`: where `ModelFolder.path` finds the file.

    Raises UserError if the file is damaged.
    """
    found = read_json(HeldOutRows, folder / HELD_OUT_ROWS_FILE, "remove it, or export the model again")
    return found if found is not None and found.rows else None


def example_rows(schema: Schema, columns: pa.Schema, folder: Path) -> list[dict[str, Any]]:
    """Return raw rows: frequent values of the vocabularies in `folder` and common numbers; the last two unknown and
    missing.

    `columns` are the raw columns of the schema (`RawRows.columns`); those that the model looks up are left out.
    """
    rows: list[dict[str, Any]] = [{} for _ in range(_ROWS)]
    times = {column.name: column.time_format for column in schema.columns}
    sizes = {needed.column: needed.length for needed in schema.list_lengths if isinstance(needed.length, int)}
    for needed in schema.list_lengths:
        if isinstance(needed.length, str) and needed.column in sizes:
            sizes[needed.length] = sizes[needed.column]
    for field in columns:
        if field.name in schema.looked_up:
            continue
        readers = [feature for feature in schema.features if field.name in feature.columns]
        is_list = pa.types.is_list(field.type)
        dtype = field.type.value_type if is_list else field.type
        values = _values(dtype, readers, times.get(field.name, "iso"), folder)
        if any(isinstance(feature, MultiHotFeature) and feature.weights == field.name for feature in readers):
            values = [value for value in values if value > 0]
        size = sizes.get(field.name, 2)
        for index, row in enumerate(rows[:-1]):
            value = values[index % len(values)]
            if index == _ROWS - 2 and pa.types.is_string(dtype):
                value = _UNKNOWN
            row[field.name] = [value, *[values[0]] * (size - 1)] if is_list else value
    return rows


def _values(dtype: pa.DataType, readers: Sequence[Feature], time_format: str, folder: Path) -> list[Any]:
    if pa.types.is_floating(dtype):
        return list(_NUMBERS)
    if pa.types.is_timestamp(dtype):
        return [_written(datetime(2026, 1, day, day, tzinfo=UTC), time_format) for day in range(1, 8)]
    if pa.types.is_string(dtype):
        frequent = (_frequent_values(feature, folder) for feature in readers)
        return next((values for values in frequent if values), [_UNKNOWN])
    cardinality = min(feature.cardinality for feature in readers if isinstance(feature, CategoricalFeature))
    return [index % cardinality for index in range(1, _ROWS)]


def _written(time: datetime, time_format: str) -> str | int:
    """Return a time as raw data of this format has it."""
    per_second = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}.get(time_format)
    if per_second is not None:
        return int(time.timestamp()) * per_second
    return time.isoformat() if time_format == "iso" else time.strftime(time_format)


def _frequent_values(feature: Feature, folder: Path) -> list[str]:
    """Return the first values of a feature's vocabulary in `folder`, mostly frequent ones; empty without a
    vocabulary.
    """
    for transform in feature.transforms if isinstance(feature, CategoricalFeature) else ():
        if isinstance(transform, Vocabulary) and transform.size:
            with pq.ParquetFile(vocabulary_files(folder / transform.file)[0]) as vocabulary:
                head = next(vocabulary.iter_batches(batch_size=_ROWS - 2, columns=["value"]))
                return [value for value in head.column("value").to_pylist() if value]
    return []
