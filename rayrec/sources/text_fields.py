"""Fields of one line in which double quotes enclose separators."""

import csv


def unquoted_fields(line: str, separator: str) -> list[str] | None:
    """The fields of a line, without their quotes; None where a quote is not closed."""
    try:
        return next(csv.reader([line], delimiter=separator, strict=True), [])
    except csv.Error:
        return None
