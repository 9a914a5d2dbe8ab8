"""A raw row to try a model with."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from rayrec.features.schema import CategoricalFeature, MultiHotFeature, Schema
from rayrec.features.transforms import Vocabulary


def example_row(schema: Schema, folder: Path, features: int = 3) -> dict[str, Any]:
    """Values for the first few numeric and categorical features: of a vocabulary in `folder` the most frequent."""
    row: dict[str, Any] = {feature.name: 1 for feature in schema.numeric[:features]}
    for feature in schema.categorical[:features]:
        value = _most_frequent(feature, folder)
        row[feature.name] = [value] if isinstance(feature, MultiHotFeature) else value
    return row


def _most_frequent(feature: CategoricalFeature, folder: Path) -> str | int:
    for transform in feature.transforms:
        if isinstance(transform, Vocabulary) and transform.size:
            path = folder / transform.file
            first = min(path.glob("*.parquet")) if path.is_dir() else path
            with pq.ParquetFile(first) as vocabulary:
                (value,) = next(vocabulary.iter_batches(batch_size=1, columns=["value"])).column("value").to_pylist()
                return str(value)
    return 1
