"""Vocabularies that tests and benchmarks make."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from rayrec.features.vocabulary import VOCABULARY_SCHEMA, write_whole_vocabulary


def write_vocabulary(path: Path, values: Sequence[str], counts: Sequence[int]) -> None:
    """Write a vocabulary, and its index; `values` by descending count, ties by value. The first value has id 1."""
    columns = [
        pa.array(column, type=field.type)
        for column, field in zip([values, range(1, len(values) + 1), counts], VOCABULARY_SCHEMA, strict=True)
    ]
    write_whole_vocabulary([pa.RecordBatch.from_arrays(columns, schema=VOCABULARY_SCHEMA)], path)
