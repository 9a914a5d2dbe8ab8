"""The canonical spelling of a text: one value is one text, whatever tool wrote the file or the request.

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
"""

import re
from collections.abc import Iterable, Sequence
from decimal import Context, Decimal
from functools import reduce
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.common.errors import UserError

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
