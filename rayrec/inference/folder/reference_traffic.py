"""Distribution of a model's scores and inputs at export, to compare with the traffic that it serves."""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import PositiveInt

from rayrec.features.lists import ids_of
from rayrec.features.schema import Schema
from rayrec.inference.folder.facts import ModelFacts
from rayrec.inference.predictor import Predictor
from rayrec.ingest.dataset import Dataset
from rayrec.metrics.estimates import stability_index

REFERENCE_FILE = "reference_traffic.json"
_ROWS = 20_000


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
        columns = pa.concat_batches(list(dataset.rows(split, names, _ROWS)))
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
