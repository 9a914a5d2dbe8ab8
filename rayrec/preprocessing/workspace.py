"""What every preprocessing job works with, and the first stage, which is the same for all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rayrec.common.progress import Progress
from rayrec.features.schema import Schema
from rayrec.ingest.dataset import REJECTED_FOLDER, SplitInfo
from rayrec.preprocessing.extract import RowReader, check_rejected, extract, write_rejected
from rayrec.preprocessing.extracted import ExtractedChunk
from rayrec.preprocessing.segments import Piece, Segment, make_segments
from rayrec.preprocessing.splits import HashedSplits
from rayrec.sources.files import InputFile, plan_chunks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LEAST_CHUNK_BYTES, _MOST_CHUNK_BYTES = 2**22, 2**26


@dataclass(frozen=True)
class Workspace:
    """A Spark session and the unfinished dataset folder."""

    spark: "SparkSession"
    folder: Path
    """The dataset that is being written; tasks see it too."""
    scratch: Path
    """A folder for what stages hand to each other."""
    progress: Progress

    def extract(
        self,
        reader: RowReader,
        files: Sequence[InputFile],
        splits: HashedSplits | None,
        max_rejected_fraction: float,
    ) -> tuple[list[ExtractedChunk], dict[str, int]]:
        """Parse the files and set bad rows aside: the chunks, and the number of bad rows by reason.

        Raises UserError where there are no rows, or too large a share is bad.
        """
        total = sum(file.bytes for file in files)
        share = total // (4 * self.spark.sparkContext.defaultParallelism)
        chunks = plan_chunks(files, min(max(share, _LEAST_CHUNK_BYTES), _MOST_CHUNK_BYTES))
        extracted = extract(self.spark, reader, chunks, self.scratch, splits, self.progress)
        rejected = check_rejected(extracted, max_rejected_fraction)
        if rejected:
            write_rejected(self.spark, extracted, self.folder / REJECTED_FOLDER)
        return extracted, rejected


@dataclass(frozen=True)
class WrittenDataset:
    """What a job wrote into the dataset folder, besides the vocabularies."""

    schema: Schema
    splits: dict[str, SplitInfo]
    rejected: dict[str, int]
    """Bad rows by reason."""


def segments_by_split(pieces: dict[str, list[Piece]]) -> dict[str, list[Segment]]:
    """The segments of every split, numbered through."""
    segments: dict[str, list[Segment]] = {}
    for split, of_split in pieces.items():
        segments[split] = make_segments(of_split, sum(len(s) for s in segments.values()))
    return segments
