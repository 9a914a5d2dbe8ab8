"""What every preprocessing job works with, and the parsing of its files, with which all of them begin."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from rayrec.common.progress import Progress
from rayrec.features.schema import Schema
from rayrec.ingest.dataset import REJECTED_FOLDER, SplitInfo
from rayrec.preprocessing.extract import check_rejected, extract, write_rejected
from rayrec.preprocessing.extracted import ExtractedChunk
from rayrec.preprocessing.rows.splits import HashedSplits
from rayrec.preprocessing.segments import Piece, Segment, make_segments
from rayrec.raw.blocks import RowReader
from rayrec.raw.files import InputFile, plan_chunks

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
        chunks = [(reader, chunk) for chunk in plan_chunks(files, self._chunk_bytes(files))]
        extracted = extract(self.spark, chunks, self.scratch, splits, self.progress)
        rejected = check_rejected(extracted, max_rejected_fraction)
        if rejected:
            write_rejected(self.spark, extracted, self.folder / REJECTED_FOLDER)
        return extracted, rejected

    def extract_tables(
        self, tables: Mapping[str, tuple[RowReader, InputFile]], scratch: Path, max_rejected_fraction: float
    ) -> tuple[dict[str, list[ExtractedChunk]], dict[str, int]]:
        """Parse a file of each table into files under `scratch`: the chunks by table, and the bad rows by reason.

        Raises UserError where a table has no line, not even a header, or too large a share of its rows is bad.
        """
        size = self._chunk_bytes([file for _, file in tables.values()])
        planned = {name: plan_chunks([file], size) for name, (_, file) in tables.items()}
        every_chunk = [(tables[name][0], chunk) for name, chunks in planned.items() for chunk in chunks]
        extracted = iter(extract(self.spark, every_chunk, scratch, None, self.progress))
        by_table = {name: list(islice(extracted, len(chunks))) for name, chunks in planned.items()}
        reasons: Counter[str] = Counter()
        for name, chunks in by_table.items():
            rejected = check_rejected(chunks, max_rejected_fraction)
            if rejected:
                write_rejected(self.spark, chunks, self.folder / REJECTED_FOLDER, f"{name}-")
            reasons.update(rejected)
        return by_table, dict(reasons)

    def _chunk_bytes(self, files: Sequence[InputFile]) -> int:
        share = sum(file.bytes for file in files) // (4 * self.spark.sparkContext.defaultParallelism)
        return min(max(share, _LEAST_CHUNK_BYTES), _MOST_CHUNK_BYTES)


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
