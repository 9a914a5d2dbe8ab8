"""Decides what each column of a table becomes, and says why."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rayrec.config.base import NumberFormat
from rayrec.features.text_forms import NUMBER_FORMATS, in_brackets
from rayrec.inspection.table.column_forms import FAR_AWAY, words_of
from rayrec.inspection.table.columns import INEXACT, MOST_MISFITS, UNCLEAR, ColumnProfile, name_words, varies
from rayrec.inspection.table.evidence import (
    ID_WORDS,
    RANGES,
    Evidence,
    Reading,
    absurd_bounds,
    number_rules,
    ranges_rule,
    with_auc,
)
from rayrec.inspection.table.roles import LABEL_NAMES, WEIGHT_NAMES, Label, Roles, are_weights, squeezed, time_settings
from rayrec.preprocessing.planned_columns import can_name_a_table, rate_column

Role = Literal["label", "group", "weight", "time", "feature", "ignored", "user", "item"]

_LEAK_AUC = 0.95
"""AUC from which on a column is more likely derived from the label than a predictor of it."""
_FREE_TEXT_CHARACTERS = 40
_ROW_ID_REPEATS = 10.0
"""Repeated values that a column with two rows a value would show in the sample, so that none is evidence."""
_PLACE_WORDS, _MOST_PLACES = {"position", "pos", "rank", "slot", "placement"}, 200
"""Words in the name of the place where a row was shown, and the greatest number of one."""
_DAY, _YEAR = 86_400.0, 365.0 * 86_400
LEAST_REPEATED = 0.5
"""Share of a column's rows whose value must occur again, so that pairs of its values may; where fewer do, its words
may.
"""
_MOST_PAIRED_ROWS, _MOST_PAIRED_COLUMNS, _MOST_CROSSES = 2_000_000, 12, 3
"""Rows times pairs of columns, and columns, that are searched for what two of them say together, which takes less than
0.1 s; and pairs that are measured."""


@dataclass(frozen=True)
class Decision:
    """Decision on a column: its kind or role, and the reason."""

    column: ColumnProfile
    role: Role
    reason: str
    rules: tuple[dict[str, Any], ...] = ()
    """Rules of `source.features`, without `columns`; those after the first have a `name`."""
    further: str = ""
    """Why there are rules after the first."""
    auc: dict[str, Reading] = field(default_factory=dict)
    """How well the column alone ranks the rows, by reading: `number`, `ranges`, `fine_ranges`, `category`, `words`."""
    warning: str | None = None

    @property
    def kind(self) -> str:
        """Kind of feature, or the role of a column that becomes none."""
        return self.rules[0]["kind"] if self.rules else self.role

    @property
    def is_renamed(self) -> bool:
        """Return whether the feature cannot have the column's name, so that all its rules have a `name`."""
        return bool(self.rules) and "name" in self.rules[0]


def decide(
    columns: Mapping[str, ColumnProfile], label: Label, roles: Roles, *, total_rows: int, seed: int = 0
) -> list[Decision]:
    """Return what each column becomes, in their order."""
    evidence = evidence_of(columns, label, roles, seed)
    row_time = columns[roles.time].row_seconds if roles.time is not None else None
    decisions = []
    for column in columns.values():
        # The first of these that holds decides.
        decision: Decision
        if column.name == label.column:
            decision = Decision(column, "label", label.reason)
        elif column.name == roles.group:
            decision = Decision(column, "group", roles.reasons[column.name])
        elif column.name == roles.unit:
            decision = Decision(column, "ignored", roles.reasons[column.name])
        elif column.name == roles.weight:
            decision = Decision(column, "weight", roles.reasons[column.name])
        elif found := _words(column, evidence):
            decision = found
        elif column.name != roles.time and (reason := _why_useless(column, total_rows)):
            decision = Decision(column, "ignored", reason)
        elif column.form == "time":
            times = [column] if roles.time is None else [column, columns[roles.time]]
            far_away = any(note.startswith(FAR_AWAY) for one in times for note in one.notes)
            decision = _times(column, roles, evidence, has_age=row_time is not None and not far_away)
        elif column.form == "list":
            decision = _lists(column)
        elif column.form == "vector":
            assert column.lengths is not None
            rule = {"kind": "vector", "size": int(column.lengths.max()), **_separator(column)}
            decision = Decision(column, "feature", f"every row has {rule['size']} numbers", (rule,))
        elif column.form == "text" or column.name == roles.candidate:
            decision = _texts(column, evidence)
        else:
            numbers = number_rules(column, evidence)
            reason = "; ".join([numbers.reason, *column.notes])
            decision = Decision(column, "feature", reason, numbers.rules, numbers.further, numbers.readings)
        # A column that seems to know the label is left out, whatever it is.
        if decision.role == "feature" and (why := _leak(decision, label, row_time)):
            reason = f"may leak the label: it {why}; delete this line if it is known before the label"
            warning = f"{column.name}: {why}, so it may leak the label; the recipe ignores it"
            decision = Decision(column, "ignored", reason, auc=decision.auc, warning=warning)
        elif decision.role == "feature" and _is_place(column):
            why = "seems to be the place where a row was shown"
            reason = f"{decision.reason}; {why}: ignore it unless that is known before rows are ranked"
            warning = (
                f"{column.name}: {why}, which a model would learn and not know when it ranks; ignore it in the recipe "
                "unless it is known by then"
            )
            decision = replace(decision, reason=reason, warning=warning)
        decisions.append(decision)
    return _named(_with_a_category(decisions))


@dataclass(frozen=True)
class Pair:
    """Two columns whose values together say more of the label than each alone, of rows at random."""

    keys: tuple[str, str]
    smoothing: int
    """Rows of the mean rate to add to each pair of values."""


@dataclass(frozen=True)
class FoundCross(Pair):
    """A pair whose label rate lifts a regression on all columns."""

    auc: float
    """AUC of a logistic regression on all columns and on the label rate of this pair, out of fold."""
    without: float
    """The same without this pair."""


@dataclass(frozen=True)
class Regressed:
    """What a logistic regression says of all features together that are numbers or categories, out of fold."""

    auc: float | None = None
    """None where there are none of these, or too few rows to measure it."""
    crosses: Sequence[FoundCross] = ()
    pairs: Sequence[Pair] = ()
    """Where rows have times, in place of `crosses`: what counts then is the past of a pair."""


def logistic_regression(
    columns: Mapping[str, ColumnProfile], label: Label, roles: Roles, decisions: Sequence[Decision], seed: int = 0
) -> Regressed:
    """Fit a logistic regression on all features, and find the pairs of columns that lift it."""
    evidence = evidence_of(columns, label, roles, seed)
    categories, numbers = regression_inputs(decisions)
    if not evidence.is_possible or not (categories or numbers):
        return Regressed()
    fitted = evidence.logistic_regression(categories, numbers)
    if fitted is None:
        return Regressed()
    # Values of a pair have to repeat, and so those of its columns. All pairs of many columns would take too long: those
    # are tried that say most alone.
    able = [d for d in decisions if d.kind in ("categorical", "numeric")]
    able = [d for d in able if d.column.repeated_share >= LEAST_REPEATED]
    able.sort(key=lambda d: -max((reading.auc for reading in d.auc.values()), default=0.0))
    most = min(int(math.sqrt(2 * _MOST_PAIRED_ROWS / len(label.values))), _MOST_PAIRED_COLUMNS)
    tried = [decision.column for decision in able[: max(most, 2)]]
    clear = fitted.clear_crosses([column.codes for column in tried])[:_MOST_CROSSES]
    if roles.time is not None:
        pairs = [Pair((tried[one].name, tried[other].name), round(smoothing)) for one, other, smoothing in clear]
        return Regressed(fitted.reading.auc, pairs=pairs)
    crosses: list[FoundCross] = []
    best = fitted.reading
    for one, other, smoothing in clear:
        keys = (tried[one].name, tried[other].name)
        together = evidence.logistic_regression([*categories, tried[one].codes_with(tried[other])], numbers)
        is_free = rate_column(keys) not in columns
        if is_free and together is not None and together.reading.is_better_than(best):
            crosses.append(FoundCross(keys, round(smoothing), together.reading.auc, best.auc))
            categories.append(tried[one].codes_with(tried[other]))
            best = together.reading
    return Regressed(fitted.reading.auc, crosses)


def regression_inputs(decisions: Sequence[Decision]) -> tuple[list[NDArray[np.int64]], list[NDArray[np.float64]]]:
    """Return (n,) the codes of each feature that is a category, and (n,) the numbers of others."""
    kinds = [(decision.column, rule["kind"]) for decision in decisions for rule in decision.rules]
    categories = [column.codes for column, kind in kinds if kind == "categorical"]
    return categories, [column.row_numbers for column, kind in kinds if kind in ("numeric", "buckets")]


def evidence_of(columns: Mapping[str, ColumnProfile], label: Label, roles: Roles, seed: int) -> Evidence:
    """Return what measures columns of a table against its label."""
    whole = roles.group or roles.unit
    return Evidence(label.values, columns[whole].codes if whole is not None else None, seed)


def _why_useless(column: ColumnProfile, total_rows: int) -> str | None:
    """Say why a column cannot help a model; None if it can."""
    if column.form == "nested":
        fix = "; write its bytes as hexadecimal texts" if "binary" in column.type else ""
        return f"holds {column.type}, which cannot become a feature{fix}"
    if column.present == 0:
        return "no row has a value"
    if column.form in ("list", "vector"):
        return None
    if column.distinct == 1 and column.missing_share == 0:
        return f"constant: every row has '{column.texts[0]}'"
    if column.form == "number" and not column.is_integral:
        return None
    if column.form == "text" and column.distinct < column.present and not column.notes:
        is_long = np.mean([len(text) for text in column.texts]) > _FREE_TEXT_CHARACTERS
        if is_long and column.repeated_share < 0.1:
            return f"free text: {1 - column.repeated_share:.0%} of its values occur once"
    if column.distinct >= (1 - MOST_MISFITS) * column.present and column.form in ("integer", "number", "text"):
        # A number of each row, by its name; or texts or running numbers of so many rows that two would be alike.
        expected = column.present**2 / (2 * max(total_rows, 1))
        is_named = bool({"id", "uuid", "guid", "key", "index", "row"} & set(name_words(column.name)))
        could_be = is_named or column.form == "text" or _is_running(column)
        if could_be and (is_named or expected >= _ROW_ID_REPEATS):
            all_of = "all" if column.distinct == column.present else f"{column.distinct:,} of"
            return f"a row id: {all_of} {column.present:,} values differ"
    return None


def _is_running(column: ColumnProfile) -> bool:
    """Tell whether numbers only rise, or only fall, from row to row, but for a few."""
    steps = np.diff(column.row_numbers[np.isfinite(column.row_numbers)])
    return bool(max((steps > 0).mean(), (steps < 0).mean()) > 1 - MOST_MISFITS)


def _separator(column: ColumnProfile) -> dict[str, Any]:
    return {} if column.separator is None else {"separator": column.separator}


def _texts(column: ColumnProfile, evidence: Evidence) -> Decision:
    """Return a category of texts, or of integers that identify candidates."""
    readings = {"category": evidence.as_category(column.codes)} if evidence.is_possible else {}
    if column.form == "text":
        note = f" ({'; '.join(column.notes)})" if column.notes else ""
        once = f", {1 - column.repeated_share:.0%} of them occur once" if column.repeated_share < 0.9 else ""
        reason = f"text{note}, {column.distinct:,} values{once}"
    else:
        reason = f"{column.distinct:,} {column.form}s that identify the candidates of lists"
    return Decision(column, "feature", with_auc(reason, readings), ({"kind": "categorical"},), auc=readings)


def _words(column: ColumnProfile, evidence: Evidence) -> Decision | None:
    """Return the list of the words of texts that are nearly all different, if these say more of the label than the
    texts; else None.
    """
    is_tried = column.form == "text" and not column.notes and column.repeated_share < LEAST_REPEATED
    if not (is_tried and evidence.is_possible and (found := words_of(column))):
        return None
    words, places = found
    assert words.lengths is not None
    by_word, whole = evidence.as_words(places, words.lengths), evidence.as_category(column.codes)
    if not (by_word.is_clear and by_word.is_better_than(whole)):
        return None
    of_words = _lists(words)
    reason = f"words of texts, {of_words.reason}; AUC {by_word.auc:.3f} by words, {whole.auc:.3f} as category"
    known = f"{column.name}: its words alone rank the rows with an AUC of {by_word.auc:.3f}; ignore it if it is not "
    warning = f"{known}known before the label" if by_word.auc > _LEAK_AUC else None
    return replace(of_words, reason=reason, auc={"words": by_word, "category": whole}, warning=warning)


def _times(column: ColumnProfile, roles: Roles, evidence: Evidence, *, has_age: bool) -> Decision:
    """Return the parts of a time that differ in rows of one split as they do between splits; or a category of a few
    months or years.

    `has_age`: whether the days until the row's time are worth something.
    """
    assert column.seconds is not None and column.time_format is not None
    is_used = np.isfinite(column.seconds) & (column.counts > 0)
    seconds, counts = column.seconds[is_used], column.counts[is_used]
    span, days = float(seconds.max() - seconds.min()), seconds // _DAY
    months = seconds.astype("datetime64[s]").astype("datetime64[M]").astype(np.int64)
    parts = ["hour"] if span >= 2 * _DAY and varies(seconds % _DAY // 3600, counts) else []
    # The weekday of the first of a month is chance.
    parts += ["weekday"] if span >= 14 * _DAY and not column.are_months and varies(days % 7, counts) else []
    parts += ["month"] if span >= 2 * _YEAR and column.are_months and varies(months % 12, counts) else []
    is_row_time = column.name == roles.time
    if has_age and not is_row_time:
        parts.append("age")
    written = {"iso": "in ISO 8601", "s": "seconds since 1970", "ms": "milliseconds since 1970",
               "us": "microseconds since 1970",
               "ns": "nanoseconds since 1970"}.get(column.time_format, f"as {column.time_format}")  # fmt: skip
    spans = f"over {span / _DAY:.0f} days" if span >= 2 * _DAY else f"over {span / 3600:.1f} hours"
    reason = "; ".join([f"times {written}, {spans}", *column.notes])
    if not is_row_time and span >= 14 * _DAY and set(parts) <= {"month"} and column.repeated_share >= LEAST_REPEATED:
        whole = _texts(column, evidence)
        return replace(whole, reason=with_auc(f"{reason}; {column.distinct:,} of them, each a category", whole.auc))
    if not parts:
        why = "they tell no hours or weekdays apart"
        return Decision(column, "time" if is_row_time else "ignored", f"{reason}; {why}")
    readings = {"number": evidence.as_bins(column.row_seconds, RANGES)} if evidence.is_possible else {}
    rule = {"kind": "timestamp", "derive": parts, **time_settings(column)}
    return Decision(column, "time" if is_row_time else "feature", reason, (rule,), auc=readings)


def _lists(column: ColumnProfile) -> Decision:
    assert column.lengths is not None
    filled = column.lengths[column.lengths > 0]
    longest, mean = int(filled.max()), filled.mean()
    kept = max(1, min(int(np.quantile(filled, 0.99)), 64))
    rule = {"kind": "list", **_separator(column), "max_length": kept, "pooling": "mean"}
    between = None if column.separator is None else in_brackets(column.separator)
    in_text = f" in brackets with '{between}' between" if between else f" separated by '{column.separator}'"
    how = f"lists{'' if column.separator is None else in_text}"
    cut = "" if kept >= longest else f"; cut to {kept}, as few of up to {longest} are longer"
    return Decision(column, "feature", f"{how}: {column.items:,} different values, {mean:.1f} a row{cut}", (rule,))


def _leak(decision: Decision, label: Label, row_time: NDArray[np.float64] | None) -> str | None:
    """Say why a column seems to know the label; None if it does not."""
    column = decision.column
    known = np.isfinite(label.values)
    present, positive = (column.codes >= 0)[known], label.values[known] == 1
    # What many words say together is less likely one fact that was written with the label.
    best = max((reading.auc for name, reading in decision.auc.items() if name != "words"), default=0.5)
    if (present == positive).all():
        return "has a value exactly where the label is 1"
    if (present != positive).all():
        return "is missing exactly where the label is 1"
    if best > _LEAK_AUC:
        return f"alone ranks the rows with an AUC of {best:.3f}"
    if squeezed(column.name) in LABEL_NAMES and column.distinct <= 2:
        return "has the name of a label"
    if column.form == "time" and row_time is not None:
        later = column.row_seconds - row_time
        share = float((later[np.isfinite(later)] > 0).mean()) if np.isfinite(later).any() else 0.0
        if share > 0.5:
            return f"is later than the row's time in {share:.0%} of the rows"
    return None


def _is_place(column: ColumnProfile) -> bool:
    """Tell whether a column has the name and the numbers of places in lists."""
    low, high = column.range or (-np.inf, np.inf)
    are_places = column.is_integral and low >= -1 and 2 <= high <= _MOST_PLACES  # -1 is a row that was not shown
    return are_places and not _PLACE_WORDS.isdisjoint(name_words(column.name))


def _with_a_category(decisions: Sequence[Decision]) -> list[Decision]:
    """Return the decisions, with ranges of the numbers and weekdays of times if else there would be no category."""
    every = [rule for decision in decisions for rule in decision.rules]
    of_times = {part for rule in every for part in rule.get("derive", ())}
    if any(rule["kind"] in ("categorical", "list", "buckets") for rule in every) or of_times - {"age"}:
        return list(decisions)
    why = "a model needs a category, and there is no other"
    found = []
    for decision in decisions:
        rules, column = decision.rules, decision.column
        if decision.kind == "numeric":
            rules = (*rules, ranges_rule(column, quantiles=RANGES))
        elif decision.kind == "timestamp":
            rules = ({**rules[0], "derive": [*rules[0]["derive"], "weekday"]},)
        found.append(replace(decision, rules=rules, further=why))
    return found


def _named(decisions: Sequence[Decision]) -> list[Decision]:
    """Return the decisions with names for features that no other feature or column has, and that their tables
    can have.
    """
    # A name gets an underscore more until neither a column, nor a feature before it, has it.
    columns = {decision.column.name for decision in decisions}
    used: set[str] = set()
    found = []
    for decision in decisions:
        column, rules = decision.column.name, []
        for rule in decision.rules:
            needs_table = rule["kind"] not in ("numeric", "vector")
            name = rule.get("name", column)
            while True:
                made = {f"{name}_{part}" for part in rule["derive"]} if "derive" in rule else {name}
                is_free = not made & (used | columns - {column})
                if is_free and (not needs_table or all(map(can_name_a_table, made))):
                    break
                name = name.replace(".", "_") if "." in name else f"{name}_"
            used |= made
            rules.append(rule if name == rule.get("name", column) else {**rule, "name": name})
        reason = decision.reason
        if rules and rules[0].get("name", column) != column:
            reason += f"; named '{rules[0]['name']}', as its own name is taken, or none for a table"
        found.append(replace(decision, rules=tuple(rules), reason=reason))
    return found


def with_number_formats(decisions: Sequence[Decision]) -> tuple[list[Decision], NumberFormat]:
    """Return the format of the source's numbers, and the decisions, in which rules of other columns have their own.

    It is that of the label and the weight, which have no rule, else of most columns.
    """
    used = [decision for decision in decisions if decision.rules or decision.role in ("label", "weight")]
    if all("plain" in decision.column.number_formats for decision in used):
        return list(decisions), "plain"
    without_rule = [decision for decision in used if not decision.rules]

    def fits(form: NumberFormat) -> tuple[int, ...]:
        return tuple(sum(form in one.column.number_formats for one in some) for some in (without_rule, used))

    of_source = max(NUMBER_FORMATS, key=fits)
    found = []
    for decision in decisions:
        formats, rules = decision.column.number_formats, []
        for rule in decision.rules:
            default = "plain" if rule["kind"] in ("categorical", "list") else of_source
            rules.append(rule if default in formats else {**rule, "number_format": formats[0]})
        found.append(replace(decision, rules=tuple(rules)))
    return found, of_source


def table_warnings(decisions: Sequence[Decision], roles: Roles) -> list[str]:
    """Return what a person should look at before training."""
    warnings = [d.warning for d in decisions if d.warning]
    for column in [d.column for d in decisions if d.rules and squeezed(d.column.name) in WEIGHT_NAMES]:
        is_weight = are_weights(column) if column.form in ("integer", "number", "text") else np.zeros(column.rows, bool)
        if roles.weight is None and is_weight.any():
            warnings.append(
                f"{column.name}: is named as a weight, but {(~is_weight).mean():.1%} of the rows have no number of at "
                "least 0, so that it is read as a feature; mend them, or ignore it"
            )
    split = " and the split is at random, so the model may learn from the future" if roles.time is None else ""
    for decision in decisions:
        column = decision.column
        note = column.notes[0] if column.notes else ""
        has_digits = bool(column.texts) and any(map(str.isdigit, "".join(column.examples(1))))
        if column.name == roles.weight and column.numbers is not None:  # a text has odd cells
            beyond = column.row_numbers[column.row_numbers > absurd_bounds(column.row_numbers).get("max", np.inf)]
            if len(beyond):
                warnings.append(f"{column.name}: {len(beyond):,} weights such as {beyond[0]:g} outweigh all other "
                                "rows; remove these rows, or what is learned and measured is theirs alone")  # fmt: skip
        if column.name == roles.weight or squeezed(column.name) in WEIGHT_NAMES:
            continue
        if note.startswith(UNCLEAR) and ID_WORDS.isdisjoint(name_words(column.name)):
            what = "read as categories" if decision.rules else "ignored"
            warnings.append(f"{column.name}: {note}; they are {what}")
        elif column.form == "text" and INEXACT in column.notes and decision.role != "ignored":
            warnings.append(f"{column.name}: {INEXACT}")
        elif note.startswith(("day and month", "JSON", FAR_AWAY)) and decision.role != "ignored":
            warnings.append(f"{column.name}: {note}")
        elif column.form == "text" and column.has_time_name and has_digits and column.distinct > 1:
            examples = f"such as '{column.examples(1)[0]}'"
            warnings.append(f"{column.name}: seems to be times, {examples}, but most are in no known format{split}")
        elif column.form == "time" and roles.time is None and column.missing_share:
            warnings.append(f"{column.name}: {column.missing_share:.1%} of the rows have no time{split}")
    return warnings
