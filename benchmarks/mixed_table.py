"""A generated table: 13 numbers, 17 categories of 10 to 7,290 values, and a label that depends on them."""

from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv

LABEL = "label"
NUMBERS, CATEGORIES = 13, 17


def write_table(path: Path, rows: int, seed: int = 0) -> None:
    """Write a CSV file; a row's log odds are a weighted sum of its numbers' logarithms and of an effect a category."""
    rng = np.random.default_rng(seed)
    columns: dict[str, pa.Array] = {}
    log_odds = np.zeros(rows)
    for number in range(NUMBERS):
        logarithms = rng.normal(size=rows)
        log_odds += 0.1 * rng.normal() * logarithms
        columns[f"I{number + 1}"] = pa.array(np.round(np.exp(logarithms) * 10 ** (number % 4), 3))
    for number in range(CATEGORIES):
        size = 10 * 3 ** (number % 7)
        values = np.minimum(rng.zipf(1.3, rows), size) - 1
        log_odds += 0.3 * rng.normal(size=size)[values]
        columns[f"C{number + 1}"] = pa.array([f"v{value}" for value in values])
    chances = 1 / (1 + np.exp(1 + log_odds.mean() - log_odds))
    columns[LABEL] = pa.array((rng.random(rows) < chances).astype(np.int8))
    csv.write_csv(pa.table(columns), path)
