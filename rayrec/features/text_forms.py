"""How files and requests write values as texts: one value in several spellings, numbers as people write them, lists.

pandas writes a column of ids with gaps as `517.0`, Python writes `True` where JSON has `true`, and a blank follows many
a comma. So the values of a raw column of text have a form, which preprocessing chooses from the files, the schema
states, and files and requests are read with:

- `number`: numbers are spelled as JSON and SQL spell them, so `517`, `517.0` and `+517` are `517`, `3.50` is `3.5` and
  `1e+16` is `10000000000000000`. Booleans (`true`, `True`, `TRUE`, ...) are `1` and `0`.
- `boolean`: as `number`, but `1` and `0` are `true` and `false`.
- `time`: as `number`, and times are spelled in one way: a day as a text, a date or a timestamp is `2024-05-01`, and
  `2024-05-01T10:00:00.500` is `2024-05-01 10:00:00.5`.
- `text`: every text is its own value, for texts such as versions, of which `1.10` is not `1.1`.

In every form blanks around a value say nothing, and digits with leading zeros (`007`), `1e5` and words stay.

A `NumberFormat` other than `plain` is for numbers as people write them: `1,234.50`, `1.234,50`, `1 234,5`, `1'234.5`,
`€ 3,20`, `12 %`, `(45.00)`. It says by an example which mark stands before decimals, as the same digits are two numbers
otherwise (`1,234`); all else can be told. Thousands may be divided by the other mark, by blanks or apostrophes, and in
lakhs (`12,34,567`). Signs of currencies and percent are left out, so `12 %` is 12. A minus may be a hyphen or the
mathematical sign, before or after the number, or parentheses.

A list may stand in one text: values with a separator between them, or in brackets, as Python, JSON, PostgreSQL and
NumPy write them. The separator `[,]` stands for brackets with commas between values, `[ ]` for such with blanks:
`['a', "it's"]`, `["a", null]`, `{a,"b c"}`, `('a',)`, `[1 2 3]`, `set()`, `array([1, 2])`. Quotes, escapes, and words
for a missing value mean what they mean to the program that wrote them.
"""

import re
from collections.abc import Iterable, Sequence
from decimal import Context, Decimal
from functools import cache, reduce
from typing import Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.config.base import NumberFormat

TextForm = Literal["number", "boolean", "time", "text"]

BOOLEANS = {"true": "1", "True": "1", "TRUE": "1", "false": "0", "False": "0", "FALSE": "0"}
"""The spellings of booleans, and their numbers."""
_WORDS = {"1": "true", "0": "false"}
_IS_INITIAL = np.isin(np.arange(256), np.frombuffer(b"tTfF", np.uint8))
"""(256,) for each byte whether a boolean may begin with it."""
_MARKS = b".+-"
"""A number that the form `number` changes has one of these."""
_CHANGED = (
    r"[+-]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-][0-9]{2,3})?|[+-]?[0-9]+[eE][+-][0-9]{2,3}|\+[0-9]+|-0+|"
    rf"{'|'.join(BOOLEANS)}"
)
"""The texts that the form `number` may change."""
_DAY = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME = re.compile(rf"({_DAY})[ T]([0-9]{{2}}:[0-9]{{2}})(:[0-9]{{2}})?(\.[0-9]+)?(Z|[+-][0-9]{{2}}(?::?[0-9]{{2}})?)?")
_UTC = re.compile(r"[+-]00(:?00)?")
_CHANGED_HERE = {
    "number": re.compile(_CHANGED),
    "boolean": re.compile(f"{_CHANGED}|[01]"),
    "time": re.compile(f"{_CHANGED}|{_TIME.pattern}"),
}
_LONG_INTEGER, _LONG_FLOAT = "^-?[0-9]{17,}$", r"^-?[0-9](\.[0-9]+)?[eE]\+(1[6-9]|[2-9][0-9])$"
"""Integers that floats hold only about, and such floats."""
_MARKED = re.compile("[.+-]|rue|RUE|alse|ALSE")
_NUMBER = re.compile(r"[+-]?((0|[1-9][0-9]*)\.?[0-9]*|\.[0-9]+)([eE][+-][0-9]{2,3})?")
_FRACTION = r"^[+-]?[0-9]*\.(?P<digits>[0-9]+)$"
_EXACT = Context(prec=100)
_MOST_DIGITS = 40
"""Longer numbers stay as they are written: they are no ids, and digits take memory."""
_FEW = 64
"""Up to this number of texts, Python's loop beats Arrow's calls."""
_BLANK, _ASCII = ord(" "), 127
_UNICODE_BLANKS = (b"\xc2\x85", b"\xc2\xa0", b"\xe1\x9a\x80", b"\xe2\x80", b"\xe2\x81\x9f", b"\xe3\x80\x80")


def without_blanks(texts: pa.Array) -> pa.Array:
    """Remove blanks around (n,) texts (string or large_string); what is empty then is null."""
    if len(texts) <= _FEW:
        given = texts.to_pylist()
        stripped = [text.strip() or None if text is not None else None for text in given]
        return texts if stripped == given else pa.array(stripped, texts.type)
    offsets, data = _content(texts)
    starts, ends = offsets[:-1], offsets[1:]
    filled = ends > starts
    edges = (data[starts[filled]], data[ends[filled] - 1]) if (data <= _BLANK).any() else ()
    has_blanks = any((edge <= _BLANK).any() for edge in edges)
    if not has_blanks and (data > _ASCII).any():
        content = data.tobytes()
        has_blanks = any(blank in content for blank in _UNICODE_BLANKS)
    if has_blanks:
        texts = pc.utf8_trim_whitespace(texts)
        offsets, _ = _content(texts)
        filled = offsets[1:] > offsets[:-1]
    if len(texts) - np.count_nonzero(filled) > texts.null_count:
        texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, texts.type), texts)
    return texts


def in_form(texts: pa.Array, form: TextForm) -> pa.Array:
    """Spell (n,) texts, without blanks around them, in a form; null stays null, and so does what is no text.

    `texts`: string, large_string, lists of these or a dictionary of them, which may have a text twice then.
    """
    kind = texts.type
    if form == "text" or len(texts) == texts.null_count:
        return texts
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(texts.indices, in_form(texts.dictionary, form))
    if pa.types.is_list(kind):
        lengths = pc.fill_null(pc.list_value_length(texts), 0).to_numpy(zero_copy_only=False)
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
        return pa.ListArray.from_arrays(offsets, in_form(texts.flatten(), form), mask=texts.is_null())
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return texts
    if len(texts) <= _FEW:
        given = texts.to_pylist()
        if form == "number" and not _MARKED.search("\0".join(filter(None, given))):
            return texts
        is_changed = _CHANGED_HERE[form].fullmatch
        spelled = [text if text is None or not is_changed(text) else _spelled(text, form) for text in given]
        return texts if spelled == given else pa.array(spelled, texts.type)
    if form == "number" and not (_has_byte(texts, _MARKS) or _has_booleans(texts)):
        return texts
    mask = pc.fill_null(pc.match_substring_regex(texts, f"^({_CHANGED_HERE[form].pattern})$"), False)
    chosen = texts.filter(mask).dictionary_encode()
    if not len(chosen):
        return texts
    distinct = pa.array([_spelled(text, form) for text in chosen.dictionary.to_pylist()], texts.type)
    return pc.replace_with_mask(texts, mask, distinct.take(chosen.indices))


def _spelled(text: str, form: TextForm) -> str:
    """Spell a text that `_CHANGED_HERE` matches."""
    if form == "time" and (time := _TIME.fullmatch(text)):
        day, minute, second, fraction, zone = (part or "" for part in time.groups())
        clock = f"{minute}{second or ':00'}{fraction.rstrip('0').rstrip('.')}"
        zone = "Z" if _UTC.fullmatch(zone) else zone
        return day if clock == "00:00:00" and not zone else f"{day} {clock}{zone}"
    spelled = BOOLEANS.get(text)
    if spelled is None:
        if not _NUMBER.fullmatch(text) or len(text) > _MOST_DIGITS:
            return text
        number = Decimal(text)
        if abs(number.adjusted()) > _MOST_DIGITS:
            return text
        spelled = format(number.normalize(_EXACT), "f")
        spelled = "0" if spelled == "-0" else spelled
    return _WORDS.get(spelled, spelled) if form == "boolean" else spelled


class TextFacts(NamedTuple):
    """Facts about the form of some texts of a column; the facts of parts of a column add up."""

    has_booleans: bool = False
    fraction_lengths: tuple[int, int] | None = None
    """The fewest and the most digits after a point; None without any."""
    has_closing_zeros: bool = False
    """Whether a fraction other than 0 ends in a zero, which no program writes that knows numbers."""
    has_days: bool = False
    """Whether days or times are there, as ISO 8601 writes them."""
    long_integer: str | None = None
    """An integer that no float holds exactly, of 17 digits or more; None without any."""
    long_float: str | None = None
    """A float of such a size."""

    @classmethod
    def of(cls, texts: pa.Array) -> "TextFacts":
        """Look at (n,) texts (string or large_string)."""
        facts = cls(_has_booleans(texts))
        longest = np.diff(_content(texts)[0]).max(initial=0)
        if longest >= 10:
            days = _having(texts, 10, b"-", (4, 7))
            facts = facts._replace(has_days=_first_match(days, f"^{_DAY}([ T]|$)") is not None)
        if _has_byte(texts, b"+"):
            facts = facts._replace(long_float=_first_match(texts, _LONG_FLOAT))
        if longest >= 17:
            long = _having(texts, 17, b"0123456789", (1, 4, 8, 12, 16))
            facts = facts._replace(long_integer=_first_match(long, _LONG_INTEGER))
        if not _has_byte(texts, b"."):
            return facts
        fractions = pc.extract_regex(texts.unique(), _FRACTION).drop_null().field("digits")
        if not len(fractions):
            return facts
        shortest, longest = pc.min_max(pc.binary_length(fractions)).as_py().values()
        closing = pc.any(pc.match_substring_regex(fractions, "[1-9]0+$")).as_py()
        return facts._replace(fraction_lengths=(shortest, longest), has_closing_zeros=closing)

    def __or__(self, other: "TextFacts") -> "TextFacts":
        """Return the facts of the texts of both."""
        lengths = [lengths for lengths in (self.fraction_lengths, other.fraction_lengths) if lengths is not None]
        bounds = (min(low for low, _ in lengths), max(high for _, high in lengths)) if lengths else None
        return TextFacts(
            self.has_booleans or other.has_booleans,
            bounds,
            self.has_closing_zeros or other.has_closing_zeros,
            self.has_days or other.has_days,
            self.long_integer or other.long_integer,
            self.long_float or other.long_float,
        )

    @property
    def form(self) -> TextForm:
        """Return the form of the column.

        Fractions that end in zeros, of different lengths, are versions or the like (`1.1`, `1.10`); those of one length
        are numbers of fixed decimals.
        """
        lengths = self.fraction_lengths
        if self.has_closing_zeros and lengths is not None and lengths[0] != lengths[1]:
            return "text"
        return "boolean" if self.has_booleans else "time" if self.has_days else "number"


def form_of(name: str, facts: Iterable[TextFacts]) -> TextForm:
    """Return the form of a column, from the facts of its parts.

    Raises UserError if one id may be two values, as some of the files hold long ids as floats.
    """
    of_all = reduce(TextFacts.__or__, facts, TextFacts())
    if of_all.long_integer is not None and of_all.long_float is not None:
        raise UserError(
            f"column '{name}': has integers such as {of_all.long_integer} and floats such as {of_all.long_float}, "
            "which do not hold so many digits, so that one id would be two values; write all as integers or texts"
        )
    return of_all.form


def _having(texts: pa.Array, length: int, wanted: bytes, places: Sequence[int]) -> pa.Array:
    """Return the texts of at least so many bytes that have one of some bytes at each of the places.

    Patterns, which take longer, need only be tried on these.
    """
    offsets, data = _content(texts)
    rows = np.flatnonzero(np.diff(offsets) >= length)
    is_wanted = np.isin(np.arange(256), np.frombuffer(wanted, np.uint8))
    for place in places:
        rows = rows[is_wanted[data[offsets[rows] + place]]]
    return texts.take(pa.array(rows))


def _first_match(texts: pa.Array, pattern: str) -> str | None:
    matches = texts.filter(pc.fill_null(pc.match_substring_regex(texts, pattern), False))
    return matches[0].as_py() if len(matches) else None


def _content(texts: pa.Array) -> tuple[NDArray[np.integer], NDArray[np.uint8]]:
    """Return the offsets (n + 1,) of texts, from 0, and the bytes (uint8) that they lie in."""
    width = np.int64 if pa.types.is_large_string(texts.type) else np.int32
    _, offset_buffer, data_buffer = texts.buffers()
    offsets = np.frombuffer(offset_buffer, width)[texts.offset : texts.offset + len(texts) + 1]
    data = np.frombuffer(b"" if data_buffer is None else data_buffer, np.uint8)[offsets[0] : offsets[-1]]
    return offsets - offsets[0], data


def _has_byte(texts: pa.Array, wanted: bytes) -> bool:
    """Tell whether one of some bytes stands anywhere in the texts: one look at their memory, instead of one at each."""
    _, data = _content(texts)
    return any((data == byte).any() for byte in wanted)


def _has_booleans(texts: pa.Array) -> bool:
    """Tell whether one of the texts is a boolean. Few texts of other columns have the length and the initial of one."""
    offsets, data = _content(texts)
    lengths = np.diff(offsets)
    rows = np.flatnonzero((lengths == len("true")) | (lengths == len("false")))
    rows = rows[_IS_INITIAL[data[offsets[rows]]]]
    return len(rows) > 0 and any(text in BOOLEANS for text in texts.take(pa.array(rows)).unique().to_pylist())


# ---- numbers as people write them


NUMBER_FORMATS: tuple[NumberFormat, ...] = get_args(NumberFormat)
PERCENT = "[%\u2030]"
CURRENCY = (
    r"(?:[A-Z]{0,3}\p{Sc}|AUD|BRL|CAD|CHF|CNY|CZK|DKK|EUR|GBP|HKD|HUF|INR|JPY|KRW|MXN|NOK|NZD|PLN|RUB|SEK|SGD|TRY|USD"
    r"|ZAR|Fr\.?|Ft|Kč|kr\.?|Rs\.?|zł)"
)
_BLANKS_WITHIN = " \u00a0\u2007\u2009\u202f"
_ANY_BLANK = f"[{_BLANKS_WITHIN}]?"
BETWEEN_THOUSANDS: dict[NumberFormat, str] = {
    "1,234.5": f",'\u2019{_BLANKS_WITHIN}",
    "1.234,5": f".'\u2019{_BLANKS_WITHIN}",
}
"""The characters that may stand between thousands, by format; the mark comes first."""
_MINUS_ELSEWHERE = rf"^({CURRENCY}?){_ANY_BLANK}\(([^()]+)\)$|^([^-]+?){_ANY_BLANK}-$"


def _pattern(between: str) -> str:
    """Return the pattern of a number whose thousands are divided by one of some characters."""
    mark = between[0]
    before = "," if mark == "." else "."
    lakhs = rf"[1-9][0-9]?(?:[{mark}][0-9]{{2}})+[{mark}][0-9]{{3}}"
    whole = rf"[0-9]+|[1-9][0-9]{{0,2}}(?:[{between}][0-9]{{3}})+|{lakhs}"
    digits = rf"(?:{whole})(?:[{before}][0-9]*)?|[{before}][0-9]+|(?i:inf|infinity|nan)"
    sign = rf"(?:{CURRENCY}|{PERCENT})"
    return (
        rf"^(?:(?P<minus>[+-]){_ANY_BLANK})?(?:{sign}{_ANY_BLANK})?(?P<second>[+-])?"
        rf"(?P<digits>{digits})(?P<exponent>[eE][+-]?[0-9]+)?{_ANY_BLANK}{sign}?$"
    )


_PATTERNS = {form: _pattern(between) for form, between in BETWEEN_THOUSANDS.items()}


def plain_numbers(texts: pa.Array, number_format: NumberFormat) -> pa.Array:
    """Write (n,) texts, without blanks around them, as plain numbers; null where a text has another format."""
    if number_format == "plain":
        return texts
    texts = pc.replace_substring(texts, "\u2212", "-")
    texts = pc.replace_substring_regex(texts, _MINUS_ELSEWHERE, r"-\1\2\3")
    found = pc.extract_regex(texts, _PATTERNS[number_format])
    minus, second, digits, exponent = (
        pc.struct_field(found, name) for name in ("minus", "second", "digits", "exponent")
    )
    digits = pc.replace_substring_regex(digits, f"[{BETWEEN_THOUSANDS[number_format]}]", "")
    digits = pc.replace_substring(digits, ",", ".")
    written = pc.binary_join_element_wise(minus, second, digits, exponent, pa.scalar("", texts.type))
    # Two signs are a mistake.
    return pc.if_else(pc.match_substring_regex(written, "^[+-]{2}"), None, written)


# ---- lists in one text


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


@cache
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


@cache
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
