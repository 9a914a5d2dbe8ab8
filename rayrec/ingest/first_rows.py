"""The first rows of a split, for what a sample of it tells."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from rayrec.ingest.dataset import Dataset

_BATCH_ROWS = 16_384


def first_rows(dataset: Dataset, split: str, columns: Sequence[str], most: int) -> Iterator[pa.RecordBatch]:
    """Up to `most` rows in the order of the files, in batches. Raises UserError where there is no such split."""
    rows = 0
    for part in dataset.split(split).parts:
        with pq.ParquetFile(dataset.folder / part.path) as parquet:
            for batch in parquet.iter_batches(batch_size=_BATCH_ROWS, columns=list(columns)):
                yield batch.slice(0, most - rows)
                rows += batch.num_rows
                if rows >= most:
                    return
