"""Compares what two ways of running the same commands have written: all bytes, all bits, or numbers to a tolerance."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch

from rayrec.store.artifact import MANIFEST_FILE, id_of
from rayrec.store.files import sha256_of
from rayrec.store.tensors import StoredTensors
from rayrec.training.run.folder import RunFolder

Metrics = dict[str, dict[str, float | None]]


@dataclass(frozen=True)
class EqualityCheck:
    """What was compared, how, and the names of what differs."""

    what: str
    how: str
    differences: tuple[str, ...]


def compare_datasets(first: Path, second: Path, outcome: str) -> EqualityCheck:
    """Compare the files of two dataset folders byte for byte, but for `outcome`, the file of the command's result.

    Of the manifest the record of how it was made is left out.
    """

    def contents(folder: Path) -> dict[str, str | None]:
        names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
        found = {name: sha256_of(folder / name) for name in names if name != outcome}
        return {**found, MANIFEST_FILE: id_of(folder)}

    one, other = contents(first), contents(second)
    differences = [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]
    how = f"every byte; of {MANIFEST_FILE} all but `execution`"
    return EqualityCheck(f"dataset: {len(one)} files", how, tuple(differences))


def compare_weights(first: Path, second: Path, of: str) -> EqualityCheck:
    """Compare all weights of the last checkpoints of two runs bit for bit; `of` says which model they are of."""
    one, other = (_weights(folder) for folder in (first, second))
    differences = [name for name in sorted({*one, *other}) if not _same_bits(one.get(name), other.get(name))]
    numbers = sum(weights.numel() for weights in one.values())
    return EqualityCheck(f"{of}: {numbers:,} weights in {len(one)} tensors", "every bit", tuple(differences))


def compare_scores(first: Path, second: Path, tolerance: float) -> EqualityCheck:
    """Compare the numbers of rows in two folders of scores, and the scores to a tolerance."""
    one, other = (pq.read_table(folder, columns=["row", "score"]) for folder in (first, second))
    how = f"rows; scores to {tolerance:g}"
    if not one["row"].equals(other["row"]):
        return EqualityCheck(f"{len(one):,} scores", how, ("row",))
    distance = np.abs(one["score"].to_numpy() - other["score"].to_numpy())
    # Not `distance > tolerance`: NaN, which is no score, differs from everything.
    wrong = np.flatnonzero(~(distance <= tolerance))
    how += f", of which the largest distance is {distance.max(initial=0.0):.1e}"
    return EqualityCheck(f"{len(one):,} scores", how, tuple(f"row {number}" for number in wrong))


def compare_metrics(first: Metrics, second: Metrics, tolerance: float) -> EqualityCheck:
    """Compare the metrics of all splits to a relative tolerance."""
    one, other = (
        {f"{split} {name}": value for split, values in metrics.items() for name, value in values.items()}
        for metrics in (first, second)
    )

    def is_same(name: str) -> bool:
        value, expected = one.get(name), other.get(name)
        if value is None or expected is None:  # undefined, or missing
            return value is expected and name in one and name in other
        return math.isclose(value, expected, rel_tol=tolerance)

    differences = [name for name in sorted({*one, *other}) if not is_same(name)]
    return EqualityCheck(f"{len(one)} metrics", f"to a share of {tolerance:g}", tuple(differences))


def _weights(run: Path) -> dict[str, torch.Tensor]:
    """Return the weights of a run's last checkpoint, without the state of optimizers."""
    stored = StoredTensors(RunFolder.open(run).checkpoint("latest"))
    weights = {name: torch.empty(shape) for name, shape in stored.shapes.items() if name.startswith("model.")}
    stored.fill(weights)
    return weights


def _same_bits(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None or one.shape != other.shape:
        return False
    return one.numpy().tobytes() == other.numpy().tobytes()
