"""Rows of values as aligned text."""

from collections.abc import Mapping, Sequence
from typing import Any


def text_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A header of the keys of the first row that has each, then a line a row; numbers to the right."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [columns] + [[_cell(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    numeric = [all(not isinstance(row.get(column), str) for row in rows) for column in columns]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in cells
    )


def _cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case float():
            return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
        case int():
            return f"{value:,}"
        case _:
            return str(value)
