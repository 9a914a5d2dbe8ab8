"""What a preprocessing job works with and what it returns."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rayrec.common.progress import Progress
from rayrec.features.schema import Schema
from rayrec.ingest.dataset import SplitInfo

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Workspace:
    """A Spark session and the unfinished dataset folder."""

    spark: "SparkSession"
    folder: Path
    """The dataset that is being written; every task can read and write it."""
    scratch: Path
    """A folder for the files that stages pass on to each other."""
    progress: Progress


@dataclass(frozen=True)
class WrittenDataset:
    """What a job wrote into the dataset folder, besides the vocabularies."""

    schema: Schema
    splits: dict[str, SplitInfo]
    rejected: dict[str, int]
    """Number of bad rows by reason."""
