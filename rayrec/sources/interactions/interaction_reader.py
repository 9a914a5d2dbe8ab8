"""Files of interactions -> rows of `ROW_SCHEMA`: tables as the table source reads them, and lists of negatives."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.features.raw_columns import RawColumn
from rayrec.features.raw_values import Values, read_values
from rayrec.raw.blocks import Cell, ParsedLines, RawBlock, Reason, blocks_of
from rayrec.raw.formats.row_types import RawCells, read_labels, shown
from rayrec.raw.input_files import Chunk, InputFile, read_data_lines
from rayrec.raw.text_lines import TextLines
from rayrec.sources.interactions.config import ITEM, TIMESTAMP, USER, InteractionSourceConfig
from rayrec.sources.interactions.file_layout import InteractionLayout, detect_layout

LABEL = "label"
_SECONDS = pa.decimal128(25, 6)
"""Holds every 64-bit integer, and microseconds: times of any file compare exactly."""
ROW_SCHEMA = pa.schema(
    [
        pa.field(LABEL, pa.float32(), False),  # 1; 0 for what is no choice, such as the negatives of a list
        pa.field(USER, pa.string(), False),
        pa.field(ITEM, pa.string(), False),
        pa.field(TIMESTAMP, _SECONDS),  # since 1970; null if the file has none
    ]
)
_LIST = r"^\((?P<user>[^,]+),(?P<item>[^)]+)\)\t(?P<negatives>.+)$"


def id_column(name: str) -> RawColumn:
    """Return how users and items of files and requests are read: those that are numbers have one spelling."""
    return RawColumn(name=name, type="text", form="number")


@dataclass(frozen=True)
class InteractionReader:
    """Reads the chunks of files whose layouts are known."""

    layouts: tuple[InteractionLayout, ...]
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
        layouts = tuple(detect_layout(config, file, needs_time=needs_time) for file in files)
        for file, layout in zip(files, layouts, strict=True):
            if layout.table is not None:
                empty = {field.name: pa.nulls(0, field.type) for field in layout.table.columns}
                try:  # a column of a type that no user, item or time is read from
                    _parse(RawCells(empty, np.zeros(0, np.int64), 0, {}, lambda _: b""), layout)
                except UserError as error:
                    raise UserError(f"{file.name}: {error}") from None
        return cls(layouts)

    def read(self, chunk: Chunk) -> Iterator[RawBlock]:
        """Return the blocks of a chunk, a few megabytes each; lines count from the chunk's first, in Parquet files
        rows.
        """
        layout = self.layouts[chunk.file_index]
        if layout.table is None:
            return blocks_of(chunk, map(parse_lists, read_data_lines(chunk)))
        columns = [layout.user, layout.item, layout.timestamp, layout.choices.column if layout.choices else None]
        wanted = {name: None for name in columns if name is not None}
        parsed = (_parse(cells, layout) for _, cells in layout.table.read(chunk, wanted))
        return blocks_of(chunk, parsed, layout.table.header_lines if chunk.start == 0 else 0)


def _parse(cells: RawCells, layout: InteractionLayout) -> ParsedLines:
    """Return the rows of a table, label 1 if they are choices; those without user, item or a readable time are bad."""
    rows = len(cells.positions)
    label, timestamp = pa.array(np.ones(rows, np.float32)), pa.nulls(rows, _SECONDS)
    held = {name: cells.columns.get(name, pa.nulls(rows)) for name in (layout.user, layout.item)}
    ids = {name: read_values(values, id_column(name))[0] for name, values in held.items()}
    checks = [(name, values, Reason.EMPTY) for name, values in ids.items()]
    if layout.timestamp is not None:
        held[layout.timestamp] = cells.columns.get(layout.timestamp, pa.nulls(rows))
        timestamp = _read_seconds(held[layout.timestamp], layout.timestamp)
        checks.append((layout.timestamp, timestamp, Reason.INTEGER))
    if layout.choices is not None:
        given = cells.columns.get(layout.choices.column, pa.nulls(rows))
        label = read_labels(given, layout.choices)[0].fill_null(0.0)

    # The first value that is missing is why a row is bad.
    reasons, bad_cells = dict(cells.bad_lines), dict[int, Cell]()
    is_good = np.ones(rows, bool)
    for name, values, reason in checks:
        is_there = values.is_valid().to_numpy(zero_copy_only=False)
        for row in np.flatnonzero(is_good & ~is_there).tolist():
            line = int(cells.positions[row])
            reasons[line], bad_cells[line] = reason, (name, shown(held[name], row))
        is_good &= is_there
    columns = [label, ids[layout.user], ids[layout.item], timestamp]
    bad = sorted(reasons)
    return ParsedLines(
        rows=pa.RecordBatch.from_arrays([column.filter(pa.array(is_good)) for column in columns], schema=ROW_SCHEMA),
        positions=cells.positions[is_good],
        num_lines=cells.num_lines,
        rejected_positions=np.array(bad, np.int64),
        rejected_reasons=[reasons[line] for line in bad],
        rejected_texts=[cells.text(line) for line in bad],
        rejected_cells=bad_cells,
    )


def _read_seconds(values: Values, name: str) -> pa.Decimal128Array:
    """Return integers as they are, times and texts of ISO 8601 in seconds since 1970; null where a value is neither."""
    is_time = isinstance(values, pa.Array) and pa.types.is_temporal(values.type)
    numbers = pa.nulls(len(values), pa.int64())
    if not is_time:
        numbers, _ = read_values(values, RawColumn(name=name, type="integer"))
    seconds = numbers.cast(_SECONDS)
    if is_time or seconds.null_count:
        moments, _ = read_values(values, RawColumn(name=name, type="time", time_format="iso"))
        micros = moments.cast(pa.int64()).cast(pa.decimal128(19))
        seconds = pc.coalesce(seconds, pc.multiply(micros, Decimal("0.000001")).cast(_SECONDS))
    return seconds


def parse_lists(data: bytes) -> ParsedLines:
    """Parse whole lines `(user,item)`, tab, and the negatives of this positive with tabs between.

    Each becomes several rows: the positive with label 1, then its negatives. A negative that equals its positive is
    left out: the published lists contain some.
    """
    lines = TextLines(data)
    lines.reject_undecodable()
    text = lines.bytes_of(lines.good).decode()
    whole = pc.split_pattern(pa.array([text.removesuffix("\n")]), "\n").values if text else pa.array([], pa.string())
    parts = pc.extract_regex(whole, _LIST)
    numbers = np.flatnonzero(lines.good)
    is_list = parts.is_valid().to_numpy(zero_copy_only=False)
    lines.reject(numbers[~is_list], Reason.LIST)
    numbers, parts = numbers[is_list], parts.drop_null()

    # The items of a list: its positive, then the others.
    lists = pc.split_pattern(pc.binary_join_element_wise(parts.field("item"), parts.field("negatives"), "\t"), "\t")
    owner = pc.list_parent_indices(lists).to_numpy()
    user, _ = read_values(parts.field("user"), id_column(USER))
    item, _ = read_values(lists.flatten(), id_column(ITEM))
    is_bad = user.is_null().to_numpy(zero_copy_only=False).copy()
    is_bad[owner[item.is_null().to_numpy(zero_copy_only=False)]] = True
    lines.reject(numbers[is_bad], Reason.EMPTY)

    is_positive = np.diff(owner, prepend=-1) == 1
    positive = item.filter(pa.array(is_positive)).take(pa.array(owner))
    is_other = pc.not_equal(item, positive).fill_null(False).to_numpy(zero_copy_only=False)
    kept: NDArray[np.int64] = np.flatnonzero((is_positive | is_other) & ~is_bad[owner])
    owner = owner[kept]
    columns = [is_positive[kept].astype(np.float32), user.take(pa.array(owner)), item.take(pa.array(kept))]
    rows = pa.RecordBatch.from_arrays(
        [*map(pa.array, columns), pa.nulls(len(kept), _SECONDS)],
        schema=ROW_SCHEMA,
    )
    return lines.parsed(rows, numbers[owner])
