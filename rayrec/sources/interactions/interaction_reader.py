"""Files of interactions -> rows of `ROW_SCHEMA`: tables, as the table source reads them, and lists of negatives.

The first line of a file, or its columns, say where it has user, item and time.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.config.table import FileFormat, LabelCondition
from rayrec.features.raw_columns import RawColumn
from rayrec.features.raw_values import Values, read_values
from rayrec.raw.blocks import Cell, ParsedLines, RawBlock, Reason, blocks_of
from rayrec.raw.formats.delimited import first_line
from rayrec.raw.formats.row_types import RawCells, read_labels, shown
from rayrec.raw.input_files import READ_ERRORS, Chunk, InputFile, read_data_lines
from rayrec.raw.table_reader import Layout, format_of, open_table
from rayrec.raw.text_lines import TextLines, unquoted_fields
from rayrec.sources.interactions.config import ITEM, TIMESTAMP, USER, USUAL_NAMES, InteractionSourceConfig

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
_SEPARATORS = {"double_colon": "::", "tab": "\t", "csv": ","}
_LIST_LINE = re.compile(r"^\([^,()\t]+,[^()\t]+\)(\t|$)")
_LIST = r"^\((?P<user>[^,]+),(?P<item>[^)]+)\)\t(?P<negatives>.+)$"


def id_column(name: str) -> RawColumn:
    """Return how users and items of files and requests are read: those that are numbers have one spelling."""
    return RawColumn(name=name, type="text", form="number")


@dataclass(frozen=True)
class InteractionLayout:
    """The columns of user, item and time in the rows of one file."""

    table: Layout | None
    """How the table source reads the file; None for lines of a positive and its negatives."""
    user: str = USER
    item: str = ITEM
    timestamp: str | None = None
    choices: LabelCondition | None = None
    """The condition on a column of the rows that are choices; None if all are."""


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
            return blocks_of(chunk, map(_parse_lists, read_data_lines(chunk)))
        columns = [layout.user, layout.item, layout.timestamp, layout.choices.column if layout.choices else None]
        wanted = {name: None for name in columns if name is not None}
        return blocks_of(chunk, (_parse(cells, layout) for _, cells in layout.table.read(chunk, wanted)))


def detect_layout(config: InteractionSourceConfig, file: InputFile, *, needs_time: bool = True) -> InteractionLayout:
    """Look at the beginning of a file. Raises UserError if it does not tell the columns that are needed.

    Without `needs_time` the layout has no timestamp, whatever the file has.
    """
    if not needs_time:
        config = config.model_copy(update={"timestamp": None})
    found = _table_with_types(config, file)
    if found is not None:
        return _with_columns(config, file, found, found.columns.names, needs_time)
    line = first_line(file)
    if line is None:
        raise UserError(f"{file.name}: empty; there are no rows to preprocess")
    if _LIST_LINE.match(line):
        return InteractionLayout(None)
    kind = config.layout if config.layout != "auto" else _kind_of_line(file, line)
    is_csv, separator = kind == "csv", _SEPARATORS[kind]
    fields = (unquoted_fields(line, separator) or []) if is_csv else line.split(separator)
    names = [field.strip() for field in fields]
    # A header names user and item; CSV always has one, and so has what the recipe states columns of.
    has_header = is_csv or any(config.given_names.values()) or None not in _columns_among(config, names)[:2]
    if not has_header:
        names = [f"c{number}" for number in range(1, len(fields) + 1)]
    header = None if has_header else tuple(names)
    table_format = FileFormat(format="delimited", separator=separator, quote=is_csv, header=header)
    table = open_table([file], table_format).layouts[0]
    if has_header:
        return _with_columns(config, file, table, table.columns.names, needs_time)
    if len(names) not in (2, 4):
        raise UserError(
            f"{file.name}: {len(names)} columns without a header; needs user, item, or user, item, rating, timestamp, "
            "or a header that names them"
        )
    _check_choices(config, file, names)
    return InteractionLayout(table, "c1", "c2", "c4" if len(names) == 4 and needs_time else None, config.choices)


def _table_with_types(config: InteractionSourceConfig, file: InputFile) -> Layout | None:
    """Return the layout of a Parquet file, or of JSON lines by the file's name; None for other text."""
    try:
        with file.open() as stream:
            is_parquet = stream.read(4) == b"PAR1"
    except READ_ERRORS as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"{file.name}: damaged or unreadable ({reason}); fetch it again") from None
    if config.layout == "parquet" and not is_parquet:
        raise UserError(f"{file.name}: no Parquet file; check source.layout")
    if config.layout == "parquet" or (config.layout == "auto" and is_parquet):
        return open_table([file], FileFormat(format="parquet")).layouts[0]
    if config.layout == "auto" and format_of(file) == "json_lines":
        return open_table([file], FileFormat(format="json_lines")).layouts[0]
    return None


def _kind_of_line(file: InputFile, line: str) -> str:
    kind = next((kind for kind, separator in _SEPARATORS.items() if separator in line), None)
    if kind is None:
        raise UserError(
            f"{file.name}: no rows of user and item (the first line has no tab, '::' or comma); give ratings to --input"
        )
    return kind


def _columns_among(config: InteractionSourceConfig, names: Sequence[str]) -> list[str | None]:
    """Return the columns of user, item and timestamp: the ones that the recipe states, or the first usual ones."""
    wanted = {side: (given,) if given else USUAL_NAMES[side] for side, given in config.given_names.items()}
    return [next((name for name in wanted[side] if name in names), None) for side in (USER, ITEM, TIMESTAMP)]


def _with_columns(
    config: InteractionSourceConfig, file: InputFile, table: Layout, names: Sequence[str], needs_time: bool
) -> InteractionLayout:
    """Return the layout of a file that names its columns. Raises UserError if a needed one is missing."""
    user, item, timestamp = _columns_among(config, names)
    for (side, given), name in zip(config.given_names.items(), (user, item, timestamp), strict=True):
        if name is None and (side != TIMESTAMP or given):
            what = f"column '{given}'" if given else f"column of the {side}"
            raise UserError(f"{file.name}: no {what} among {_first_of(names)}; set source.{side} to its name")
    _check_choices(config, file, names)
    assert user is not None and item is not None
    return InteractionLayout(table, user, item, timestamp if needs_time else None, config.choices)


def _check_choices(config: InteractionSourceConfig, file: InputFile, names: Sequence[str]) -> None:
    if config.choices is not None and config.choices.column not in names:
        raise UserError(
            f"{file.name}: no column '{config.choices.column}' of source.choices among {_first_of(names)}; name another"
        )


def _first_of(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names[:8])


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
    lines.reject(numbers[is_bad], Reason.EMPTY)

    is_positive = np.diff(owner, prepend=-1) == 1
    positive = item.filter(pa.array(is_positive)).take(pa.array(owner))
    is_other = pc.not_equal(item, positive).fill_null(False).to_numpy(zero_copy_only=False)
    kept: NDArray[np.int64] = np.flatnonzero((is_positive | is_other) & ~is_bad[owner])
    owner = owner[kept]
    label = pa.array(is_positive[kept].astype(np.float32))
    columns = [label, user.take(pa.array(owner)), item.take(pa.array(kept)), pa.nulls(len(kept), _SECONDS)]
    rows = pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA)
    return lines.parsed(rows, numbers[owner])
