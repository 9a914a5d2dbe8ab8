"""Finds the label of a table, and what each row's is."""

import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.common.errors import ConfigError, UserError, did_you_mean
from rayrec.config.table import LabelCondition
from rayrec.inspection.column_profile import MOST_MISFITS, NULL_WORDS, ColumnProfile
from rayrec.raw.formats.row_types import read_labels

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
    """None if the column's values are labels themselves."""
    values: NDArray[np.float64]
    """(n,) 0 or 1; NaN if it is missing."""
    reason: str
    null_words: tuple[str, ...] = ()
    """Texts that stand for a missing label."""

    @property
    def rate(self) -> float:
        """Share of 1 among the known labels."""
        return float(np.nanmean(self.values))


def squeezed(name: str) -> str:
    """Return a name in lower case without what stands between its words: `Is_Click` becomes `isclick`."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def column_of_label(given: str, names: Collection[str]) -> str | None:
    """Return the one of `names` that a label, a column or a condition, speaks of; None if it is not there."""
    found = _CONDITION.fullmatch(given)
    return next((n for n in (given, found["column"] if found else given) if n in names), None)


def find_label(columns: Mapping[str, ColumnProfile], given: str | None, missing: int | None = None) -> Label:
    """Return the label that was named, or the one column that has the name and the values of one.

    `missing`: the label of a row without a value. Raises ConfigError naming the columns that could be meant, or
    UserError if the values are no label's.
    """
    if given is not None:
        return _given_label(columns, given, missing)
    two_valued = [c for c in columns.values() if len(_words(c)) == 2]
    named = [c for c in two_valued if squeezed(c.name) in LABEL_NAMES]
    if len(named) == 1:
        return _two_valued(named[0], "taken by its name and its two values", missing)
    could_be = named or two_valued
    if not could_be:
        raise ConfigError("--label: no column has two values; name one with a condition, such as --label 'rating>=4'")
    names = ", ".join(c.name for c in could_be)
    raise ConfigError(f"--label: name the column of the label; columns of two values: {names}")


def _given_label(columns: Mapping[str, ColumnProfile], given: str, missing: int | None) -> Label:
    name = column_of_label(given, columns)
    if name is None:
        found = _CONDITION.fullmatch(given)
        name = found["column"] if found else given
        raise ConfigError(f"--label {given}: no column '{name}'; {did_you_mean(name, columns, 'columns:')}")
    column = columns[name]
    if name == given:
        return _two_valued(column, "given", missing)
    found = _CONDITION.fullmatch(given)
    assert found is not None
    sign, value = found["sign"], found["value"]
    if sign not in (">=", "=", "=="):
        raise ConfigError(f"--label {given}: no condition with '{sign}'; write '{name}>=VALUE' or '{name}=VALUE'")
    if sign != ">=":
        wanted = tuple(part.strip() for part in value.split(","))
        return _by_condition(column, LabelCondition(column=name, equals=wanted, missing=missing), given)
    try:
        least = float(value)
    except ValueError:
        raise ConfigError(f"--label {given}: '{value}' is not a number; write '{name}>=4'") from None
    if column.numbers is None:
        raise UserError(f"--label {given}: column '{name}' holds {_shown(column)}, no numbers; write '{name}=VALUE'")
    return _by_condition(column, LabelCondition(column=name, at_least=least, missing=missing), given)


def _by_condition(column: ColumnProfile, condition: LabelCondition, given: str) -> Label:
    values, _ = _labels(column, condition)
    found = np.unique(values[np.isfinite(values)])
    if len(found) < 2:
        word = "no row" if not found.any() else "every row"
        raise UserError(f"--label {given}: {word} of the sample meets it; its values are {_shown(column)}")
    return Label(column.name, condition, values, "given")


def _two_valued(column: ColumnProfile, reason: str, missing: int | None) -> Label:
    """Return the label of a column whose values say 0 or 1, but for a few; or whose two words do."""
    column = column.without([text for text in column.texts if text in NULL_WORDS])
    condition = None if missing is None else LabelCondition(column=column.name, missing=missing)
    values, wrong = _labels(column, condition or column.name)
    if len(np.unique(values[np.isfinite(values)])) == 2 and wrong.sum() <= MOST_MISFITS * column.present:
        return Label(column.name, condition, values, reason, column.null_words)
    words = _words(column)
    if column.distinct < 2:
        gaps = column.present < column.rows and not wrong.any()
        fix = "say what the rows without one are by --missing-label" if gaps else "name another column"
        raise UserError(
            f"--label {column.name}: all rows of the sample have {_shown(column)}; a label needs two values: {fix}, or "
            "give files with both"
        )
    if len(words) != 2:
        raise UserError(
            f"--label {column.name}: has {column.distinct:,} values ({_shown(column)}); a label has two: write a "
            f"condition, such as --label {shlex.quote(column.name + _example(column))}"
        )
    if set(words) == {"1", "-1"}:
        condition = LabelCondition(column=column.name, equals=("1",), missing=missing)
        return Label(column.name, condition, _labels(column, condition)[0], reason, column.null_words)
    pair = " and ".join(sorted(words))
    # The value that a model looks for is mostly the rarer one.
    counts = dict(zip(column.texts, column.counts, strict=True))
    rarer = min(sorted(words, reverse=True), key=lambda word: sum(counts[text] for text in words[word]))
    raise UserError(
        f"--label {column.name}: its values are {pair}; say which one is 1, such as "
        f"--label {shlex.quote(f'{column.name}={rarer}')}"
    )


def _labels(column: ColumnProfile, label: str | LabelCondition) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return (n,) the labels of rows, NaN if missing or wrong; (n,) whether they are wrong."""
    read, wrong, _ = read_labels(pa.array([*column.texts, None], pa.string()), label)
    values = read.cast(pa.float64()).fill_null(np.nan).to_numpy(zero_copy_only=False)
    return np.where(wrong, np.nan, values)[column.codes], wrong[column.codes]


def _words(column: ColumnProfile) -> dict[str, list[str]]:
    """Return the values of a column in lower case, and the texts of each; at most three of them."""
    words: dict[str, list[str]] = {}
    if column.form in ("list", "vector", "nested"):
        return words
    for text, count in zip(column.texts, column.counts, strict=True):
        if count:
            words.setdefault(text.lower(), []).append(text)
        if len(words) > 2:
            break
    return words


def _shown(column: ColumnProfile) -> str:
    examples = column.examples(_SHOWN)
    return ", ".join(f"'{e}'" for e in examples) + (", ..." if column.distinct > _SHOWN else "") if examples else "none"


def _example(column: ColumnProfile) -> str:
    """Return a condition that some rows of the column meet, and others do not."""
    if column.numbers is not None and column.range is not None:
        numbers = np.sort(column.row_numbers[np.isfinite(column.row_numbers)])
        higher = numbers[numbers > numbers[0]]
        return f">={max(numbers[int(0.6 * len(numbers))], higher[0]):.12g}"
    return f"={column.examples(1)[0]}"
