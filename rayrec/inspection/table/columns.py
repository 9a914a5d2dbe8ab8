"""What a column of a table's sample holds: its values and their counts, and numbers as people write them."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.config.base import NumberFormat
from rayrec.features.raw_columns import RawColumn
from rayrec.features.raw_values import read_column
from rayrec.features.text_forms import BETWEEN_THOUSANDS, CURRENCY, NUMBER_FORMATS, PERCENT, plain_numbers

Form = Literal["integer", "number", "text", "time", "list", "vector", "nested"]
"""How the values of a column are written: `nested` values can be no feature."""
NULL_WORDS = ("NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "none", "\\N", "?", "-")
"""Texts that stand for a missing value if the other values of a column are numbers or times."""
INEXACT = "floats that have lost their last digits, so that ids that differ may be one; write integers or texts"
"""The note on a column of floats that were long integers."""
MOST_MISFITS = 0.005
"""Share of rows with values that are not like the others, which do not decide what a column is."""
_LEAST_ORDERED_TIMES = 20
_TIME_WORDS = {
    "time", "timestamp", "ts", "date", "datetime", "day", "hour", "created", "updated", "at", "dt", "epoch", "when",
    "month", "yearmonth", "yyyymm", "yyyymmdd",
}  # fmt: skip


def name_words(name: str) -> list[str]:
    """Return the words of a column's name in lower case: `userId` and `user_id` have `user` and `id`."""
    parts = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    return [word for word in re.split(r"[^A-Za-z0-9]+", parts.lower()) if word]


def estimate_distinct(counts: NDArray[np.int64], rows: int, total_rows: int) -> int:
    """Return a lower bound of the distinct values in `total_rows` rows (Chao 1984, "Nonparametric estimation of the
    number of classes in a population"), from how often a sample of `rows` rows has each value.
    """
    distinct, once, twice = (int(np.count_nonzero(found)) for found in (counts, counts == 1, counts == 2))
    if rows >= total_rows:
        return distinct
    unseen = once * (once - 1) / (2 * (twice + 1))
    most = math.ceil(total_rows * int(counts.sum()) / max(rows, 1))
    return max(distinct, min(round(distinct + unseen), most))


@dataclass(frozen=True)
class ColumnProfile:
    """A column of the sample: how it is written, the distinct values, and which of them each row has."""

    name: str
    type: str
    """The type in the file: `text` for delimited files, otherwise Arrow's name."""
    form: Form
    codes: NDArray[np.int64]
    """(n,) the place in `texts` of each row's value; -1 if it is missing."""
    texts: Sequence[str]
    """The distinct values as text; of a list that is no text, of its items."""
    numbers: NDArray[np.float64] | None = None
    """The distinct values of a column of numbers, in the order of `texts`; NaN for texts that are no number."""
    time_format: str | None = None
    """How times are written, as `RawColumn.time_format` has it; also of integers that may be times."""
    seconds: NDArray[np.float64] | None = None
    """The distinct times in seconds since 1970, in the order of `texts`."""
    separator: str | None = None
    """What separates the items of a list in a text."""
    lengths: NDArray[np.int64] | None = None
    """(n,) the number of items of each row's list."""
    items: int = 0
    """Distinct items of lists."""
    notes: tuple[str, ...] = ()
    """What is remarkable about the way in which the values are written."""
    number_formats: tuple[NumberFormat, ...] = NUMBER_FORMATS
    """The formats in which texts are these numbers, or times counted from 1970; the first one reads all of them."""
    null_words: tuple[str, ...] = ()
    """Texts that seem to stand for a missing value; their rows count as missing."""

    @property
    def rows(self) -> int:
        return len(self.codes)

    def without(self, words: Sequence[str]) -> "ColumnProfile":
        """Return the column with `words` for missing values."""
        if not words:
            return self
        is_word = np.append([text in words for text in self.texts], False)
        null_words = tuple(dict.fromkeys([*self.null_words, *words]))
        return replace(self, codes=np.where(is_word[self.codes], -1, self.codes), null_words=null_words)

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Number of rows with each distinct value."""
        return np.bincount(self.codes[self.codes >= 0], minlength=len(self.texts))

    @property
    def distinct(self) -> int:
        """Distinct values in the sample, of lists distinct items."""
        return self.items if self.form == "list" else int(np.count_nonzero(self.counts))

    @property
    def present(self) -> int:
        """Rows with a value."""
        return int(np.count_nonzero(self.codes >= 0))

    @property
    def missing_share(self) -> float:
        return 1.0 - self.present / self.rows if self.rows else 0.0

    def distinct_estimate(self, total_rows: int) -> int:
        """Return about how many distinct values all rows have."""
        return self.distinct if self.rows >= total_rows else estimate_distinct(self.counts, self.rows, total_rows)

    @property
    def repeated_share(self) -> float:
        """Share of the rows with a value whose value other rows have too."""
        return 1.0 - np.count_nonzero(self.counts == 1) / self.present if self.present else 0.0

    def examples(self, count: int = 3) -> list[str]:
        """Return the most frequent values."""
        order = np.argsort(-self.counts, kind="stable")[:count]
        return [self.texts[i] for i in order if self.counts[i]]

    @property
    def range(self) -> tuple[float, float] | None:
        """Least and largest number."""
        if self.numbers is None:
            return None
        used = self.numbers[(self.counts > 0) & np.isfinite(self.numbers)]
        return (float(used.min()), float(used.max())) if len(used) else None

    @cached_property
    def row_numbers(self) -> NDArray[np.float64]:
        """Return each row's number, NaN if it has none, (n,)."""
        return self._by_row(self.numbers)

    @cached_property
    def row_seconds(self) -> NDArray[np.float64]:
        """Return each row's time in seconds since 1970, NaN if it has none, (n,)."""
        return self._by_row(self.seconds)

    def codes_with(self, other: "ColumnProfile") -> NDArray[np.int64]:
        """Return the place of each row's pair of values, of this column and another, among the pairs that occur."""
        return np.unique((self.codes + 1) * (len(other.texts) + 1) + other.codes + 1, return_inverse=True)[1]

    def _by_row(self, values: NDArray[np.float64] | None) -> NDArray[np.float64]:
        assert values is not None
        return np.append(values, np.nan)[self.codes]  # code -1 is the last place

    @property
    def is_integral(self) -> bool:
        """Return whether all numbers are integers."""
        if self.numbers is None:
            return False
        used = self.numbers[(self.counts > 0) & np.isfinite(self.numbers)]
        return bool(len(used)) and bool((used == np.floor(used)).all())

    @property
    def orders_rows(self) -> bool:
        """Tell whether times are so many and so even that the latest rows can be held out."""
        return self.distinct >= _LEAST_ORDERED_TIMES and bool(self.counts.max() < 0.1 * self.present)

    @property
    def has_clock(self) -> bool:
        """Tell whether times have more than days."""
        return self.seconds is not None and bool((np.nan_to_num(self.seconds) % 86_400 != 0).any())

    @cached_property
    def are_months(self) -> bool:
        """Tell whether times are days that stand for months or years: nearly all are the first day of one, or the
        last.
        """
        if self.seconds is None or self.distinct < 2:
            return False
        known = np.isfinite(self.seconds) & (self.counts > 0)
        seconds, counts = self.seconds[known], self.counts[known]
        days = seconds.astype("datetime64[s]").astype("datetime64[D]")
        are_firsts = [day == day.astype("datetime64[M]").astype("datetime64[D]") for day in (days, days + 1)]
        most = max(int(counts[is_first].sum()) for is_first in are_firsts)
        return most >= (1 - MOST_MISFITS) * counts.sum() and not varies(seconds % 86_400, counts)

    @property
    def has_time_name(self) -> bool:
        return not _TIME_WORDS.isdisjoint(name_words(self.name))


def varies(values: NDArray[np.generic], counts: NDArray[np.int64]) -> bool:
    """Tell whether (n,) values, each of so many rows, are not one and the same in nearly all rows."""
    places = np.unique(values, return_inverse=True)[1]
    return bool(np.bincount(places, counts).max(initial=0) < (1 - MOST_MISFITS) * counts.sum())


# Numbers as people write them.

_FEW_NUMBERS = 20
"""So few different numbers may be kinds, of which others are words."""
_MOST_WORDS, _MOST_WORDS_SHARE = 10, 0.3
"""Words among numbers or times, beside the known ones, that are taken for missing values; and their share of rows."""
_FIRST_TRIED = 100
"""Distinct values of which half tell that a column is worth a closer look."""
_MOST_UNLIKE = 0.05
_FEW_UNITS = 3
_MANY_GROUPED = 20
"""So many different numbers with three digits after a mark, beside others below 1,000 without, are thousands."""
_DRESSES = (
    r"[+-]?[0-9]{1,3}(?:_[0-9]{3})+(?:\.[0-9]+)?",  # as programmers group them
    r"[+-]?0[xX][0-9a-fA-F]+",
    r"[+-]?\p{Nd}+(?:[.,\x{FF0E}\x{FF0C}\x{66B}\x{66C}]\p{Nd}+)*",  # in digits of other scripts
    r"[0-9]{1,3}(?: [0-9]{1,3})?/[0-9]{1,3}",  # no months of years
    r"[+-]?[0-9]+(?:[.,][0-9]+)?(?:[dD]| ?[xX*\x{D7}] ?10\^?)[+-]?[0-9]+",
)
"""Other ways to write a number, which are not read."""
UNCLEAR = "numbers, but"
"""How a note begins on texts that look like numbers, though which ones is not clear."""
PERHAPS_LISTS = f"{UNCLEAR} perhaps lists"


class NumberForm(NamedTuple):
    """How texts are numbers."""

    formats: tuple[NumberFormat, ...] = ()
    """Those in which they are the same numbers; none if they are no numbers, or it is not clear which."""
    null_words: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """How they look if not as programs write them; or what is not clear, and what would say it."""


def find_number_formats(
    distinct: pa.Array, counts: NDArray[np.int64], is_word: NDArray[np.bool_], is_boolean: NDArray[np.bool_]
) -> NumberForm:
    """Return how texts are numbers: as programs write them, unless points seem to stand between thousands; or as people
    do.
    """
    texts, has_point = distinct.to_pylist(), pc.any(pc.match_substring(distinct, ".")).as_py()
    is_plain = read_texts(distinct, "number")[1] & ~is_boolean
    words = find_null_words(texts, counts, is_plain, is_word, _FEW_NUMBERS)
    if words is None:
        return _peoples_numbers(distinct, counts, is_word, is_boolean, is_plain)
    if has_point:
        tried = distinct.filter(pa.array(is_plain & ~is_word))[:_FIRST_TRIED]
        if pc.all(pc.match_substring_regex(tried, r"^-?([0-9]{1,3}|[1-9][0-9]{0,2}\.[0-9]{3})$")).as_py():
            found = _peoples_numbers(distinct, counts, is_word, is_boolean, is_plain)
            if found.formats == ("1.234,5",):
                return found
    return NumberForm(("plain", "1,234.5") if has_point else NUMBER_FORMATS, words)


def _peoples_numbers(
    distinct: pa.Array,
    counts: NDArray[np.int64],
    is_word: NDArray[np.bool_],
    is_boolean: NDArray[np.bool_],
    is_plain: NDArray[np.bool_],
) -> NumberForm:
    """Return how texts are numbers as people write them; nothing if they are not numbers."""
    tried = distinct[:_FIRST_TRIED]
    if 2 * pc.coalesce(*(plain_numbers(tried, form) for form in NUMBER_FORMATS[1:])).null_count > len(tried):
        return _with_unit(distinct, counts)
    # What nearly all texts are in one of the formats, or in both.
    texts, of_values = distinct.to_pylist(), counts * ~is_word
    numbers, readable, words, shares = {}, {}, {}, {}
    for form in NUMBER_FORMATS[1:]:
        numbers[form], is_number = read_texts(distinct, "number", number_format=form)
        readable[form] = is_number & ~is_boolean
        words[form] = find_null_words(texts, counts, readable[form], is_word, _FEW_NUMBERS)
        shares[form] = of_values[readable[form]].sum() / max(of_values.sum(), 1)
    best = max(shares, key=shares.__getitem__)
    fitting = [form for form in shares if words[form] is not None and shares[form] >= shares[best] - MOST_MISFITS]
    if not fitting:
        in_some_format = np.logical_or.reduce([*readable.values()])
        if of_values[in_some_format].sum() < (1 - _MOST_UNLIKE) * of_values.sum():
            return NumberForm()
        odd = distinct[int(np.argmax(of_values * ~readable[best]))]
        return NumberForm(
            notes=(f"{UNCLEAR} {1 - shares[best]:.1%} of the values are not as the others, such as '{odd}'",)
        )
    example = distinct[int(np.argmax(of_values * (readable[best] & ~is_plain)))]
    # They are of one unit: 5 USD are not 5 EUR, and 0.08 may be 8 %.
    signs = pc.struct_field(pc.extract_regex(distinct, f"(?P<sign>{PERCENT}|{CURRENCY})"), "sign")
    signs = pc.if_else(pa.array(readable[best] & ~is_word), signs, None)
    units = [f"'{sign}'" for sign in signs.drop_null().unique().to_pylist()]
    without = of_values[readable[best] & signs.is_null().to_numpy(zero_copy_only=False)].sum()
    if units in (["'%'"], ["'\u2030'"]) and without > MOST_MISFITS * of_values.sum():
        units.append("none")
    if len(units) > 1:
        return NumberForm(notes=(f"{UNCLEAR} of several units ({', '.join(units[:3])}); write all in one",))
    # They are not lists: those of thousands have one or two digits before a mark here and there.
    one, other = fitting[0], fitting[-1]
    differs = readable[one] & readable[other] & ~is_word & (numbers[one] != numbers[other])
    grouped = max(fitting, key=lambda form: np.abs(numbers[form][differs]).sum()) if differs.any() else best
    is_long, is_short = (
        pc.any(
            pc.match_substring_regex(distinct, f"(^|[^0-9]){digits}[{BETWEEN_THOUSANDS[grouped]}][0-9]{{3}}")
        ).as_py()
        for digits in ("[0-9]{3}", "[0-9]{1,2}")
    )
    if is_long and not is_short:
        return NumberForm(
            notes=(f"{PERHAPS_LISTS}, such as '{example}'; {_say(grouped)} in a rule makes it one number",)
        )
    # They are one number each: of those with three digits after a mark, others below 1,000 without one say which.
    if not differs.any():
        return NumberForm(tuple(fitting), words[one] or (), (f"written as '{example}'",))
    others = np.abs(numbers[one][readable[one] & readable[other] & ~is_word & ~differs])
    if is_short and len(others) > 0 and (others < 1_000).all() and differs.sum() >= _MANY_GROUPED:
        return NumberForm((grouped,), words[grouped] or (), (f"written as '{example}'",))
    at = int(np.argmax(of_values * differs))
    ways = " and ".join(f"{numbers[form][at]:.12g} by {_say(form)}" for form in fitting)
    return NumberForm(notes=(f"{UNCLEAR} '{distinct[at]}' is {ways} in a rule",))


def _with_unit(distinct: pa.Array, counts: NDArray[np.int64]) -> NumberForm:
    """Return a note if nearly all texts are many different numbers, in a dress that is not read or with one of a few
    units such as `kg` or `K`.
    """
    for dress in _DRESSES:
        is_number = pc.match_substring_regex(distinct, f"^(?:{dress}|[0-9]{{1,3}})$").to_numpy(zero_copy_only=False)
        is_dressed = is_number & ~pc.match_substring_regex(distinct, r"^[0-9.,]+$").to_numpy(zero_copy_only=False)
        is_usual = counts[is_number].sum() >= (1 - _MOST_UNLIKE) * counts.sum()
        if is_usual and np.count_nonzero(is_dressed) > _FEW_NUMBERS:
            example = distinct[int(np.argmax(counts * is_dressed))]
            return NumberForm(notes=(f"{UNCLEAR} written as '{example}', which is not read; write plain numbers",))
    number = rf"^[~<>\x{{2248}}\x{{2264}}\x{{2265}}]?{CURRENCY}?[+-]?[0-9]+(?:[.,][0-9]+)? ?(?P<unit>[^0-9]{{0,12}})$"
    tried = distinct[:_FIRST_TRIED]
    if len(tried) <= _FEW_NUMBERS or 2 * pc.sum(pc.match_substring_regex(tried, number)).as_py() < len(tried):
        return NumberForm()
    units = pc.struct_field(pc.extract_regex(distinct, number), "unit")
    is_number = units.is_valid().to_numpy(zero_copy_only=False)
    if counts[is_number].sum() < (1 - _MOST_UNLIKE) * counts.sum() or len(units.drop_null().unique()) > _FEW_UNITS:
        return NumberForm()
    example = distinct[int(np.argmax(counts * is_number))]
    return NumberForm(notes=(f"{UNCLEAR} not alone, such as '{example}'; write plain numbers",))


def _say(form: NumberFormat) -> str:
    return f'number_format: "{form}"'


def find_null_words(
    texts: Sequence[str],
    counts: NDArray[np.int64],
    is_value: NDArray[np.bool_],
    is_word: NDArray[np.bool_],
    few: int = 0,
) -> tuple[str, ...] | None:
    """Return the texts among values (numbers, times) that stand for missing ones; None for other columns.

    Words of several rows among more than a few values do so, and few rows may have any other text, if there are more
    than `few` values.
    """
    others = np.flatnonzero(~is_value & ~is_word)
    null_words = tuple(text for text, is_null in zip(texts, is_word, strict=True) if is_null)
    rest = tuple(texts[int(i)] for i in others)
    values = np.count_nonzero(is_value & ~is_word)
    if not values:
        return None
    share = counts[others].sum() / counts.sum()
    are_words = len(rest) <= _MOST_WORDS and not any(map(_has_digit, rest)) and share <= _MOST_WORDS_SHARE
    if are_words and values > _FEW_NUMBERS and (counts[others] > 1).all():
        return (*null_words, *rest)
    return null_words if not rest or (values > few and share <= MOST_MISFITS) else None


def _has_digit(text: str) -> bool:
    return any(map(str.isdigit, text))


def read_texts(
    values: pa.Array, kind: Literal["number", "time"], time_format: str = "iso", number_format: NumberFormat = "plain"
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return (n,) numbers, or microseconds since 1970, as preprocessing reads them, else NaN; and which can be read."""
    read, unreadable = read_column(
        values, RawColumn(name="", type=kind, time_format=time_format, number_format=number_format)
    )
    if kind == "time":
        read = read.cast(pa.int64())
    return read.cast(pa.float64(), safe=False).fill_null(np.nan).to_numpy(zero_copy_only=False), ~unreadable
