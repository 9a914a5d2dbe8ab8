"""Decides what each column of a table becomes, and says why."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rayrec.inspection.column_forms import DRESSED
from rayrec.inspection.column_profile import MOST_MISFITS, ColumnProfile, name_words
from rayrec.inspection.evidence import Evidence, Reading
from rayrec.inspection.roles import LABEL_NAMES, Label, Roles, squeezed, time_settings
from rayrec.preprocessing.rows.column_plan import can_name_a_table

Role = Literal["label", "group", "weight", "time", "feature", "ignored", "user", "item"]

LEAK_AUC = 0.95
"""AUC from which on a column is more likely derived from the label than a predictor of it."""
_CATEGORY_WORDS = {
    "id", "ids", "uid", "uuid", "guid", "code", "type", "category", "cat", "zip", "zipcode", "postcode", "user", "item",
    "ad", "site", "page", "product", "movie", "device", "model", "brand", "campaign", "advertiser", "publisher", "shop",
    "channel", "class", "region", "country", "city", "state", "store", "hash", "key", "platform", "gender", "status",
    "segment", "language", "lang", "browser", "os", "occupation", "slot", "domain", "app",
}  # fmt: skip
_AMOUNT_WORDS = {
    "count", "counts", "cnt", "num", "n", "amount", "price", "cost", "age", "rating", "ratings", "score", "duration",
    "length", "len", "size", "width", "height", "views", "clicks", "impressions", "visits", "days", "hours", "minutes",
    "seconds", "year", "distance", "rate", "ratio", "share", "percent", "pct", "avg", "mean", "sum", "total", "balance",
    "income", "quantity", "qty", "temperature", "lat", "lon", "lng", "latitude", "longitude", "bid", "rank", "depth",
}  # fmt: skip
_ID_WORDS = {"id", "ids", "uid", "uuid", "guid", "code", "zip", "zipcode", "postcode", "hash", "key"}
_FREE_TEXT_CHARACTERS = 40
_FEW_KINDS, _MANY_KINDS = 50, 1_000
"""Integers with up to 50 values are taken for categories unless something speaks for numbers; those with more only if
their name or the label says so."""
_FEW_COUNTS = 10
_RANGES, _FINE_RANGES, _MANY_FOR_RANGES = 16, 64, 320
_FAR_OUT = 10.0
"""Distances from the median to the outermost half per cent of the numbers, beyond which others are outliers."""
_MOST_SENTINELS, _ODD_FREQUENCY = 3, 3
_SENTINEL_SHARE = 0.01
"""Share of rows from which on a number that stands for something else has a range of its own."""
_ROW_ID_REPEATS = 10.0
"""Repeated values that a column with two rows a value would show in the sample, so that none is evidence."""
_DAY = 86_400.0


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
    """How well the column alone ranks the rows, by reading: `number`, `ranges`, `fine_ranges`, `category`."""
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
    evidence = _evidence(columns, label, roles, seed)
    row_time = columns[roles.time].row_seconds if roles.time is not None else None
    decisions = []
    for column in columns.values():
        # The first of these that holds decides.
        decision: Decision
        if column.name == label.column:
            decision = Decision(column, "label", label.reason)
        elif column.name == roles.group:
            decision = Decision(column, "group", roles.reasons[column.name])
        elif column.name == roles.weight:
            decision = Decision(column, "weight", roles.reasons[column.name])
        elif column.name != roles.time and (reason := _why_useless(column, total_rows)):
            decision = Decision(column, "ignored", reason)
        elif column.form == "time":
            decision = _times(column, roles, evidence, row_time)
        elif column.form == "list":
            decision = _lists(column)
        elif column.form == "vector":
            assert column.lengths is not None
            rule = {"kind": "vector", "size": int(column.lengths.max()), **_separator(column)}
            decision = Decision(column, "feature", f"every row has {rule['size']} numbers", (rule,))
        elif column.form == "text" or column.name == roles.candidate:
            decision = _texts(column, evidence)
        else:
            decision = _numbers(column, evidence)
        # A column that seems to know the label is left out, whatever it is.
        if decision.role == "feature" and (why := _leak(decision, label, row_time)):
            reason = f"may leak the label: it {why}; delete this line if it is known before the label"
            warning = f"{column.name}: {why}, so it may leak the label; the recipe ignores it"
            decision = Decision(column, "ignored", reason, auc=decision.auc, warning=warning)
        decisions.append(decision)
    return _named(_with_a_category(decisions))


def logistic_regression(
    columns: Mapping[str, ColumnProfile], label: Label, roles: Roles, decisions: Sequence[Decision], seed: int = 0
) -> float | None:
    """Return the AUC of a logistic regression on all features that are numbers or categories, out of fold.

    None where there are none of these, or too few rows to measure it.
    """
    evidence = _evidence(columns, label, roles, seed)
    kinds = [(decision.column, rule["kind"]) for decision in decisions for rule in decision.rules]
    categories = [column.codes for column, kind in kinds if kind == "categorical"]
    numbers = [column.row_numbers for column, kind in kinds if kind in ("numeric", "buckets")]
    if not evidence.is_possible or not (categories or numbers):
        return None
    return evidence.logistic_regression(categories, numbers)


def _evidence(columns: Mapping[str, ColumnProfile], label: Label, roles: Roles, seed: int) -> Evidence:
    return Evidence(label.values, columns[roles.group].codes if roles.group is not None else None, seed)


def _why_useless(column: ColumnProfile, total_rows: int) -> str | None:
    """Say why a column cannot help a model; None if it can."""
    if column.form == "nested":
        return f"holds {column.type}, which cannot become a feature"
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


def _with_auc(reason: str, readings: Mapping[str, Reading]) -> str:
    return f"{reason}; AUC {max(r.auc for r in readings.values()):.3f}" if readings else reason


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
    return Decision(column, "feature", _with_auc(reason, readings), ({"kind": "categorical"},), auc=readings)


def _times(column: ColumnProfile, roles: Roles, evidence: Evidence, row_time: NDArray[np.float64] | None) -> Decision:
    """Return the parts of a time that differ in rows of one split as they do between splits."""
    assert column.seconds is not None and column.time_format is not None
    seconds = column.row_seconds
    span = float(np.nanmax(seconds) - np.nanmin(seconds))
    parts = ["hour"] if span >= 2 * _DAY and column.has_clock else []
    parts += ["weekday"] if span >= 14 * _DAY else []
    is_row_time = column.name == roles.time
    if not is_row_time and row_time is not None:
        parts.append("age")
    written = {"iso": "in ISO 8601", "s": "seconds since 1970", "ms": "milliseconds since 1970",
               "us": "microseconds since 1970"}.get(column.time_format, f"as {column.time_format}")  # fmt: skip
    spans = f"over {span / _DAY:.0f} days" if span >= 2 * _DAY else f"over {span / 3600:.1f} hours"
    reason = "; ".join([f"times {written}, {spans}", *column.notes])
    if not parts:
        return Decision(column, "time" if is_row_time else "ignored", f"{reason}; too short for hours or weekdays")
    readings = {"number": evidence.as_bins(seconds, _RANGES)} if evidence.is_possible else {}
    rule = {"kind": "timestamp", "derive": parts, **time_settings(column)}
    return Decision(column, "time" if is_row_time else "feature", reason, (rule,), auc=readings)


def _lists(column: ColumnProfile) -> Decision:
    assert column.lengths is not None
    filled = column.lengths[column.lengths > 0]
    longest, mean = int(filled.max()), filled.mean()
    kept = max(1, min(int(np.quantile(filled, 0.99)), 64))
    rule = {"kind": "list", **_separator(column), "max_length": kept, "pooling": "mean"}
    how = f"lists separated by '{column.separator}'" if column.separator is not None else "lists"
    cut = "" if kept >= longest else f"; cut to {kept}, as few of up to {longest} are longer"
    return Decision(column, "feature", f"{how}: {column.items:,} different values, {mean:.1f} a row{cut}", (rule,))


def _numbers(column: ColumnProfile, evidence: Evidence) -> Decision:
    """Return a column of numbers: a number, a category or both, by what predicts the label, else by name and values."""
    readings = {}
    if evidence.is_possible:
        readings = {
            "number": evidence.as_number(column.row_numbers),
            "ranges": evidence.as_bins(column.row_numbers, _RANGES),
        }
        if column.distinct > _RANGES:
            readings["fine_ranges"] = evidence.as_bins(column.row_numbers, _FINE_RANGES)
    if not column.is_integral:
        return _number(column, _with_auc(f"decimals{_range(column)}", readings), readings)
    if evidence.is_possible:
        readings["category"] = evidence.as_category(column.codes)
    is_category, why = _reads_as_category(column, readings)
    shown = f"{column.distinct:,} integers{_range(column)}: {why}"
    if readings:
        number, category = _as_number(column, readings).auc, readings["category"].auc
        figures = [f"{category:.3f} as category", f"{number:.3f} as number"]
        shown += f"; AUC {', '.join(figures if is_category else reversed(figures))}"
    if is_category:
        return Decision(column, "feature", shown, ({"kind": "categorical"},), auc=readings)
    return _number(column, shown, readings)


def _as_number(column: ColumnProfile, readings: Mapping[str, Reading]) -> Reading:
    """Return the best reading of a number that keeps its order; fine ranges of few values would be the values
    themselves.
    """
    kinds = ("number", "ranges", "fine_ranges") if column.distinct > _MANY_FOR_RANGES else ("number", "ranges")
    return max((readings[kind] for kind in kinds), key=lambda reading: reading.auc)


def _range(column: ColumnProfile) -> str:
    return "" if column.range is None else f", {_shown(column.range[0])} to {_shown(column.range[1])}"


def _shown(number: float) -> str:
    return f"{number:,.0f}" if number == int(number) and abs(number) < 1e15 else f"{number:g}"


def _reads_as_category(column: ColumnProfile, readings: Mapping[str, Reading]) -> tuple[bool, str]:
    if column.distinct <= 2:
        return True, "two values"
    known = [word for word in name_words(column.name) if word in _CATEGORY_WORDS | _AMOUNT_WORDS]
    is_amount = bool(known) and known[-1] in _AMOUNT_WORDS and column.distinct > _FEW_KINDS
    if readings:
        number, category = _as_number(column, readings), readings["category"]
        if category.is_better_than(number) and not is_amount:
            return True, "better as category"
        if number.is_better_than(category):
            return False, "better as number"
    if known and (known[-1] in _ID_WORDS | _AMOUNT_WORDS or not _falls_from_the_first(column)):
        return known[-1] in _CATEGORY_WORDS, f"'{known[-1]}' in its name"
    if _looks_like_counts(column):
        return False, "small values are the most frequent, as in counts"
    if column.distinct <= min(_FEW_KINDS, column.present / 5):
        return True, "few values"
    if readings and column.distinct <= _MANY_KINDS and readings["category"].is_clear and not number.is_clear:
        return True, "predicts only as category"
    return False, "many values"


def _falls_from_the_first(column: ColumnProfile) -> bool:
    """Return whether 1, 2, 3, 4 and 5 (perhaps 0 before them) are the most frequent numbers in this order, as in
    counts.
    """
    values, counts = np.unique(column.row_numbers[np.isfinite(column.row_numbers)], return_counts=True)
    if len(values) <= 5 or values[0] not in (0, 1) or values[4] != values[0] + 4:
        return False
    return bool((np.diff(counts[:5]) < 0).all() and counts[4] >= counts[5:].max())


def _looks_like_counts(column: ColumnProfile) -> bool:
    """Return whether numbers begin at about 0 without gaps, and are the rarer the larger they are."""
    numbers = column.row_numbers[np.isfinite(column.row_numbers)]
    values, counts = np.unique(numbers, return_counts=True)
    least, most = values[0], values[-1]
    if not -10 <= least <= 1 or values[min(3, len(values) - 1)] - least > 10:
        return False
    if column.distinct > _FEW_COUNTS:
        return bool(np.median(numbers) - least <= 0.25 * (most - least))
    falls = (np.diff(counts[1:]) <= 0).all() and counts[-1] < counts.max() / 2
    return column.distinct > 3 and bool((np.diff(values) == 1).all() and falls)


def _number(column: ColumnProfile, reason: str, readings: Mapping[str, Reading]) -> Decision:
    """Return a number, with ranges beside it where a line does not follow it, or where rows have no value or a
    sentinel.
    """
    numbers = np.sort(column.row_numbers[np.isfinite(column.row_numbers)])
    sentinels = _sentinels(numbers)
    body = numbers[~np.isin(numbers, sentinels)]
    # Skewed numbers are scaled by their logarithm, or by their rank if they go far below 0. What is fitted sees the
    # same rows as the test for skew does: sentinels and outliers are clipped before.
    low, median, high = np.quantile(body, [0.01, 0.5, 0.99])
    is_skewed = high - median > 10 * max(median - low, 1e-9) or (body[0] >= 0 and high > 20 * max(median, 1e-9))
    steps: list[Any] = ["standardize"]
    scaled = body
    if is_skewed and body[0] > -10:
        offset = 1 - min(0, int(np.floor(body[0])))
        steps, scaled = [{"op": "log", "offset": offset}, "standardize"], np.log(body + offset)
    elif is_skewed:
        steps = ["quantile"]
    # Outliers and sentinels are clipped on either side, unless ranks are taken.
    clip: dict[str, Any] = {}
    if steps != ["quantile"]:
        low, median, high = np.quantile(scaled, [0.005, 0.5, 0.995])
        if scaled[0] < median - _FAR_OUT * max(median - low, 1e-9):
            clip["min"] = _yaml_number(body[np.searchsorted(scaled, low)])
        elif len(sentinels) and sentinels[0] < body[0]:
            clip["min"] = _yaml_number(body[0])
        if scaled[-1] > median + _FAR_OUT * max(high - median, 1e-9):
            clip["max"] = _yaml_number(body[np.searchsorted(scaled, high)])
        elif len(sentinels) and sentinels[-1] > body[-1]:
            clip["max"] = _yaml_number(body[-1])
    if clip:
        steps.insert(0, {"op": "clip", **clip})
        reason += "; outliers are clipped"
    share = float(np.isin(numbers, sentinels).mean())
    if len(sentinels):
        reason += f"; {', '.join(map(_shown, sentinels))} ({share:.1%} of the values) looks like a code, not an amount"
    # Ranges stand beside the number where they say what it cannot.
    is_fine = "fine_ranges" in readings and readings["fine_ranges"].is_better_than(readings["ranges"])
    quantiles = _FINE_RANGES if is_fine else _RANGES
    further, limits = "", dict[str, Any](quantiles=quantiles)
    if share > _SENTINEL_SHARE:
        begins = np.concatenate([np.quantile(body, np.arange(quantiles) / quantiles), sentinels])
        further, limits = "the code has a range of its own", {"boundaries": sorted(set(map(_yaml_number, begins)))}
    if column.missing_share > 0.01:
        further = f"{column.missing_share:.0%} of the rows have no value, which is a range of its own"
    elif not further and readings:
        curve = readings["fine_ranges" if is_fine else "ranges"]
        further = "ranges predict better than a straight line" if curve.is_better_than(readings["number"]) else ""
    rules: tuple[dict[str, Any], ...] = ({"kind": "numeric", "transforms": steps},)
    if further:
        rules += (_ranges(column, **limits),)
    return Decision(column, "feature", reason, rules, further, dict(readings))


def _ranges(column: ColumnProfile, **limits: Any) -> dict[str, Any]:
    """Return a rule for ranges of a number, beside that for the number itself; `limits`: `quantiles` or
    `boundaries`.
    """
    return {"kind": "buckets", "name": f"{column.name.replace('.', '_')}_range", **limits}


def _sentinels(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the numbers of several rows that stand for something else: the one negative number if it is much more
    frequent than the next, and those farther out than all others are wide, such as 9999. `numbers` (n,) and what is
    returned ascend.
    """
    values, counts = np.unique(numbers, return_counts=True)
    found = []
    if len(values) > 3 and values[0] < 0 <= values[1] and counts[0] > _ODD_FREQUENCY * counts[1]:
        found.append(values[0])
        values, counts = values[1:], counts[1:]
    for _ in range(_MOST_SENTINELS):
        if len(values) <= 3:
            break
        for end, rest in ((-1, values[:-1]), (0, values[1:])):
            is_far = abs(values[end] - rest[end]) > max(rest[-1] - rest[0], 1)
            if is_far and counts[end] > 1 and values[end] != 0:
                found.append(values[end])
                values, counts = rest, counts[:-1] if end else counts[1:]
                break
        else:
            break
    return np.sort(np.array(found))


def _yaml_number(number: float) -> int | float:
    return int(number) if number == int(number) and abs(number) < 1e15 else float(f"{number:.9g}")


def _leak(decision: Decision, label: Label, row_time: NDArray[np.float64] | None) -> str | None:
    """Say why a column seems to know the label; None if it does not."""
    column = decision.column
    known = np.isfinite(label.values)
    present, positive = (column.codes >= 0)[known], label.values[known] == 1
    best = max((reading.auc for reading in decision.auc.values()), default=0.5)
    if (present == positive).all():
        return "has a value exactly where the label is 1"
    if (present != positive).all():
        return "is missing exactly where the label is 1"
    if best > LEAK_AUC:
        return f"alone ranks the rows with an AUC of {best:.3f}"
    if squeezed(column.name) in LABEL_NAMES and column.distinct <= 2:
        return "has the name of a label"
    if column.form == "time" and row_time is not None:
        later = column.row_seconds - row_time
        share = float((later[np.isfinite(later)] > 0).mean()) if np.isfinite(later).any() else 0.0
        if share > 0.5:
            return f"is later than the row's time in {share:.0%} of the rows"
    return None


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
            rules = (*rules, _ranges(column, quantiles=_RANGES))
        elif decision.kind == "timestamp":
            rules = ({**rules[0], "derive": [*rules[0]["derive"], "weekday"]},)
        found.append(replace(decision, rules=rules, further=why))
    return found


def _named(decisions: Sequence[Decision]) -> list[Decision]:
    """Return the decisions with names for features that no other feature or column has, and that their tables
    can have.
    """
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
                name = f"{name.replace('.', '_')}_"
            used |= made
            rules.append(rule if name == rule.get("name", column) else {**rule, "name": name})
        reason = decision.reason
        if rules and rules[0].get("name", column) != column:
            reason += f"; named '{rules[0]['name']}', as its own name is taken, or none for a table"
        found.append(replace(decision, rules=tuple(rules), reason=reason))
    return found


def table_warnings(decisions: Sequence[Decision], roles: Roles) -> list[str]:
    """Return what a person should look at before training."""
    warnings = [d.warning for d in decisions if d.warning]
    split = " and the split is at random, so the model may learn from the future" if roles.time is None else ""
    for decision in decisions:
        column = decision.column
        note = column.notes[0] if column.notes else ""
        has_digits = bool(column.texts) and any(map(str.isdigit, "".join(column.examples(1))))
        if note.startswith(DRESSED):
            what = "read as categories" if decision.rules else "ignored"
            warnings.append(f"{column.name}: {note}, which are {what}; write plain numbers, such as 1234.5")
        elif note.startswith(("day and month", "JSON")) and decision.role != "ignored":
            warnings.append(f"{column.name}: {note}")
        elif column.form == "text" and column.has_time_name and has_digits and column.distinct > 1:
            examples = f"such as '{column.examples(1)[0]}'"
            warnings.append(f"{column.name}: seems to be times, {examples}, but most are in no known format{split}")
        elif column.form == "time" and roles.time is None and column.missing_share:
            warnings.append(f"{column.name}: {column.missing_share:.1%} of the rows have no time{split}")
    return warnings
