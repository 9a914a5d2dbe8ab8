"""Recognize the form of raw files: what a recipe must say about them.

The encoding of a text that is not UTF-8 is told by how much of it are words then.
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from rayrec.common.errors import UserError
from rayrec.config.table import FileFormat
from rayrec.inspection.table.columns import NULL_WORDS
from rayrec.inspection.table.roles import column_of_label
from rayrec.raw.delimited import DelimitedLayout, refuse_other_formats, separator_of, separator_told
from rayrec.raw.input_files import InputFile
from rayrec.raw.table_reader import format_of
from rayrec.raw.text import UTF8, read_head

WESTERN = "windows-1252"
"""The encoding of texts of Western Europe, and of what no other explains."""
_GOOD, _FAIR = 0.9, 0.75
"""The share of characters beyond ASCII that fit at which a text is taken to be Western, or of another encoding."""
_MOST_BYTES = 2**16
_SCRIPTS = {
    WESTERN: "LATIN",
    "windows-1251": "CYRILLIC",
    "koi8_r": "CYRILLIC",
    "cp866": "CYRILLIC",
    "windows-1253": "GREEK",
    "mac_roman": "LATIN",
    "cp850": "LATIN",
    "windows-1250": "LATIN",
    "iso8859_2": "LATIN",
}
"""Encodings with a byte a character, and the script of their words."""
_COMMON: dict[str, tuple[tuple[tuple[int, int], ...], int]] = {
    "euc_kr": (((0xB0, 0xC8),), 0xA1),
    "shift_jis": (((0x82, 0x83), (0x88, 0x97)), 0x40),
    "gb18030": (((0xB0, 0xD7),), 0xA1),
    "euc_jp": (((0xA4, 0xA5), (0xB0, 0xCF)), 0xA1),
    "big5": (((0xA4, 0xC6),), 0x40),
}
"""Encodings with two bytes a character: ranges of the first byte of common ones, and the least second byte. Of two that
explain a text alike, the first is taken."""
_MARKS = "«»“”„‘’‚–—…·•€£§©®™°ªº²³´¿¡µ\xa0"  # noqa: RUF001
_WIDE_MARKS = "\u3000、。・「」《》，！？：（）ー"  # noqa: RUF001
"""What stands around and between words."""
_SEPARATORS = "\t,;|"
_RARE_SEPARATORS = ("::", "\x01", "^", "~", " ")
"""Looked for where there is none of the others; Hive writes \\x01."""
_ROW_LINES = 16
"""Lines that a row may have where it is judged alone."""
_COMMENTS = ("#", "//", "--", "%")
_STEADY = 0.9
_LINES = 200


class FoundEncoding(NamedTuple):
    """The likeliest encoding of a text."""

    name: str
    words: str | None
    """Some of its words in this encoding, for a person to judge; None where it is Western as a matter of course."""


def find_encoding(text: bytes) -> FoundEncoding:
    """Return the encoding of a text that is not UTF-8; a Western one where none explains it."""
    lines = [line for line in text[:_MOST_BYTES].split(b"\n") if not line.isascii()]
    data = b"\n".join(lines)
    try:
        data.decode(WESTERN)
        western = WESTERN
    except UnicodeDecodeError:  # Latin-1 has a character for every byte
        western = "latin-1"
    shares = {name: _share_in_words(_decoded(data, name), script) for name, script in _SCRIPTS.items()}
    if shares[WESTERN] >= _GOOD:
        return FoundEncoding(western, None)
    shares |= {name: _share_of_common(_decoded(data, name), _common(name)) for name in _COMMON}
    best = max(shares, key=shares.__getitem__)
    best = western if best == WESTERN or shares[best] < _FAIR else best
    words = re.findall(r"[^\W\d_]*[^\W\d_\x00-\x7f][^\W\d_]*", data.decode(best, "replace"))
    return FoundEncoding(best, ", ".join(f"'{word}'" for word in list(dict.fromkeys(words))[:3]))


def _decoded(data: bytes, encoding: str) -> str:
    """Return a text; an empty one if more than a few bytes are no characters."""
    text = data.decode(encoding, "replace")
    return text if text.count("\ufffd") <= len(text) / 1_000 else ""


def _share_in_words(text: str, script: str) -> float:
    """Return the share of the characters beyond ASCII, but for marks, in likely words of a script; 1 of none."""
    good, total = 0.0, 0
    for token in re.findall(r"[A-Za-z\x80-\U0010ffff]+", text):
        word = token.strip(_MARKS)
        beyond = sum(not character.isascii() for character in word)
        if beyond and (len(word) > 1 or word.isalpha()):
            total += beyond
            good += beyond * min(_likeliness(part, script) for part in re.split("[\u2019·]", word) if part)
    return good / total if total else float(bool(text))


def _likeliness(word: str, script: str) -> float:
    """Return 1 for a word of a script, less for one in capitals, of which fewer are written, and 0 for others."""
    is_of_script = all(unicodedata.name(c, "").startswith(script) and c != "ƒ" for c in word)
    beyond = sum(not character.isascii() for character in word)
    is_latin = script != "LATIN" or beyond <= max(2, 3 * len(word) / 4)
    if not (is_of_script and is_latin):
        return 0.0
    return 1.0 if word[1:].islower() or len(word) == 1 else 0.9 if word.isupper() else 0.0


def _share_of_common(text: str, common: frozenset[str]) -> float:
    """Return the share of common characters among those beyond ASCII; none of one or two within Latin words is."""
    good = total = 0
    for before, run, after in re.findall(r"([A-Za-z]?)([^\x00-\x7f]+)([A-Za-z]?)", text):
        found = [character for character in run if character not in _WIDE_MARKS]
        total += len(found)
        good += 0 if (before or after) and len(run) <= 2 else sum(map(common.__contains__, found))
    return good / max(total, 1)


@lru_cache
def _common(encoding: str) -> frozenset[str]:
    ranges, least = _COMMON[encoding]
    pairs = (bytes([a, b]) for low, high in ranges for a in range(low, high + 1) for b in range(least, 0xFF))
    return frozenset("".join(pair.decode(encoding, "ignore") for pair in pairs))


@dataclass(frozen=True)
class FileForm:
    """How files hold rows."""

    settings: FileFormat
    """What a recipe must say; defaults where rayrec finds out by itself."""
    is_delimited: bool
    reasons: Mapping[str, str]
    """Why, by field of `settings`."""
    warnings: Sequence[str] = ()
    """Warnings about the file."""

    @property
    def has_names(self) -> bool:
        """Return whether the files name their columns; otherwise they are numbered here."""
        return self.settings.header is None

    def having(self, key: str, value: Any, reason: str) -> "FileForm":
        """Return the same form with one more setting, unless `value` says nothing."""
        if value == FileFormat.model_fields[key].default:
            return self
        return replace(
            self, settings=self.settings.model_copy(update={key: value}), reasons={**self.reasons, key: reason}
        )


def recognize(file: InputFile, label: str | None = None, found: FoundEncoding | None = None) -> FileForm:
    """Return the form of a file, by its name and its first lines; a line with the name of the `label` is a header.

    The text is read in the encoding `found`, or else as its first lines show. Raises UserError if it is no text.
    """
    if format_of(file) == "parquet":
        return FileForm(FileFormat(), False, {})
    lines, found = _first_lines(file, found)
    settings: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    warnings: list[str] = []
    if found is not None:
        settings["encoding"] = found.name
        reasons["encoding"] = "its bytes are not UTF-8; if texts look wrong, name another"
        if found.words is not None:
            warnings.append(
                f"{file.name}: its bytes are not UTF-8; read as {found.name} there are texts such as {found.words}; if "
                "these are wrong, write another `encoding` into the recipe, such as shift_jis, gb18030 or koi8_r"
            )
    if format_of(file) != "delimited":
        return FileForm(FileFormat.model_validate(settings), False, reasons, warnings)
    refuse_other_formats(file, lines)
    # Lines that are no rows.
    told = separator_told(lines[0])
    lines = lines[1:] if told else lines
    comment = next((mark for mark in _COMMENTS if _are_comments(lines, mark)), None)
    if comment is not None:
        settings["comment"] = comment
        reasons["comment"] = "lines that begin with it have not as many fields as all others"
        lines = [line for line in lines if not line.startswith(comment)]
    # The characters with which the reader makes rows of the lines.
    separator = told or _separator(lines)
    if separator != separator_of(lines[0]):
        settings["separator"] = separator
        reasons["separator"] = "the first line says so" if told else "occurs equally often in every line"
    if _has_single_quotes(lines, separator):
        settings["quote"], reasons["quote"] = "'", "encloses fields"
    elif _has_loose_quotes(lines, separator):
        settings["quote"], reasons["quote"] = False, "double quotes do not enclose fields here"
    elif _parse(lines, separator, escape="\\").share > _parse(lines, separator).share:
        settings["escape"], reasons["escape"] = "\\", "stands before quotes inside of fields"
    parsed = _parse(lines, separator, settings.get("quote", True), settings.get("escape"))
    if not _is_header(parsed.first, parsed.rows, label):
        settings["header"] = tuple(f"c{number}" for number in range(1, len(parsed.first) + 1))
        reasons["header"] = "the first line looks like data, so columns are numbered; rename them"
    return FileForm(FileFormat.model_validate(settings), True, reasons, warnings)


def first_lines(file: InputFile) -> list[str]:
    """Return the lines, up to 200, that a text file begins with, without empty ones. Raises UserError if none is."""
    return _first_lines(file, None)[0]


def _first_lines(file: InputFile, found: FoundEncoding | None) -> tuple[list[str], FoundEncoding | None]:
    """Return these lines, and their encoding if it must be said."""
    form, head = read_head(file, found and found.name) or (UTF8, b"")
    beyond = [line for line in head.split(b"\n") if not line.isascii()]
    if form.encoding == "utf-8" and 2 * sum(map(_is_utf8, beyond)) < len(beyond):
        found = find_encoding(head)
        head = replace(form, encoding=found.name).as_utf8(head)
    lines = [line.removesuffix("\r") for line in head.decode("utf-8", "replace").split("\n")[:_LINES]]
    lines = [line for line in lines if line.strip()]
    if not lines:
        raise UserError(f"{file.name}: empty; give files with rows")
    if "\0" in lines[0]:
        raise UserError(f"{file.name}: no text; give text or Parquet, or set 'encoding'")
    return lines, found


def first_with_rows(files: Sequence[InputFile]) -> InputFile:
    """Return the first file with a line after that of a header, else the first with a line, else the first one."""
    of_one_line = []
    for file in files:
        if file.bytes and format_of(file) == "parquet":
            return file
        _, head = read_head(file) or (UTF8, b"")
        lines = sum(map(bool, map(bytes.strip, head.split(b"\n"))))
        if lines > 1:
            return file
        of_one_line += [file] * lines
    return next(iter(of_one_line), files[0])


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


@dataclass(frozen=True)
class _Parsed:
    """Lines as the reader parses them."""

    first: Sequence[str]
    """The fields of the first row."""
    rows: Sequence[Sequence[str]]
    """The other rows that have as many fields."""
    share: float
    """The share of these rows among all others."""


def _parse(lines: Sequence[str], separator: str, quote: bool | str = True, escape: str | None = None) -> _Parsed:
    form = FileFormat.model_validate({"separator": separator, "quote": quote, "escape": escape})
    layout = DelimitedLayout(("",), separator, form.quote_mark, header=None, escape=escape)
    texts = [line.encode() for line in lines]
    length, row = layout.first_row(texts)
    first = layout.fields(row) or []
    names = tuple(map(str, range(len(first))))
    rest = b"".join(text + b"\n" for text in texts[length:])
    cells = replace(layout, names=names).fitted(rest).split(rest, names)
    rows = list(zip(*(pa.array(cells.columns[name]).fill_null("").to_pylist() for name in names), strict=True))
    return _Parsed(first, rows, len(rows) / max(len(rows) + len(cells.bad_lines), 1) if rest else 1.0)


def _are_comments(lines: Sequence[str], mark: str) -> bool:
    """Tell whether no line that begins with a mark has as many fields as the others, all of which have as many."""
    marked = [line for line in lines if line.startswith(mark)]
    others = [line for line in lines if not line.startswith(mark)]
    if not marked or not others:
        return False
    separator = _separator(others)
    parsed = _parse(others, separator)
    # With the next lines, as a row that begins with the mark may have newlines in quotes.
    begins = (number for number, line in enumerate(lines) if line.startswith(mark))
    widths = {len(_parse(lines[number : number + _ROW_LINES], separator).first) for number in begins}
    return len(parsed.first) > 1 and parsed.share > _STEADY and len(parsed.first) not in widths


def _separator(lines: Sequence[str]) -> str:
    """Return the separator that makes most fields, and about as many of each line."""
    for marks in (_SEPARATORS, _RARE_SEPARATORS):
        widths = {}
        for mark in marks:
            ways: list[dict[str, Any]] = [{}, {"escape": "\\"}, {"quote": False}, {"quote": "'"}]
            found = [_parse(lines, mark, **way) for way in ways]
            width = max((len(parsed.first) for parsed in found if parsed.share > _STEADY), default=0)
            if width > 1:
                widths[mark] = width
        if widths:
            return max(widths, key=widths.__getitem__)
    return ","


def _has_loose_quotes(lines: Sequence[str], separator: str) -> bool:
    """Return whether double quotes are not paired in a line, though all lines have as many separators."""
    return any(line.count('"') % 2 for line in lines) and len({line.count(separator) for line in lines}) == 1


def _has_single_quotes(lines: Sequence[str], separator: str) -> bool:
    """Return whether single quotes enclose all fields of a column, or some fields and more lines are rows with them."""
    single, double = _parse(lines, separator, quote="'"), _parse(lines, separator)
    columns = zip(*double.rows, strict=True)
    enclose_all = any(all(re.fullmatch(r"'.*'", field, re.DOTALL) for field in column) for column in columns)
    mark = re.escape(separator)
    enclosing = sum(bool(re.search(rf"(^|{mark})'[^']*'({mark}|$)", line)) for line in lines)
    is_better = single.share > double.share + 1 - _STEADY and enclosing > (1 - _STEADY) * len(lines)
    return single.share > _STEADY and (enclose_all or is_better)


def _is_header(first: Sequence[str], others: Sequence[Sequence[str]], label: str | None) -> bool:
    """Tell whether a line names columns: it has the label's name, or most columns that tell say so.

    A column of numbers tells by whether its first field is one, too; a column of texts, if the first one is among the
    others or looks as they do, such as dates.
    """
    if label is not None and column_of_label(label, [field.strip() for field in first]) is not None:
        return True
    names = votes = 0
    for i, name in enumerate(field.strip() for field in first):
        below = [row[i].strip() for row in others if list(row) != list(first)]
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
