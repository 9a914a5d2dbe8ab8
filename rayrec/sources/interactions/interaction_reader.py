"""Chunks of files of interactions -> rows of `ROW_SCHEMA`, whatever the layout of each file."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rayrec.raw.blocks import ParsedLines, RawBlock, Reason, blocks_of, text_blocks
from rayrec.raw.formats.parquet_layout import read_layout, read_row_groups
from rayrec.raw.input_files import Chunk, InputFile
from rayrec.sources.interactions.config import InteractionSourceConfig
from rayrec.sources.interactions.file_layout import ITEM, LABEL, ROW_SCHEMA, USER, FileLayout, detect_layout
from rayrec.sources.interactions.interaction_parser import parse_lines, parse_lists, read_choices, read_ids, read_times


@dataclass(frozen=True)
class InteractionReader:
    """Reads the chunks of files whose layouts are known."""

    layouts: tuple[FileLayout, ...]
    """The layout of each file."""
    schema: pa.Schema = ROW_SCHEMA
    label: str = LABEL
    dictionaries: tuple[str, ...] = (USER, ITEM)
    file_columns: tuple[str, ...] = ()

    @classmethod
    def detect(
        cls, config: InteractionSourceConfig, files: Sequence[InputFile], *, needs_time: bool = True
    ) -> "InteractionReader":
        """Look at the beginning of every file. Raises UserError if the columns of one are unclear.

        Without `needs_time` no times are read, so that rows may lack them.
        """
        return cls(tuple(detect_layout(config, file, needs_time=needs_time) for file in files))

    def read(self, chunk: Chunk) -> Iterator[RawBlock]:
        """Return the blocks of a chunk, a few megabytes each; lines count from the chunk's first, in Parquet files
        rows.
        """
        layout = self.layouts[chunk.file_index]
        if layout.kind == "parquet":
            return blocks_of(chunk, _read_parquet(chunk, layout))
        if layout.kind == "lists":
            return text_blocks(chunk, parse_lists, has_header=layout.has_header)
        return text_blocks(chunk, lambda data: parse_lines(data, layout), has_header=layout.has_header)


def _read_parquet(chunk: Chunk, layout: FileLayout) -> Iterator[ParsedLines]:
    """Yield the rows of the row groups that begin in the chunk's bytes."""
    schema = read_layout(chunk.file).columns
    names = [None if position is None else schema.names[position] for position in layout.columns]
    choices = None if layout.choices is None else schema.names[layout.choices[0]]
    wanted = dict.fromkeys(name for name in (*names, choices) if name is not None)
    for batch in read_row_groups(chunk, list(wanted)):
        label = read_choices(None if choices is None else batch[choices], layout, len(batch))
        yield _parse_batch(batch, names, label)


def _parse_batch(batch: pa.RecordBatch, names: Sequence[str | None], label: pa.FloatArray) -> ParsedLines:
    user, item = read_ids(*(batch[name] for name in names[:2]))
    timestamp = pa.nulls(len(batch), pa.int64()) if names[2] is None else _as_integers(batch[names[2]])
    is_filled = pc.and_(user.is_valid(), item.is_valid()).to_numpy(zero_copy_only=False)
    is_timed = np.ones(len(batch), bool)
    if names[2] is not None:
        is_timed = timestamp.is_valid().to_numpy(zero_copy_only=False)
    is_good = is_filled & is_timed
    columns = [column.filter(pa.array(is_good)) for column in (label, user, item, timestamp)]
    rejected = np.flatnonzero(~is_good)
    return ParsedLines(
        rows=pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA),
        positions=np.flatnonzero(is_good),
        num_lines=len(batch),
        rejected_positions=rejected,
        rejected_reasons=[Reason.INTEGER if is_filled[i] else Reason.EMPTY for i in rejected],
        rejected_texts=[str(batch.slice(i, 1).to_pylist()[0]).encode() for i in rejected],
    )


def _as_integers(column: pa.Array) -> pa.Int64Array:
    decoded = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    if pa.types.is_timestamp(decoded.type):
        # One unit for all files; times within a microsecond count as equal.
        decoded = decoded.cast(pa.timestamp("us", decoded.type.tz), safe=False)
    if pa.types.is_temporal(decoded.type):
        return decoded.cast(pa.int64())
    return read_times(decoded)
