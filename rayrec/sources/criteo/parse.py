"""Criteo's text -> Arrow columns, vectorised; rows that break the layout are set aside."""

import numpy as np
import pyarrow as pa

from rayrec.raw.blocks import ParsedLines
from rayrec.raw.rejected import Reason
from rayrec.raw.text_lines import TextLines, split_fields, to_integers
from rayrec.sources.criteo.layout import CATEGORICAL, LABEL, NUMERIC, SEPARATOR

_TAB = ord(SEPARATOR)
_ZERO, _ONE = 48, 49

FEATURES_SCHEMA = pa.schema([(n, pa.int64()) for n in NUMERIC] + [(n, pa.string()) for n in CATEGORICAL])
LABELLED_SCHEMA = FEATURES_SCHEMA.insert(0, pa.field(LABEL, pa.float32()))


def has_label(line: bytes) -> bool:
    """False where a line has exactly the columns of the features, as in files that are to be scored."""
    return line.count(SEPARATOR.encode()) + 1 != len(FEATURES_SCHEMA)


def parse_lines(data: bytes, is_labelled: bool = True) -> ParsedLines:
    """Parse whole lines, each ended by a newline (LF or CRLF). Quotes have no meaning in this layout."""
    lines = TextLines(data)
    schema = LABELLED_SCHEMA if is_labelled else FEATURES_SCHEMA
    if is_labelled and len(lines):
        # A line begins with the label and a tab; an empty last line has nothing after its newline.
        first, second = lines.raw[lines.starts], lines.raw[np.minimum(lines.starts + 1, len(lines.raw) - 1)]
        lines.reject(~(((first == _ZERO) | (first == _ONE)) & (second == _TAB)), Reason.LABEL)
    lines.reject_undecodable()
    lines.reject(lines.count(_TAB) + 1 != len(schema), Reason.COLUMNS)

    table = split_fields(lines.bytes_of(lines.good), schema.names, SEPARATOR)
    positions = np.flatnonzero(lines.good)
    columns = [table.column(LABEL).cast(pa.float32())] if is_labelled else []
    is_integer = np.ones(len(positions), bool)
    for name in NUMERIC:
        values, column_is_integer = to_integers(table.column(name))
        columns.append(values)
        is_integer &= column_is_integer
    columns += [table.column(name) for name in CATEGORICAL]
    rows = pa.RecordBatch.from_arrays(columns, schema=schema)
    if not is_integer.all():
        lines.reject(positions[~is_integer], Reason.INTEGER)
        rows, positions = rows.filter(pa.array(is_integer)), positions[is_integer]
    return lines.parsed(rows, positions)
