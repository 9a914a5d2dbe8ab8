"""Finds the columns that say something about rows beside what a model reads: label, list, weight, time, candidate."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.common.errors import ConfigError, UserError, did_you_mean
from rayrec.common.text import shell_line
from rayrec.config.table import LabelCondition
from rayrec.features.labels import read_labels
from rayrec.inspection.table.columns import MOST_MISFITS, NULL_WORDS, ColumnProfile, name_words, read_texts

LABEL_NAMES = frozenset({
    "click", "clicked", "isclick", "isclicked", "clk", "label", "target", "y", "converted", "conversion",
    "isconversion", "isconverted", "purchase", "purchased", "ispurchase", "bought", "buy", "liked", "like", "islike",
    "isliked", "response", "outcome", "ctr", "cvr", "engaged",
})  # fmt: skip
_GROUP_NAMES = (
    "displayid", "requestid", "sessionid", "impressionid", "queryid", "searchid", "listid", "groupid", "qid", "display",
    "request", "session", "impression", "query", "group", "reqid", "sid", "pageviewid", "auctionid", "slateid",
)  # fmt: skip
"""Names of columns that number lists; where a table has several, the earlier one counts."""
WEIGHT_NAMES = ("weight", "sampleweight", "rowweight", "exampleweight", "importance", "importanceweight")
_CANDIDATE_WORDS = {"ad", "item", "product", "article", "movie", "offer", "candidate", "creative", "banner", "document"}
_UNIT_ROWS, _UNIT_SHARE_TOGETHER, _UNIT_CORRELATION = (1.5, 50.0), 0.95, 0.3
"""Rows of a unit on average; the share of units whose rows lie together; the least correlation of their labels."""
_BIRTH_WORDS = {"birth", "birthday", "birthdate", "born", "dob"}
_CONDITION = re.compile(r"\s*(?P<sign>>=|==|=|>|<=|<)\s*(?P<value>.+?)\s*", re.DOTALL)
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
    if given in names:
        return given
    # The longest, as a name may have a sign in it, too.
    begun = sorted((name for name in names if given.lstrip().startswith(name)), key=len, reverse=True)
    return next((name for name in begun if _CONDITION.fullmatch(given.lstrip()[len(name) :])), None)


def find_label(columns: Mapping[str, ColumnProfile], given: str | None, missing: int | None = None) -> Label:
    """Return the label that was named, or the one column that has the name and the values of one.

    `missing`: the label of a row without a value. Raises ConfigError naming the columns that could be meant, or
    UserError if the values are no label's.
    """
    if given is None:
        two_valued = [c for c in columns.values() if len(_words(c)) == 2]
        named = [c for c in two_valued if squeezed(c.name) in LABEL_NAMES]
        if len(named) == 1:
            return _two_valued(named[0], "taken by its name and its two values", missing)
        names = ", ".join(c.name for c in named or two_valued)
        if names:
            raise ConfigError(f"--label: name the column of the label; columns of two values: {names}")
        raise ConfigError("--label: no column has two values; name one with a condition, such as --label 'rating>=4'")
    name = column_of_label(given, columns)
    if name is None:
        begins = _CONDITION.search(given)
        name = given[: begins.start()].strip() if begins else given
        raise ConfigError(f"--label {given}: no column '{name}'; {did_you_mean(name, columns, 'columns:')}")
    column = columns[name]
    if name == given:
        return _two_valued(column, "given", missing)
    # A condition on the column: at least a number, or one of some values.
    found = _CONDITION.fullmatch(given.lstrip()[len(name) :])
    assert found is not None
    sign, value = found["sign"], found["value"]
    if sign not in (">=", "=", "=="):
        raise ConfigError(f"--label {given}: no condition with '{sign}'; write '{name}>=VALUE' or '{name}=VALUE'")
    if sign == ">=":
        try:
            least = float(value)
        except ValueError:
            raise ConfigError(f"--label {given}: '{value}' is not a number; write '{name}>=4'") from None
        if column.numbers is None:
            raise UserError(
                f"--label {given}: column '{name}' holds {_shown(column)}, no numbers; write '{name}=VALUE'"
            )
        condition = LabelCondition(column=name, at_least=least, missing=missing)
    else:
        # Several values, unless one of the column has the comma in itself.
        wanted = (value,) if value in column.texts else tuple(part.strip() for part in value.split(","))
        condition = LabelCondition(column=name, equals=wanted, missing=missing)
    values, _ = _labels(column, condition)
    kinds = np.unique(values[np.isfinite(values)])
    if len(kinds) < 2:
        word = "no row" if not kinds.any() else "every row"
        raise UserError(f"--label {given}: {word} of the sample meets it; its values are {_shown(column)}")
    return Label(name, condition, values, "given")


def _two_valued(column: ColumnProfile, reason: str, missing: int | None) -> Label:
    """Return the label of a column whose values say 0 or 1, but for a few; or whose two words do."""
    if set(_words(column)) == {"+", "-"}:  # elsewhere a minus alone is a missing value
        is_plus = LabelCondition(column=column.name, equals=("+",), missing=missing)
        return Label(column.name, is_plus, _labels(column, is_plus)[0], reason)
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
            f"condition, such as --label {shell_line([column.name + _example(column)])}"
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
        f"--label {shell_line([f'{column.name}={rarer}'])}"
    )


def _labels(column: ColumnProfile, label: str | LabelCondition) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return (n,) the labels of rows, NaN if missing or wrong; (n,) whether they are wrong."""
    read, wrong = read_labels(pa.array([*column.texts, None], pa.string()), label)
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


@dataclass(frozen=True)
class Roles:
    """Columns that say something about rows beside what a model reads."""

    group: str | None
    weight: str | None
    time: str | None
    candidate: str | None
    unit: str | None
    """The person or case that several rows belong to, all of which must be in one split."""
    reasons: Mapping[str, str]
    """Why, by column."""
    time_settings: Mapping[str, str]
    """How the column of times is written, if not as ISO 8601 has it."""


def find_roles(columns: Mapping[str, ColumnProfile], label: Label) -> Roles:
    """Return the columns of groups, weights, times, candidates and units, by clear names and by their values."""
    others = [column for column in columns.values() if column.name != label.column]
    reasons = {}
    # Rows with equal values are a list: of several names, the one that comes first in the table of names.
    could_group = [c for c in others if squeezed(c.name) in _GROUP_NAMES and _is_group(c, label)]
    group = min(could_group, key=lambda c: _GROUP_NAMES.index(squeezed(c.name)), default=None)
    if group is not None:
        rows = group.present / group.distinct
        reasons[group.name] = f"lists, by its name, of {rows:.1f} rows on average; a list stays in one split"
    # Weights are numbers of at least 0.
    could_weigh = [c for c in others if squeezed(c.name) in WEIGHT_NAMES and c.form in ("integer", "number", "text")]
    weight = next((c for c in could_weigh if are_weights(c).mean() >= 1 - MOST_MISFITS), None)
    if weight is not None:
        reasons[weight.name] = "weights of rows in loss and metrics, by its name"
    # Rows are logged to the minute, memberships begin on a day: times with a clock come before days.
    times = [c for c in others if c.form == "time" and c.distinct > 1 and _is_row_time(c)]
    time = max(times, key=lambda c: ("timestamp" in name_words(c.name), c.has_clock, c.distinct), default=None)
    if time is not None:
        assert time.seconds is not None
        first, last = (np.datetime64(int(t), "s") for t in (np.nanmin(time.seconds), np.nanmax(time.seconds)))
        reasons[time.name] = f"the time of a row, {first} to {last}"
    candidate = None
    if group is not None:
        candidate = next((c for c in others if c.name != group.name and _is_candidate(c, group)), None)
    unit = None
    if group is None and (time is None or not time.orders_rows):
        unit = max((c for c in others if _is_unit(c, others, label)), key=lambda c: c.distinct, default=None)
    if unit is not None:
        reasons[unit.name] = (
            f"its {unit.distinct:,} values have {unit.present / unit.distinct:.1f} rows each, which are alike; the "
            "split holds out whole ones, as a model will meet new ones"
        )
    found = {"group": group, "weight": weight, "time": time, "candidate": candidate, "unit": unit}
    names = {role: None if column is None else column.name for role, column in found.items()}
    return Roles(**names, reasons=reasons, time_settings=time_settings(time))


def are_weights(column: ColumnProfile) -> NDArray[np.bool_]:
    """Tell (n,) whether a row has a number of at least 0; a few other texts do not make numbers words."""
    if column.numbers is not None:
        return column.row_numbers >= 0
    numbers, _ = read_texts(pa.array(column.texts, pa.string()), "number")
    return np.append(numbers, np.nan)[column.codes] >= 0


def time_settings(column: ColumnProfile | None) -> dict[str, str]:
    """Return what a recipe must say about how times are written."""
    return {} if column is None or column.time_format in (None, "iso") else {"format": str(column.time_format)}


def _is_group(column: ColumnProfile, label: Label) -> bool:
    """Tell whether rows with equal values are a list of which few are positive."""
    if column.form not in ("integer", "text") or column.missing_share > MOST_MISFITS:
        return False
    rows, known = column.counts, column.codes >= 0
    positives = np.bincount(column.codes[known], weights=np.nan_to_num(label.values)[known], minlength=len(rows))
    return bool(rows.mean() >= 1.5 and (positives[rows > 1] <= np.maximum(rows[rows > 1] / 2, 1)).mean() > 0.9)


def _is_unit(column: ColumnProfile, others: Sequence[ColumnProfile], label: Label) -> bool:
    """Tell whether rows with equal values are repeated measures of one person or case: a split at random would have
    some of them in every part, and a model would seem to know what it has only seen before.

    They lie together in the file, some other column never differs among them, and their labels are alike. The last
    tells them from people and items in logs of clicks, whose labels hardly correlate.
    """
    known = np.isfinite(label.values)
    if column.form not in ("integer", "text") or column.missing_share or not known.any():
        return False
    low, high = _UNIT_ROWS
    runs = 1 + np.count_nonzero(np.diff(column.codes))
    if not low <= column.rows / column.distinct <= high or column.distinct < _UNIT_SHARE_TOGETHER * runs:
        return False
    # The correlation of the labels of two rows with one value (intraclass correlation).
    codes, centred = column.codes[known], label.values[known] - label.values[known].mean()
    rows = np.bincount(codes, minlength=column.distinct)
    sums = np.bincount(codes, weights=centred, minlength=column.distinct)
    pairs, squares = (rows * (rows - 1)).sum(), (centred**2).sum()
    if not pairs or ((sums**2).sum() - squares) / pairs < _UNIT_CORRELATION * squares / len(centred):
        return False
    return any(
        1 < other.distinct < column.distinct
        and len(np.unique(np.stack([column.codes, other.codes]), axis=1).T) == column.distinct
        for other in others
        if other is not column
    )


def _is_row_time(column: ColumnProfile) -> bool:
    """Tell whether a column of times can be when rows were shown, as births, a few years and the like cannot."""
    assert column.seconds is not None
    if column.are_months and not column.orders_rows:
        return False
    is_recent = np.nanquantile(column.seconds, MOST_MISFITS) >= np.datetime64("1990-01-01", "s").astype(float)
    return column.missing_share < 0.01 and bool(is_recent) and _BIRTH_WORDS.isdisjoint(name_words(column.name))


def _is_candidate(column: ColumnProfile, group: ColumnProfile) -> bool:
    """Tell whether it names what a list offers: different in each row of a list, and the same in many lists."""
    words = name_words(column.name)
    if column.form != "integer" or words[-1:] != ["id"] or not _CANDIDATE_WORDS & set(words):
        return False
    pairs = len(np.unique(np.stack([group.codes, column.codes]), axis=1).T)
    return pairs > 0.99 * len(group.codes) and column.distinct < 0.9 * pairs
