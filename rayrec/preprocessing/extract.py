"""First stage: raw files -> Parquet files of parsed rows, a file a chunk, with bad rows set aside."""

from collections import Counter as Tally
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pyarrow.parquet as pq

from rayrec.common.errors import UserError
from rayrec.common.progress import Progress
from rayrec.preprocessing.extracted import ExtractedChunk, first_lines
from rayrec.preprocessing.parquet_files import new_parquet
from rayrec.preprocessing.rows.splits import HashedSplits
from rayrec.preprocessing.spark_tasks import Counter, counted_rows, run_tasks
from rayrec.raw.blocks import RowReader
from rayrec.raw.files import Chunk
from rayrec.raw.rejected import REJECTED_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROWS_PER_REJECTED_PART = 1_000_000


def extract(
    spark: "SparkSession",
    chunks: Sequence[tuple[RowReader, Chunk]],
    scratch: Path,
    splits: HashedSplits | None,
    progress: Progress,
) -> list[ExtractedChunk]:
    """Parse every chunk with its reader into files under `scratch`; with `splits`, into one file a split."""
    with counted_rows(spark, progress, "parse") as counter:

        def run(item: tuple[int, tuple[RowReader, Chunk]]) -> ExtractedChunk:
            number, (reader, chunk) = item
            return _extract_chunk(reader, chunk, scratch, f"{number:06d}", splits, counter)

        return run_tasks(spark, list(enumerate(chunks)), run)


def _extract_chunk(
    reader: RowReader, chunk: Chunk, scratch: Path, name: str, splits: HashedSplits | None, count: Counter
) -> ExtractedChunk:
    labels = splits.names if splits else ("",)
    paths = {label: scratch / "rows" / f"{name}{label and '-'}{label}.parquet" for label in labels}
    rejected_path = scratch / "rejected" / f"{name}.parquet"
    rows: Tally[str] = Tally()
    reasons: Tally[str] = Tally()
    lines = 0
    with ExitStack() as stack:
        writers = {
            label: stack.enter_context(
                new_parquet(path, reader.schema, compression="lz4", use_dictionary=list(reader.dictionaries),
                            write_statistics=False)
            )
            for label, path in paths.items()
        }  # fmt: skip
        rejected_writer: pq.ParquetWriter | None = None
        for block in reader.read(chunk):
            parts = splits.divide(block, first_line=lines + 1) if splits else {"": block.rows}
            for label, part in parts.items():
                if part.num_rows:
                    writers[label].write_batch(part)
                    rows[label] += part.num_rows
            if block.rejected.num_rows:
                if rejected_writer is None:
                    rejected_writer = stack.enter_context(new_parquet(rejected_path, REJECTED_SCHEMA))
                rejected_writer.write_table(block.rejected)
                reasons.update(block.rejected.column("reason").to_pylist())
            lines += block.num_lines
            count.add(block.num_lines)
    return ExtractedChunk(
        chunk, lines, {label: (path, rows[label]) for label, path in paths.items()}, dict(reasons), rejected_path
    )


def check_rejected(extracted: Sequence[ExtractedChunk], max_fraction: float) -> dict[str, int]:
    """The number of bad rows by reason. Raises UserError where there are no rows, or too large a share is bad."""
    lines = sum(chunk.lines for chunk in extracted)
    if lines == 0:
        raise UserError(f"{extracted[0].chunk.file.name}: empty; there are no rows to preprocess")
    reasons: Tally[str] = Tally()
    for chunk in extracted:
        reasons.update(chunk.rejected)
    bad = reasons.total()
    if bad > max_fraction * lines:
        offset, first = next((o, c) for o, c in zip(first_lines(extracted), extracted, strict=True) if c.rejected)
        example = pq.read_table(first.rejected_path).slice(0, 1).to_pylist()[0]
        counts = ", ".join(f"{number:,} {reason}" for reason, number in reasons.most_common())
        raise UserError(
            f"{bad:,} of {lines:,} rows are bad ({counts}), more than preprocess.max_rejected_fraction "
            f"({max_fraction:g}); the first is {example['file']}, line {offset + example['line']}: {example['reason']}"
        )
    return dict(reasons)


def write_rejected(spark: "SparkSession", extracted: Sequence[ExtractedChunk], folder: Path, prefix: str = "") -> None:
    """Write the bad rows of all chunks to Parquet parts in `folder`, with their lines in the files.

    The names of the parts begin with `prefix`.
    """
    groups: list[list[tuple[Path, int]]] = []
    filled = _ROWS_PER_REJECTED_PART
    for offset, chunk in zip(first_lines(extracted), extracted, strict=True):
        number = sum(chunk.rejected.values())
        if number == 0:
            continue
        if filled >= _ROWS_PER_REJECTED_PART:
            groups.append([])
            filled = 0
        groups[-1].append((chunk.rejected_path, offset))
        filled += number

    def run(item: tuple[int, list[tuple[Path, int]]]) -> None:
        index, files = item
        with new_parquet(folder / f"{prefix}part-{index:05d}.parquet", REJECTED_SCHEMA) as writer:
            for path, offset in files:
                with pq.ParquetFile(path) as file:
                    for batch in file.iter_batches():
                        column = batch.schema.get_field_index("line")
                        lines = pc.add(batch.column(column), offset)
                        writer.write_batch(batch.set_column(column, REJECTED_SCHEMA.field("line"), lines))

    run_tasks(spark, list(enumerate(groups)), run)
