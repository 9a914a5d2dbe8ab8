"""Files of interactions -> rows of `ROW_SCHEMA`: tables, as the table source reads them, and lists of negatives."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.config.table import FileFormat, TimeColumn
from rayrec.features.raw_columns import RawColumn
from rayrec.features.raw_values import read_values
from rayrec.raw.delimited import first_fields
from rayrec.raw.input_files import Chunk, InputFile, plan_chunks
from rayrec.raw.rows import ParsedLines, RawBlock, Reason, blocks_of
from rayrec.raw.table_reader import TableFiles, TableReader, format_of, open_table, read_cells
from rayrec.raw.text import TextLines, read_data_lines
from rayrec.sources.interactions.config import ITEM, TIMESTAMP, USER, InteractionSourceConfig

LABEL = "label"
ROW_SCHEMA = pa.schema(
    [
        pa.field(LABEL, pa.float32(), False),  # 1; 0 for what is no choice, such as the negatives of a list
        pa.field(USER, pa.string(), False),
        pa.field(ITEM, pa.string(), False),
        pa.field(TIMESTAMP, pa.int64()),  # microseconds since 1970, or of no unit; null if the file has none
    ]
)
_COLUMNS, _COLUMN_COUNTS, _SEPARATORS = (USER, ITEM, "rating", TIMESTAMP), (2, 4), ("\t", "::")
"""The columns of published files without a header, how many of them there are, and what is between."""
_TIME_FORMATS = ("s", "ms", "us", "iso")
_HEAD_BYTES, _HEAD_ROWS = 2**16, 1_000
"""The rows whose times tell how they are written."""
_POSITIVE = re.compile(r"\([^,()]+,[^()]+\)")
_LIST = r"^\((?P<user>[^,]+),(?P<item>[^)]+)\)\t(?P<negatives>.+)$"


def id_column(name: str) -> RawColumn:
    """Return how users and items of files and requests are read: those that are numbers have one spelling."""
    return RawColumn(name=name, type="text", form="number")


@dataclass(frozen=True)
class InteractionReader:
    """Reads the chunks of tables, or of lists of a positive and its negatives."""

    table: TableReader | None = None
    """Reads the label if not every row is a choice, user, item, and the time if there is one; None for lists."""
    schema: pa.Schema = ROW_SCHEMA
    label: str = LABEL
    dictionaries: tuple[str, ...] = (USER, ITEM)
    file_columns: tuple[str, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return what a person should know of the files."""
        return () if self.table is None else self.table.warnings

    @property
    def time(self) -> RawColumn | None:
        """Return how times are read; None if the files have none."""
        columns = () if self.table is None else self.table.types.columns
        return columns[2] if len(columns) > 2 else None

    @classmethod
    def of_tables(
        cls, config: InteractionSourceConfig, files: Sequence[InputFile], *, is_scored: bool = False
    ) -> "InteractionReader":
        """Look at the beginning of every file. Raises UserError if the columns of one are unclear.

        Pairs that are scored have no time, and are no choices yet.
        """
        names, choices = config.names_in_files, None if is_scored else config.choices
        sides = (USER, ITEM) if is_scored else (USER, ITEM, TIMESTAMP)
        needed = [name for side in sides for name in names[side]] + ([choices.column] if choices else [])
        table = open_table(files, _format_of(config, files), needed=needed)
        columns = []
        for side in sides:
            given = config.given_names[side]
            name = next((name for name in names[side] if name in table.columns.names), None)
            if name is not None:
                columns.append(_time_column(config, table, name) if side == TIMESTAMP else id_column(name))
            elif side != TIMESTAMP or given:
                what = f"column '{given}'" if given else f"column of the {side}"
                among = ", ".join(repr(name) for name in table.columns.names[:8])
                raise UserError(
                    f"{files[0].name}: no {what} among {among}; set source.{side} to its name, or source.header to the "
                    "names of all columns if the files have none"
                )
        if choices is not None:
            choices = choices.model_copy(update={"missing": choices.missing or 0})
        return cls(table.reader(columns, choices, required=[column.name for column in columns]))

    def read(self, chunk: Chunk) -> Iterator[RawBlock]:
        """Return the blocks of a chunk, a few megabytes each; lines count from the chunk's first, in Parquet files
        rows.
        """
        if self.table is None:
            yield from blocks_of(chunk, map(_parse_lists, read_data_lines(chunk)))
            return
        for block in self.table.read(chunk):
            columns = block.rows.columns
            user, item, *times = values = columns[-len(self.table.types.columns) :]
            # A file of JSON lines may lack the column of choices.
            label = pa.array(np.full(len(user), 0.0 if self.table.label else 1.0, np.float32))
            label = columns[0] if len(columns) > len(values) else label
            time = times[0].cast(pa.int64()) if times else pa.nulls(len(user), pa.int64())
            yield replace(block, rows=pa.RecordBatch.from_arrays([label, user, item, time], schema=ROW_SCHEMA))


def has_lists(config: InteractionSourceConfig, file: InputFile) -> bool:
    """Tell whether a file has lists of a positive and its negatives."""
    as_lists = FileFormat(separator="\t", quote=False, encoding=config.encoding)
    is_text = format_of(file) == "delimited"
    return is_text and any(_POSITIVE.fullmatch(field) for field in first_fields(file, as_lists)[1][:1])


def _format_of(config: InteractionSourceConfig, files: Sequence[InputFile]) -> FileFormat:
    """Return how files hold rows; published ones without a header have `_COLUMNS`."""
    if config.header or config.user or config.item:
        return config
    kinds = ((file, format_of(file) if config.format == "auto" else config.format) for file in files)
    found = (first_fields(file, config) for file, kind in kinds if kind == "delimited")
    separator, fields = next((first for first in found if first[1]), ("", []))
    names = config.names_in_files
    is_headed = all(any(field.strip() in names[side] for field in fields) for side in (USER, ITEM))
    if is_headed or separator not in _SEPARATORS or len(fields) not in _COLUMN_COUNTS:
        return config
    return config.model_copy(update={"header": _COLUMNS[: len(fields)]})


def _time_column(config: InteractionSourceConfig, table: TableFiles, name: str) -> RawColumn:
    """Return how times are read: as the recipe says, or else in the way in which most of the first ones can be."""
    if isinstance(config.timestamp, TimeColumn):
        return RawColumn(name=name, type="time", time_format=config.timestamp.format, zone=config.timestamp.zone)
    ways = [RawColumn(name=name, type="time", time_format=time_format) for time_format in _TIME_FORMATS]
    if pa.types.is_temporal(table.columns.field(name).type):
        return ways[0]
    ways.append(RawColumn(name=name, type="integer"))  # of no unit, which tell the order alone
    table.reader(ways[:1])  # raises UserError if the column has a type of which no times are read
    for chunk in plan_chunks(table.files, _HEAD_BYTES):
        for _, cells in read_cells(table.layouts[chunk.file_index], chunk, {name: None}):
            if name in cells.columns and len(cells.positions):
                values = cells.columns[name][:_HEAD_ROWS]
                return max(ways, key=lambda way: len(values) - read_values(values, way)[0].null_count)
    return ways[0]


def _parse_lists(data: bytes) -> ParsedLines:
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
    lines.reject(numbers[is_bad], Reason.LIST)

    is_positive = np.diff(owner, prepend=-1) == 1
    positive = item.filter(pa.array(is_positive)).take(pa.array(owner))
    is_other = pc.not_equal(item, positive).fill_null(False).to_numpy(zero_copy_only=False)
    kept: NDArray[np.int64] = np.flatnonzero((is_positive | is_other) & ~is_bad[owner])
    owner = owner[kept]
    label = pa.array(is_positive[kept].astype(np.float32))
    columns = [label, user.take(pa.array(owner)), item.take(pa.array(kept)), pa.nulls(len(kept), pa.int64())]
    rows = pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA)
    return lines.parsed(rows, numbers[owner])
