"""Lists in one text: values with a separator between them, or in brackets, as Python, JSON, PostgreSQL and NumPy write
them.

The separator `[,]` stands for brackets with commas between values, `[ ]` for such with blanks: `['a', "it's"]`,
`["a", null]`, `{a,"b c"}`, `('a',)`, `[1 2 3]`, `set()`, `array([1, 2])`. Quotes, escapes, and words for a missing
value mean what they mean to the program that wrote them.
"""

import functools
import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

_CLOSING = {"[": "]", "(": ")", "{": "}"}
_WRAPPED = re.compile(r"(?:\w+\.)*\w+\((?P<list>[\[({].*[\])}])?(?:, *dtype=[^()]*)?\)", re.DOTALL)
"""A list as Python shows those that are no plain ones."""
_QUOTED = r"""[buBU]?(?:"(?P<double>(?:[^"\\]++|\\.|"")*+)"|'(?P<single>(?:[^'\\]++|\\.|'')*+)')"""
_MISSING = ("None", "null", "NULL", "nan", "NaN", "NA", "<NA>")
_LEFT_OUT = "..."
"""What NumPy writes for the values between the first and the last of many."""
_TUPLES_VALUE = re.compile(r"[-+.\w]+")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


def split_lists(texts: pa.Array, separator: str) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Return (n,) lists of texts from (n,) texts, null where these are; and which of them are no list in brackets."""
    between = in_brackets(separator)
    if between is None:
        return pc.split_pattern(texts, separator), np.zeros(len(texts), bool)
    # Arrow reads lists without escapes; a loop those that it may take for others.
    is_simple = pc.fill_null(pc.match_substring_regex(texts, _simple_pattern(between)), False)
    simple = _simple_lists(texts.filter(is_simple), between)
    others = texts.filter(pc.invert(is_simple)).dictionary_encode()
    lists = pa.array([_values(text, between) for text in others.dictionary.to_pylist()], simple.type)
    order = np.argsort(np.argsort(~is_simple.to_numpy(zero_copy_only=False), kind="stable"))
    found = pa.concat_arrays([simple, lists.take(others.indices)]).take(pa.array(order))
    return found, pc.and_(found.is_null(), texts.is_valid()).to_numpy(zero_copy_only=False)


def in_brackets(separator: str) -> str | None:
    """Return what stands between values in brackets; None if the separator means no brackets."""
    return separator[1] if len(separator) == 3 and separator[0] == "[" and separator[2] == "]" else None


@functools.cache
def _simple_pattern(between: str) -> str:
    """Return the pattern of lists without escapes, and without brackets and quotes within values."""
    others = rf"""\\\[\]{{}}()"'{re.escape(between)},"""
    bare = "[0-9][-+.0-9e]*" if between == " " else rf"[^\s.{others}][^{others}]*"
    value = rf"""("[^{others}]*"|'[^{others}]*'|{bare})"""
    values = rf"{value}({_simple_border(between)}{value})*"
    return rf"^(\[{values}\]|\{{{values}\}})$"


def _simple_border(between: str) -> str:
    return r"\s+" if between == " " else rf"{re.escape(between)} ?"


def _simple_lists(texts: pa.Array, between: str) -> pa.ListArray:
    lists = pc.split_pattern_regex(pc.utf8_slice_codeunits(texts, 1, -1), _simple_border(between))
    values = pc.utf8_trim_whitespace(lists.flatten())
    values = pc.if_else(pc.is_in(values, pa.array(_MISSING)), None, pc.utf8_trim(values, "\"'"))
    return pa.ListArray.from_arrays(lists.offsets, values)


@functools.cache
def _value_pattern(between: str) -> re.Pattern[str]:
    """Return the pattern of a value and what is between it and the next."""
    if between == " ":  # NumPy has quotes around all texts
        border, bare = r"(?:\s++|\Z)", r"[-+]?[.0-9][-+.0-9e]*+|[-+]?(?:nan|inf)|True|False|None|<NA>"
    else:
        mark = re.escape(between)
        border, bare = rf"\s*+(?:{mark}\s*+|\Z)", rf"""[^\s"'\[\]{{}}()\\{mark}][^\[\]{{}}\\{mark}]*+"""
    return re.compile(rf"(?P<wrapped>np\.\w+\()?(?:{_QUOTED}(?(wrapped)\))|(?P<bare>{bare})){border}", re.DOTALL)


def _values(text: str, between: str) -> list[str | None] | None:
    """Return the values of a list in brackets; None if the text is no such list, or not a whole one."""
    text = text.strip()
    if (wrapped := _WRAPPED.fullmatch(text)) is not None:
        text = wrapped["list"] or "[]"
    opened = text[:1]
    if len(text) < 2 or _CLOSING.get(opened) != text[-1]:
        return None
    inside, match = text[1:-1].strip(), _value_pattern(between).match
    values: list[str | None] = []
    at = 0
    while at < len(inside):
        found = match(inside, at)
        if found is None:
            return None
        at = found.end()
        quote = '"' if found["double"] is not None else "'"
        quoted = found["double" if quote == '"' else "single"]
        if quoted is not None:
            value = _unescaped(quoted, quote, opened)
            if value is None:
                return None
            values.append(value)
            continue
        bare = found["bare"].strip()
        bare = bare[:-1] if found["wrapped"] else bare
        if bare == _LEFT_OUT or (opened == "(" and not _TUPLES_VALUE.fullmatch(bare)):
            return None
        values.append(None if bare in _MISSING else bare)
    return values


def _unescaped(text: str, quote: str, opened: str) -> str | None:
    """Return what a text in quotes stands for; None if it is no text."""
    text = text.replace(quote * 2, quote)
    if "\\" not in text:
        return text
    if opened == "{" and quote == '"':  # PostgreSQL's
        return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)

    def meant(found: re.Match[str]) -> str:
        code = found[1] or found[2] or found[3]
        return chr(int(code, 16)) if code else _ESCAPED.get(found[4], found[4])

    try:
        # JSON writes characters beyond 16 bits as two halves.
        return _ESCAPE.sub(meant, text).encode("utf-16", "surrogatepass").decode("utf-16")
    except (UnicodeError, ValueError):
        return None
