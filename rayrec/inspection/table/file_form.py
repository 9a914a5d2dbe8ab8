"""Recognize the form of raw files: what a recipe must say about them."""

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rayrec.common.errors import UserError
from rayrec.config.table import FileFormat
from rayrec.inspection.table.column_profile import NULL_WORDS
from rayrec.inspection.table.roles import column_of_label
from rayrec.raw.formats.delimited import first_line
from rayrec.raw.input_files import Chunk, InputFile, read_lines
from rayrec.raw.table_reader import format_of

_SEPARATORS = "\t,;|"
_LINES = 200


@dataclass(frozen=True)
class FileForm:
    """How files hold rows."""

    settings: FileFormat
    """What a recipe must say; defaults where rayrec finds out by itself."""
    is_delimited: bool
    reasons: Mapping[str, str]
    """Why, by field of `settings`."""

    @property
    def has_names(self) -> bool:
        """Return whether the files name their columns; otherwise they are numbered here."""
        return self.settings.header is None

    def with_null_values(self, words: Sequence[str]) -> "FileForm":
        """Return the same form of files in which `words` stand for missing values."""
        if not words:
            return self
        reasons = {**self.reasons, "null_values": "found among numbers, times or labels"}
        return replace(self, settings=self.settings.model_copy(update={"null_values": ("", *words)}), reasons=reasons)


def recognize(file: InputFile, label: str | None = None) -> FileForm:
    """Return the form of a file, by its name and its first lines; a line with the name of the `label` is a header.

    Raises UserError if the file has none.
    """
    if format_of(file) != "delimited":
        return FileForm(FileFormat(), False, {})
    lines = first_lines(file)
    settings: dict[str, object] = {}
    reasons: dict[str, str] = {}
    separator = _separator(lines)
    if separator != ("\t" if "\t" in lines[0] else ","):
        settings["separator"], reasons["separator"] = separator, "occurs equally often in every line"
    if _has_loose_quotes(lines, separator):
        settings["quote"], reasons["quote"] = False, "double quotes do not enclose fields here"
    rows = [_fields(line, separator, quote="quote" not in settings) for line in lines]
    if not _is_header(rows[0], rows[1:], label):
        settings["header"] = tuple(f"c{number}" for number in range(1, len(rows[0]) + 1))
        reasons["header"] = "the first line looks like data, so columns are numbered; rename them"
    return FileForm(FileFormat.model_validate(settings), True, reasons)


def first_lines(file: InputFile) -> list[str]:
    """Return the lines, up to 200, that a text file begins with, without empty ones. Raises UserError if none is."""
    first_line(file)  # refuses what is no text
    block = next(read_lines(Chunk(file, 0, 0, None if file.packing else min(file.bytes, 2**20))), b"")
    try:
        lines = [line.decode().removesuffix("\r") for line in block.split(b"\n")[:_LINES]]
    except UnicodeDecodeError:
        raise UserError(f"{file.name}: not UTF-8 text; convert it to UTF-8") from None
    lines = [line for line in lines if line]
    if not lines:
        raise UserError(f"{file.name}: empty; give files with rows")
    return lines


def _separator(lines: Sequence[str]) -> str:
    """Return the separator that stands most often, and about equally often in each line."""
    counts = {mark: np.array([len(_fields(line, mark)) for line in lines]) - 1 for mark in _SEPARATORS}
    steady = [mark for mark, found in counts.items() if found[0] and (found == found[0]).mean() > 0.9]
    return max(steady, key=lambda mark: counts[mark][0], default=",")


def _fields(line: str, separator: str, quote: bool = True) -> list[str]:
    return next(csv.reader([line], delimiter=separator), []) if quote else line.split(separator)


def _has_loose_quotes(lines: Sequence[str], separator: str) -> bool:
    """Return whether double quotes are not paired in a line, though all lines have as many separators."""
    return any(line.count('"') % 2 for line in lines) and len({line.count(separator) for line in lines}) == 1


def _is_header(first: Sequence[str], others: Sequence[Sequence[str]], label: str | None) -> bool:
    """Tell whether a line names columns: it has the label's name, or most columns that tell say so.

    A column of numbers tells by whether its first field is one, too; a column of texts, if the first one is among the
    others or looks as they do, such as dates.
    """
    if label is not None and column_of_label(label, [field.strip() for field in first]) is not None:
        return True
    names = votes = 0
    for i, name in enumerate(field.strip() for field in first):
        below = [row[i].strip() for row in others if i < len(row) and row != first]
        below = [field for field in below if field and field not in NULL_WORDS]
        if not below or not name or name in NULL_WORDS:
            continue
        if np.mean([_is_number(field) for field in below]) > 0.9:
            votes += 1
            names += not _is_number(name)
        elif name in below or ("9" in _shape(name) and np.mean([_shape(f) == _shape(name) for f in below]) > 0.5):
            votes += 1
    return 2 * names > votes if votes else not any(map(_is_number, first))


def _shape(text: str) -> str:
    """Return a text with a 9 for each run of digits and an a for each run of letters."""
    return re.sub(r"[^\W\d_]+", "a", re.sub(r"[0-9]+", "9", text))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
