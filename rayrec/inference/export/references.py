"""What a model's scores are compared with: those of the traffic that it serves, and of rows that are explained."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import PositiveInt

from rayrec.common.disk_errors import unreadable
from rayrec.common.errors import UserError
from rayrec.features.schema import Schema
from rayrec.features.transforms import ids_of
from rayrec.inference.folder.facts import REFERENCE_FILE, REFERENCE_ROWS_FILE, ModelFacts
from rayrec.inference.predictor import Predictor
from rayrec.ingest.dataset import Dataset
from rayrec.metrics.estimates import stability_index
from rayrec.random.arrays import HashPermutation

_TRAFFIC_ROWS = 20_000
_ROWS = 64
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
    drawn = HashPermutation(rows.num_rows, seed=0)(np.arange(min(_ROWS, rows.num_rows)))
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
