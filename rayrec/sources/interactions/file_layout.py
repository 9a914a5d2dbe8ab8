"""Finds where a file of interactions has user, item and time, by its first line or its columns."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from rayrec.common.errors import UserError
from rayrec.config.table import FileFormat, LabelCondition
from rayrec.raw.formats.delimited import DelimitedLayout, first_line
from rayrec.raw.formats.row_types import RawCells
from rayrec.raw.input_files import READ_ERRORS, InputFile
from rayrec.raw.table_reader import Layout, format_of, open_table
from rayrec.raw.text_lines import TextLines, unquoted_fields
from rayrec.sources.interactions.config import ITEM, TIMESTAMP, USER, USUAL_NAMES, InteractionSourceConfig

_SEPARATORS = {"double_colon": "::", "tab": "\t", "csv": ","}
_LIST_LINE = re.compile(r"^\([^,()\t]+,[^()\t]+\)(\t|$)")


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


class _DoubleColonLayout(DelimitedLayout):
    """Rows with `::` between fields. None has a tab: with one it has a column too many."""

    def split(self, data: bytes, wanted: Collection[str]) -> RawCells:
        return replace(super().split(data.replace(b"::", b"\t"), wanted), text=TextLines(data).line)


def detect_layout(config: InteractionSourceConfig, file: InputFile, *, needs_time: bool = True) -> InteractionLayout:
    """Look at the beginning of a file. Raises UserError if it does not tell the columns that are needed.

    Without `needs_time` the layout has no timestamp, whatever the file has.
    """
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
    make = _DoubleColonLayout if kind == "double_colon" else DelimitedLayout
    table = make(
        tuple(names),
        separator if len(separator) == 1 else "\t",
        has_quotes=is_csv,
        null_values=("",),
        header=line.encode() if has_header else None,
    )
    if has_header:
        return _with_columns(config, file, table, names, needs_time)
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
    if not needs_time:
        config = config.model_copy(update={"timestamp": None})
    user, item, timestamp = _columns_among(config, names)
    for (side, given), name in zip(config.given_names.items(), (user, item, timestamp), strict=True):
        if name is None and (side != TIMESTAMP or given):
            what = f"column '{given}'" if given else f"column of the {side}"
            raise UserError(f"{file.name}: no {what} among {_shown(names)}; set source.{side} to its name")
    _check_choices(config, file, names)
    assert user is not None and item is not None
    return InteractionLayout(table, user, item, timestamp if needs_time else None, config.choices)


def _check_choices(config: InteractionSourceConfig, file: InputFile, names: Sequence[str]) -> None:
    if config.choices is not None and config.choices.column not in names:
        raise UserError(
            f"{file.name}: no column '{config.choices.column}' of source.choices among {_shown(names)}; name another"
        )


def _shown(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names[:8])
