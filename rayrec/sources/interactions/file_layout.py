"""Recognizes the layouts of files of interactions from their names and their first bytes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from rayrec.common.errors import UserError
from rayrec.config.table import LabelCondition
from rayrec.features.raw_columns import RawColumn
from rayrec.raw.input_files import READ_ERRORS, InputFile
from rayrec.raw.text_lines import unquoted_fields
from rayrec.sources.interactions.config import ITEM, TIMESTAMP, USER, USUAL_NAMES, InteractionSourceConfig

LABEL = "label"
ROW_SCHEMA = pa.schema(
    [
        pa.field(LABEL, pa.float32(), False),  # 1; 0 for what is no choice, such as the negatives of a list
        pa.field(USER, pa.string(), False),
        pa.field(ITEM, pa.string(), False),
        pa.field(TIMESTAMP, pa.int64()),  # null if the file has none
    ]
)

IDS = tuple(RawColumn(name=name, type="text", form="number") for name in (USER, ITEM))
"""How files and requests are read: users and items that are numbers have one spelling."""
_SEPARATORS = {"tab": "\t", "double_colon": "::", "csv": ","}
_LIST_LINE = re.compile(rb"^\([^,()\t]+,[^()\t]+\)(\t|$)")
_HEAD_BYTES = 2**16
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class FileLayout:
    """The columns of user, item and time in the rows of one file."""

    kind: Literal["text", "lists", "parquet"]
    """`lists` are lines of a positive and its negatives, for which the other fields have no meaning."""
    separator: str = ""
    num_columns: int = 0
    """Number of columns of a text file."""
    columns: tuple[int, int, int | None] = (0, 1, None)
    """Positions of user, item and, if there is one, timestamp."""
    has_header: bool = False
    has_quotes: bool = False
    """Whether a field may stand in double quotes."""
    choices: tuple[int, LabelCondition] | None = None
    """The position of the column that says which rows are choices, and how; None if all are."""

    @property
    def has_timestamp(self) -> bool:
        return self.columns[2] is not None


def detect_layout(config: InteractionSourceConfig, file: InputFile, *, needs_time: bool = True) -> FileLayout:
    """Read the beginning of a file. Raises UserError if it does not tell the columns that are needed.

    Without `needs_time` the layout has no timestamp, whatever the file has.
    """
    if not needs_time:
        config = config.model_copy(update={"timestamp": None})
    try:
        with file.open() as stream:
            head: bytes = stream.read(_HEAD_BYTES)
    except READ_ERRORS as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"{file.name}: damaged or unreadable ({reason}); fetch it again") from None
    if not head:
        raise UserError(f"{file.name}: empty; there are no rows to preprocess")
    if config.layout == "parquet" or (config.layout == "auto" and head.startswith(b"PAR1")):
        return _parquet_layout(config, file, needs_time)
    line = head.removeprefix(_BYTE_ORDER_MARK).split(b"\n", 1)[0].rstrip(b"\r")
    if _LIST_LINE.match(line):
        return FileLayout("lists")
    text = line.decode("utf-8", "replace")
    kind = config.layout if config.layout != "auto" else _kind_of_line(file, text)
    separator = _SEPARATORS[kind]
    fields = unquoted_fields(text, separator) if kind == "csv" else text.split(separator)
    names = [field.strip() for field in fields or []]
    found = _named_columns(config, names, needs_time)
    is_header = found[0] is not None and found[1] is not None
    if is_header or kind == "csv" or any(config.given_names.values()):
        columns = _check_named(config, file, names, found)
        choices = _choices(config, file, names)
        return FileLayout("text", separator, len(names), columns, True, kind == "csv", choices)
    if len(names) not in (2, 4):
        raise UserError(
            f"{file.name}: {len(names)} columns without a header; needs user, item, or user, item, rating, timestamp, "
            "or a header that names them"
        )
    choices = _choices(config, file, [f"c{number}" for number in range(1, len(names) + 1)])
    return FileLayout(
        "text", separator, len(names), (0, 1, 3 if len(names) == 4 and needs_time else None), choices=choices
    )


def _kind_of_line(file: InputFile, line: str) -> str:
    for kind in ("double_colon", "tab", "csv"):
        if _SEPARATORS[kind] in line:
            return kind
    raise UserError(
        f"{file.name}: no rows of user and item (the first line has no tab, '::' or comma); give ratings to --input"
    )


def _parquet_layout(config: InteractionSourceConfig, file: InputFile, needs_time: bool) -> FileLayout:
    try:
        with file.open_packed() as stream:
            schema = pq.read_schema(stream)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{file.name}: no Parquet file ({str(error).splitlines()[0]}); check source.layout") from None
    columns = _check_named(config, file, schema.names, _named_columns(config, schema.names, needs_time))
    for position, side in zip(columns, USUAL_NAMES, strict=True):
        if position is not None and not _is_readable(schema.field(position).type, side):
            needed = "integers, times or ISO 8601" if side == TIMESTAMP else "strings or numbers"
            field = schema.field(position)
            raise UserError(f"{file.name}: column '{field.name}' holds {field.type}, needs {needed}; convert it")
    return FileLayout("parquet", columns=columns, choices=_choices(config, file, schema.names))


def _choices(
    config: InteractionSourceConfig, file: InputFile, names: Sequence[str]
) -> tuple[int, LabelCondition] | None:
    if config.choices is None:
        return None
    if config.choices.column not in names:
        shown = ", ".join(repr(name) for name in names[:8])
        raise UserError(
            f"{file.name}: no column '{config.choices.column}' of source.choices among {shown}; name another"
        )
    return names.index(config.choices.column), config.choices


def _is_readable(dtype: pa.DataType, side: str) -> bool:
    if pa.types.is_dictionary(dtype):
        return _is_readable(dtype.value_type, side)
    if side == TIMESTAMP and pa.types.is_timestamp(dtype):
        return True
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_string, pa.types.is_large_string)
    return pa.types.is_string_view(dtype) or any(test(dtype) for test in kinds)


def _named_columns(
    config: InteractionSourceConfig, names: Sequence[str], needs_time: bool
) -> tuple[int | None, int | None, int | None]:
    """Return the positions of user, item and timestamp among the names of a header."""
    user, item, timestamp = (
        next((names.index(name) for name in ((given,) if given else USUAL_NAMES[side]) if name in names), None)
        for side, given in config.given_names.items()
    )
    return user, item, timestamp if needs_time else None


def _check_named(
    config: InteractionSourceConfig, file: InputFile, names: Sequence[str], found: Sequence[int | None]
) -> tuple[int, int, int | None]:
    """Return the positions in `found`. Raises UserError if a needed one is missing."""
    for (side, given), position in zip(config.given_names.items(), found, strict=True):
        if position is None and (side != TIMESTAMP or given):
            what = f"column '{given}'" if given else f"column of the {side}"
            shown = ", ".join(repr(name) for name in names[:8])
            raise UserError(f"{file.name}: no {what} among {shown}; set source.{side} to its name")
    user, item, timestamp = found
    assert user is not None and item is not None
    return user, item, timestamp
