"""A raw row to try a model with."""

from pathlib import Path
from typing import Any

from rayrec.features.schema import MultiHotFeature, Schema
from rayrec.inference.folder.examples import frequent_values


def example_row(schema: Schema, folder: Path, features: int = 3) -> dict[str, Any]:
    """Values for the first few numeric and categorical features: of a vocabulary in `folder` the most frequent."""
    row: dict[str, Any] = {feature.name: 1 for feature in schema.numeric[:features]}
    for feature in schema.categorical[:features]:
        value = next(iter(frequent_values(feature, folder, 1)), 1)
        row[feature.name] = [value] if isinstance(feature, MultiHotFeature) else value
    return row
