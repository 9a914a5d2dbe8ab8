"""Rows that a model folder has with it: example requests with their scores, and what later scores are compared with.

Export writes `examples.json`; a server scores the examples before a version answers, so that it does not serve a model
whose scores differ on another machine, with another library, or in a damaged copy. The scores of held-out rows are what
the traffic of a server is compared with, and some encoded rows are the references of explanations.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import Field, PositiveInt

from rayrec.common.disk_errors import unreadable
from rayrec.common.errors import UserError
from rayrec.config import Config
from rayrec.config.transforms import Vocabulary
from rayrec.config.validation import read_json
from rayrec.features.raw_columns import SECOND, is_events
from rayrec.features.schema import CategoricalFeature, Feature, MultiHotFeature, Schema
from rayrec.features.transforms import ids_of
from rayrec.features.vocabulary import vocabulary_files
from rayrec.inference.folder.facts import REFERENCE_FILE, REFERENCE_ROWS_FILE, ModelFacts
from rayrec.inference.folder.model_folder import EXAMPLES_FILE
from rayrec.inference.predictor import Predictor
from rayrec.inference.recommender import Recommender
from rayrec.ingest.dataset import Dataset
from rayrec.ingest.held_out_rows import HELD_OUT_ROWS_FILE, HeldOutRows
from rayrec.metrics.estimates import stability_index
from rayrec.random.arrays import HashPermutation
from rayrec.store.files import write_json

# ---- example requests


_ROWS = 16
# Float32 sums in another order (other kernels, other batches) differ by less than a tenth of this.
_TOLERANCE = 1e-5
_RELATIVE = 1e-3
_NUMBERS = (0, 1, 2, 3, 5, 8, 20, 50, 100, 500, 1000, 0.5, -1, 7)
_UNKNOWN = "not in any vocabulary"
_DECEMBER = datetime(2025, 12, 29, 23, tzinfo=UTC)
"""Times of examples are of the days after it."""
_LATEST = 253_400_000_000
"""A moment, in seconds since 1970, after which there are days before the year 10000."""


class Examples(Config):
    """The content of `examples.json`."""

    tolerance: float
    """Largest difference that other kernels may make."""
    verb: Literal["predict", "recommend"] = Field("predict", exclude_if=lambda given: given == "predict")
    """The verb that a server is asked by: for scores of rows, or for items for people by their events. Left out of
    files where `predict`, as before there were others.
    """
    instances: list[dict[str, Any]]
    """Raw rows, or objects with `events`."""
    scores: list[float]
    """The probability that the model gave each row at export, or the best item after these events."""

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
        scores = _scores(predictor, self.instances)
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
    if predictor.scores_next_items:
        assert predictor.schema.interactions is not None
        items = [row[predictor.schema.interactions.item] for row in rows[:-1]]
        rows = [{"events": items[: 1 + index]} for index in range(len(items))]
    scores = _scores(predictor, rows)
    if not np.isfinite(scores).all():
        raise UserError("the checkpoint gives infinite or NaN scores: its training diverged; export another one")
    # The probabilities of many items are small.
    examples = Examples(tolerance=_TOLERANCE, instances=rows, scores=scores.tolist())
    if predictor.scores_next_items:
        examples = examples.model_copy(update={"verb": "recommend", "tolerance": _RELATIVE * float(scores.max())})
    write_json(predictor.folder / EXAMPLES_FILE, examples.model_dump())


def _scores(predictor: Predictor, instances: Sequence[Mapping[str, Any]]) -> NDArray[np.float32]:
    if not predictor.scores_next_items:
        return predictor.predict(instances)
    recommender = Recommender(predictor)
    best = (recommender.recommend(None, 1, events=one["events"], exclude_known=False) for one in instances)
    return np.concatenate([found.scores for found in best])


def example_request(folder: Path) -> tuple[str, dict[str, Any]]:
    """Return a verb to try a model with, and what it is asked."""
    examples = Examples.load(folder)
    if examples.verb == "recommend":
        return examples.verb, {**examples.instances[1], "k": 5}
    return examples.verb, {"instances": [example_row(folder)]}


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
    # A model may know no past of earlier rows.
    earliest = {past.time: _moment(past.earliest) for past in schema.histories if past.earliest is not None}
    times = {column.name: column.time_format for column in schema.columns}
    sizes = {needed.column: needed.length for needed in schema.list_lengths if isinstance(needed.length, int)}
    for needed in schema.list_lengths:
        if isinstance(needed.length, str) and needed.column in sizes:
            sizes[needed.length] = sizes[needed.column]
    for field in columns:
        if field.name in schema.looked_up or is_events(field.type):
            continue
        readers = [feature for feature in schema.features if field.name in feature.columns]
        is_list = pa.types.is_list(field.type)
        dtype = field.type.value_type if is_list else field.type
        values = _values(dtype, readers, times.get(field.name, "iso"), earliest.get(field.name, _DECEMBER), folder)
        if any(isinstance(feature, MultiHotFeature) and feature.weights == field.name for feature in readers):
            values = [value for value in values if value > 0]
        size = sizes.get(field.name, 2)
        for index, row in enumerate(rows[:-1]):
            value = values[index % len(values)]
            if index == _ROWS - 2 and pa.types.is_string(dtype):
                value = _UNKNOWN
            row[field.name] = [value, *[values[0]] * (size - 1)] if is_list else value
    return rows


def _values(
    dtype: pa.DataType, readers: Sequence[Feature], time_format: str, first: datetime, folder: Path
) -> list[Any]:
    if pa.types.is_floating(dtype):
        return list(_NUMBERS)
    if pa.types.is_timestamp(dtype):
        return [_written(first + timedelta(days=day, hours=day), time_format) for day in range(2, 9)]
    if pa.types.is_string(dtype):
        frequent = (_frequent_values(feature, folder) for feature in readers)
        return next((values for values in frequent if values), [_UNKNOWN])
    cardinality = min(feature.cardinality for feature in readers if isinstance(feature, CategoricalFeature))
    return [index % cardinality for index in range(1, _ROWS)]


def _moment(micros: int) -> datetime:
    return datetime.fromtimestamp(min(micros // SECOND, _LATEST), UTC)


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


# ---- references


_TRAFFIC_ROWS = 20_000
_REFERENCE_ROWS = 64
_DRAWN_FROM = 16_384


class ReferenceTraffic(ModelFacts):
    """Scores and ids of the first rows of a split."""

    file = REFERENCE_FILE

    split: str
    rows: PositiveInt
    score_edges: tuple[float, ...]
    """The limits between bins of scores: the deciles, equal ones once."""
    score_shares: tuple[float, ...]
    """Share of the rows in each of the len(score_edges) + 1 bins."""
    unknown_share: dict[str, float]
    """For each categorical feature, the share of its ids that are 0: missing or unknown."""

    @classmethod
    def measure(cls, dataset: Dataset, split: str, predictor: Predictor) -> "ReferenceTraffic":
        """Score the first 20,000 rows of a split. Raises UserError if it has none."""
        names = [feature.name for feature in predictor.schema.features]
        columns = pa.concat_batches(list(dataset.rows(split, names, _TRAFFIC_ROWS)))
        scores = predictor.predict_encoded(columns)
        edges: NDArray[np.float64] = np.unique(np.quantile(scores.astype(np.float64), np.arange(1, 10) / 10))
        shares = score_counts(scores, edges) / len(scores)
        zeros = unknown_counts(predictor.schema, columns)
        unknown = {name: zero / ids if ids else 0.0 for name, (zero, ids) in zeros.items()}
        return cls(
            split=split,
            rows=len(scores),
            score_edges=tuple(edges.tolist()),
            score_shares=tuple(shares.tolist()),
            unknown_share=unknown,
        )

    def drift(self, counts: NDArray[np.float64]) -> float:
        """Return how far the scores counted in each bin are from the reference (`rayrec.metrics.estimates`)."""
        return stability_index(np.array(self.score_shares), counts)


def score_counts(scores: NDArray[np.float32], edges: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return how many scores are in each bin: (len(edges) + 1,), a score on an edge being in the bin above it."""
    return np.bincount(np.searchsorted(edges, scores, side="right"), minlength=len(edges) + 1)


def unknown_counts(schema: Schema, columns: pa.RecordBatch) -> dict[str, tuple[int, int]]:
    """Return, for each categorical feature of encoded rows, the number of ids that are 0, and of all ids."""
    counts = {}
    for feature in schema.categorical:
        column = columns.column(feature.name)
        ids = ids_of(column.flatten() if pa.types.is_list(column.type) else column).to_numpy()
        counts[feature.name] = (len(ids) - int(np.count_nonzero(ids)), len(ids))
    return counts


def rows_of_split(dataset: Dataset, split: str, predictor: Predictor) -> pa.RecordBatch:
    """Return the encoded rows from all over a split, of which a few can be drawn. Raises UserError if there is no such
    split.
    """
    return pa.concat_batches(list(dataset.rows(split, predictor.encoded_columns.names, _DRAWN_FROM, spread=True)))


def write_reference_rows(predictor: Predictor, rows: pa.RecordBatch) -> None:
    """Draw 64 of some encoded rows, or take all if they are fewer, and write them into the folder of the model."""
    drawn = HashPermutation(rows.num_rows, seed=0)(np.arange(min(_REFERENCE_ROWS, rows.num_rows)))
    table = pa.Table.from_batches([rows.take(pa.array(np.sort(drawn)))])
    pq.write_table(table.cast(predictor.encoded_columns), predictor.folder / REFERENCE_ROWS_FILE)


def load_reference_rows(predictor: Predictor) -> pa.RecordBatch | None:
    """Return the encoded reference rows of a model; None if it was exported without. Raises UserError if they are
    damaged.
    """
    path = predictor.model_folder.path(REFERENCE_ROWS_FILE)
    try:
        table = pq.read_table(path)
    except FileNotFoundError:
        return None
    except (pa.ArrowException, OSError) as error:
        raise unreadable(path, error, "export the model again") from None
    if not table.schema.equals(predictor.encoded_columns) or not table.num_rows:
        raise UserError(f"{path}: its columns are not those of schema.json; export the model again")
    (rows,) = table.combine_chunks().to_batches()
    return rows
