"""Finds the label of a table, and what each row's is."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rayrec.common.errors import ConfigError, UserError, did_you_mean
from rayrec.config.table import LabelCondition
from rayrec.inspection.columns import FALSE_WORDS, TRUE_WORDS, Column

LABEL_NAMES = frozenset({
    "click", "clicked", "isclick", "isclicked", "clk", "label", "target", "y", "converted", "conversion",
    "isconversion", "isconverted", "purchase", "purchased", "ispurchase", "bought", "buy", "liked", "like", "islike",
    "isliked", "response", "outcome", "ctr", "cvr", "engaged",
})  # fmt: skip
_CONDITION = re.compile(r"\s*(?P<column>.+?)\s*(?P<sign>>=|==|=|>|<=|<)\s*(?P<value>.+?)\s*")
_SHOWN = 5


@dataclass(frozen=True)
class Label:
    """The label of a table."""

    column: str
    condition: LabelCondition | None
    """None if the column's values are 0 and 1, or false and true."""
    values: NDArray[np.float64]
    """(n,) 0 or 1; NaN if it is missing."""
    reason: str

    @property
    def rate(self) -> float:
        """Share of 1 among the known labels."""
        return float(np.nanmean(self.values))


def squeezed(name: str) -> str:
    """A name in lower case without what stands between its words: `Is_Click` becomes `isclick`."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def column_of_label(given: str, names: Collection[str]) -> str | None:
    """The one of `names` that a label, a column or a condition, speaks of; None if it is not there."""
    found = _CONDITION.fullmatch(given)
    return next((n for n in (given, found["column"] if found else given) if n in names), None)


def find_label(columns: Mapping[str, Column], given: str | None) -> Label:
    """The label that was named, or the one column that has the name and the values of one.

    Raises ConfigError naming the columns that could be meant, or UserError if the values are no label's.
    """
    if given is not None:
        return _given_label(columns, given)
    two_valued = [c for c in columns.values() if len(_words(c)) == 2]
    named = [c for c in two_valued if squeezed(c.name) in LABEL_NAMES]
    if len(named) == 1:
        return _two_valued(named[0], "taken by its name and its two values")
    could_be = named or two_valued
    if not could_be:
        raise ConfigError("--label: no column has two values; name one with a condition, such as --label 'rating>=4'")
    names = ", ".join(c.name for c in could_be)
    raise ConfigError(f"--label: name the column of the label; columns of two values: {names}")


def _given_label(columns: Mapping[str, Column], given: str) -> Label:
    if given in columns:
        column = columns[given]
        if column.distinct < 2:
            raise UserError(
                f"--label {given}: all rows of the sample have {_shown(column)}; a label needs two values: name "
                "another column, or give files with both"
            )
        if len(_words(column)) != 2:
            raise UserError(
                f"--label {given}: has {column.distinct:,} values ({_shown(column)}); a label has two: write a "
                f"condition, such as --label '{given}{_example(column)}'"
            )
        return _two_valued(column, "given")
    found = _CONDITION.fullmatch(given)
    name = found["column"] if found else given
    if name not in columns:
        raise ConfigError(f"--label {given}: no column '{name}'; {did_you_mean(name, columns, 'columns:')}")
    assert found is not None
    column, sign, value = columns[name], found["sign"], found["value"]
    if sign not in (">=", "=", "=="):
        raise ConfigError(f"--label {given}: no condition with '{sign}'; write '{name}>=VALUE' or '{name}=VALUE'")
    if sign == ">=":
        return _at_least(column, value, given)
    wanted = tuple(part.strip() for part in value.split(","))
    values = _equals(column, wanted)
    # Files may write 5 as 5.0; a condition compares texts.
    used = sorted({column.texts[code] for code in np.unique(column.codes[values == 1])})
    condition = LabelCondition(column=name, equals=tuple(dict.fromkeys([*wanted, *used])))
    return _checked(column, condition, values, given)


def _at_least(column: Column, value: str, given: str) -> Label:
    try:
        least = float(value)
    except ValueError:
        raise ConfigError(f"--label {given}: '{value}' is not a number; write '{column.name}>=4'") from None
    if column.numbers is None:
        raise UserError(
            f"--label {given}: column '{column.name}' holds {_shown(column)}, no numbers; write '{column.name}=VALUE'"
        )
    numbers = column.row_numbers
    values = np.where(np.isfinite(numbers), numbers >= least, np.nan)
    return _checked(column, LabelCondition(column=column.name, at_least=least), values, given)


def _equals(column: Column, wanted: tuple[str, ...]) -> NDArray[np.float64]:
    def is_wanted(text: str, number: float) -> bool:
        return text in wanted or any(_number(w) == number for w in wanted)

    numbers = np.full(len(column.texts), np.nan) if column.numbers is None else column.numbers
    hits = np.array([is_wanted(t, n) for t, n in zip(column.texts, numbers, strict=True)], np.float64)
    return np.append(hits, np.nan)[column.codes]


def _checked(column: Column, condition: LabelCondition, values: NDArray[np.float64], given: str) -> Label:
    found = np.unique(values[np.isfinite(values)])
    if len(found) < 2:
        word = "no row" if not found.any() else "every row"
        raise UserError(f"--label {given}: {word} of the sample meets it; its values are {_shown(column)}")
    return Label(column.name, condition, values, "given")


def _two_valued(column: Column, reason: str) -> Label:
    words = _words(column)
    true, false = ([w for w in words if w in side] for side in (TRUE_WORDS, FALSE_WORDS))
    if len(true) != 1 or len(false) != 1:
        pair = " and ".join(sorted(words))
        raise UserError(
            f"--label {column.name}: its values are {pair}; say which one is 1, such as "
            f"--label '{column.name}={sorted(words)[-1]}'"
        )
    texts = words[true[0]]
    values = _equals(column, tuple(texts))
    is_plain = set(words) in ({"0", "1"}, {"false", "true"})
    condition = None if is_plain else LabelCondition(column=column.name, equals=tuple(texts))
    return Label(column.name, condition, values, reason)


def _words(column: Column) -> dict[str, list[str]]:
    """The values of a column, without case and `.0`, and the texts of each; at most three of them."""
    words: dict[str, list[str]] = {}
    if column.form in ("list", "vector", "nested"):
        return words
    for text, count in zip(column.texts, column.counts, strict=True):
        if count:
            words.setdefault(text.lower().removesuffix(".0"), []).append(text)
        if len(words) > 2:
            break
    return words


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _shown(column: Column) -> str:
    examples = column.examples(_SHOWN)
    return ", ".join(f"'{e}'" for e in examples) + (", ..." if column.distinct > _SHOWN else "") if examples else "none"


def _example(column: Column) -> str:
    """A condition that some rows of the column meet."""
    if column.numbers is not None and column.range is not None:
        return f">={np.nanquantile(column.row_numbers, 0.6):g}"
    return f"={column.examples(1)[0]}"
