"""What is known of one column of a sample: how its values are written, how many there are, and what is missing."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rayrec.config.base import NumberFormat
from rayrec.features.number_formats import NUMBER_FORMATS

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
        """Return Chao's lower bound of the distinct values in all rows, from those that the sample has once and
        twice.
        """
        if self.rows >= total_rows:
            return self.distinct
        once, twice = (int(np.count_nonzero(self.counts == times)) for times in (1, 2))
        unseen = once * (once - 1) / (2 * (twice + 1))
        most = math.ceil(total_rows * self.present / max(self.rows, 1))
        return max(self.distinct, min(round(self.distinct + unseen), most))

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
