"""Text of interactions -> Arrow columns, vectorized; rows that break the layout are set aside."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.features.raw_columns import RawColumn
from rayrec.features.raw_values import read_column
from rayrec.features.text_forms import in_form
from rayrec.raw.blocks import ParsedLines, Reason
from rayrec.raw.text_lines import TextLines, split_fields, unquoted_fields
from rayrec.sources.interactions.file_layout import IDS, ITEM, LABEL, ROW_SCHEMA, TIMESTAMP, USER, FileLayout

_QUOTE = ord('"')
_LIST = r"^\((?P<user>[^,]+),(?P<item>[^)]+)\)\t(?P<negatives>.+)$"


def parse_lines(data: bytes, layout: FileLayout) -> ParsedLines:
    """Parse whole lines of a text file, each ended by a newline (LF or CRLF), without the header.

    The rows are those of `ROW_SCHEMA`, with label 1 if they are choices. Times are integers, or text of ISO 8601, in
    seconds since 1970.
    """
    original = TextLines(data)
    # Arrow splits at one byte. No row of the `::` layout has a tab: with one it has a column too many.
    is_double = layout.separator == "::"
    lines = TextLines(original.data.replace(b"::", b"\t")) if is_double else original
    separator = "\t" if is_double else layout.separator
    is_quoted = lines.count(_QUOTE) > 0 if layout.has_quotes else np.zeros(len(lines), bool)
    lines.reject_undecodable()
    lines.reject((lines.count(ord(separator)) + 1 != layout.num_columns) & ~is_quoted, Reason.COLUMNS)
    quoted = _quoted_rows(lines, np.flatnonzero(is_quoted & lines.good), layout)
    is_plain = lines.good & ~is_quoted

    wanted = {side: c for side, c in zip((USER, ITEM, TIMESTAMP), layout.columns, strict=True) if c is not None}
    if layout.choices is not None:
        wanted[LABEL] = layout.choices[0]
    names = [str(position) for position in range(layout.num_columns)]
    plain = split_fields(lines.bytes_of(is_plain), names, separator)
    positions = np.concatenate((np.flatnonzero(is_plain), np.fromiter(quoted, np.int64, len(quoted))))
    order = np.argsort(positions)
    positions = positions[order]
    columns = {}
    for side, column in wanted.items():
        values = pa.chunked_array(
            [plain.column(column), pa.array([f[column] or None for f in quoted.values()], pa.string())]
        )
        columns[side] = values.combine_chunks().take(pa.array(order)) if quoted else plain.column(column)
    label = read_choices(columns.get(LABEL), layout, len(positions))
    return _checked(lines, columns, label, positions, original)


def read_choices(column: pa.Array | None, layout: FileLayout, rows: int) -> pa.FloatArray:
    """(rows,) 1 where a row is a choice, by `layout.choices` and its column; where that has no value, it is none."""
    if layout.choices is None or column is None:
        return pa.array(np.ones(rows, np.float32))
    condition = layout.choices[1]
    kind = "text" if condition.at_least is None else "number"
    values, _ = read_column(column, RawColumn(name=LABEL, type=kind, form="number"))
    if condition.equals is not None:
        holds = pc.is_in(values, value_set=in_form(pa.array(condition.equals, pa.string()), "number"))
    else:
        holds = pc.greater_equal(values, condition.at_least)
    return holds.fill_null(False).cast(pa.float32())


def read_times(column: pa.Array) -> pa.Int64Array:
    """Return (n,) integers as they are, texts of ISO 8601 in seconds since 1970; null where a value is neither."""
    times, _ = read_column(column, RawColumn(name=TIMESTAMP, type="integer"))
    if times.null_count:
        dates, _ = read_column(column, RawColumn(name=TIMESTAMP, type="time", time_format="iso"))
        times = pc.coalesce(times, pc.divide(dates.cast(pa.int64()), 1_000_000))
    return times


def _quoted_rows(lines: TextLines, numbers: NDArray[np.int64], layout: FileLayout) -> dict[int, list[str]]:
    """Return the fields of lines with quotes, by line, one at a time; lines with another number of columns are
    rejected.
    """
    rows = {}
    for number in numbers.tolist():
        fields = unquoted_fields(lines.line(number).decode(), layout.separator)
        if fields is None or len(fields) != layout.num_columns:
            lines.reject([number], Reason.COLUMNS)
        else:
            rows[number] = fields
    return rows


def _checked(
    lines: TextLines,
    columns: dict[str, pa.Array],
    label: pa.FloatArray,
    positions: NDArray[np.int64],
    original: TextLines,
) -> ParsedLines:
    """Return the rows of the columns user, item and perhaps timestamp (strings) at `positions`, the bad ones
    left out.
    """
    user, item = read_ids(columns[USER], columns[ITEM])
    is_filled = pc.and_(user.is_valid(), item.is_valid()).to_numpy(zero_copy_only=False)
    is_good = is_filled
    timestamp: pa.Array = pa.nulls(len(positions), pa.int64())
    if TIMESTAMP in columns:
        timestamp = read_times(columns[TIMESTAMP])
        is_timed = timestamp.is_valid().to_numpy(zero_copy_only=False)
        lines.reject(positions[~is_timed], Reason.INTEGER)
        is_good = is_filled & is_timed
    lines.reject(positions[~is_filled], Reason.EMPTY)
    rows = pa.RecordBatch.from_arrays([label, user, item, timestamp], schema=ROW_SCHEMA)
    if not is_good.all():
        rows, positions = rows.filter(pa.array(is_good)), positions[is_good]
    return lines.parsed(rows, positions, texts=original)


def read_ids(users: pa.Array, items: pa.Array) -> list[pa.Array]:
    """Read (n,) users and items as texts; null for what is missing or no id."""
    return [read_column(values, raw)[0] for values, raw in zip((users, items), IDS, strict=True)]


def parse_lists(data: bytes) -> ParsedLines:
    """Parse lists of the NCF paper, a line each: `(user,item)`, a tab, and items that are the negatives.

    A row for the positive (label 1), then one for each negative (label 0), in order; a negative that is the positive
    itself is dropped.
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
    user, item = parts.field(USER), parts.field(ITEM)

    negatives = pc.split_pattern(parts.field("negatives"), "\t")
    lengths = pc.list_value_length(negatives).to_numpy(zero_copy_only=False).astype(np.int64)
    owner = np.repeat(np.arange(len(numbers)), lengths)
    user, item = read_ids(user, item)
    values = read_column(negatives.flatten(), IDS[1])[0]
    is_empty = np.zeros(len(numbers), bool)
    is_empty[owner[values.is_null().to_numpy(zero_copy_only=False)]] = True
    is_empty |= pc.or_(user.is_null(), item.is_null()).to_numpy(zero_copy_only=False)
    lines.reject(numbers[is_empty], Reason.EMPTY)

    is_positive = pc.fill_null(pc.equal(values, item.take(pa.array(owner))), False).to_numpy(zero_copy_only=False)
    kept = ~is_positive & ~is_empty[owner]
    lists = np.flatnonzero(~is_empty)
    # Each positive before its negatives: a stable sort by list.
    owners = np.concatenate((lists, owner[kept]))
    order = np.argsort(owners, kind="stable")
    items = pa.chunked_array([item.take(pa.array(lists)), values.filter(pa.array(kept))], pa.string()).combine_chunks()
    labels = np.zeros(len(owners), np.float32)
    labels[: len(lists)] = 1.0
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array(labels[order]),
            user.take(pa.array(owners[order])),
            items.take(pa.array(order)),
            pa.nulls(len(order), pa.int64()),
        ],
        schema=ROW_SCHEMA,
    )
    return lines.parsed(rows, numbers[owners[order]])
