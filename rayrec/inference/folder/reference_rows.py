"""Rows that the scores of others are compared with, when they are explained: `reference_rows.parquet`."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rayrec.common.errors import UserError
from rayrec.inference.predictor import Predictor
from rayrec.ingest.dataset import Dataset
from rayrec.random.permutation import HashPermutation

REFERENCE_ROWS_FILE = "reference_rows.parquet"
_ROWS = 64
_DRAWN_FROM = 16_384


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
    except (pa.ArrowException, OSError):
        raise UserError(f"{path}: damaged; export the model again") from None
    if not table.schema.equals(predictor.encoded_columns) or not table.num_rows:
        raise UserError(f"{path}: its columns are not those of schema.json; export the model again")
    (rows,) = table.combine_chunks().to_batches()
    return rows
