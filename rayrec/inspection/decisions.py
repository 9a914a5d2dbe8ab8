"""Decides what each column of a table becomes, and says why."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rayrec.inspection.columns import Column, name_words
from rayrec.inspection.evidence import Evidence, Reading
from rayrec.inspection.label import LABEL_NAMES, Label, squeezed
from rayrec.preprocessing.rows.columns import can_name_a_table

Role = Literal["label", "group", "weight", "time", "feature", "ignored", "user", "item"]

LEAK_AUC = 0.95
"""A column that ranks the rows so well alone is more likely to know the label than to foretell it."""
_GROUP_NAMES = (
    "displayid", "requestid", "sessionid", "impressionid", "queryid", "searchid", "listid", "groupid", "qid", "display",
    "request", "session", "impression", "query", "group", "reqid", "sid", "pageviewid", "auctionid", "slateid",
)  # fmt: skip
_WEIGHT_NAMES = ("weight", "sampleweight", "rowweight", "exampleweight", "importance", "importanceweight")
_CANDIDATE_WORDS = {"ad", "item", "product", "article", "movie", "offer", "candidate", "creative", "banner", "document"}
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
_FREE_TEXT_CHARACTERS = 40
_SMALL_KIND = 1_000
"""Integers with more values than this are not taken for categories without a name or evidence for it."""
_FEW_KINDS = 10
_ROW_ID_REPEATS = 10.0
"""Repeated values that a column with two rows a value would show in the sample, so that none is evidence."""
_DAY = 86_400.0


@dataclass(frozen=True)
class Decision:
    """What a column becomes."""

    column: Column
    role: Role
    reason: str
    rules: tuple[dict[str, Any], ...] = ()
    """Rules of `source.features`, without `columns`; those after the first have a `name`."""
    auc: dict[str, Reading] = field(default_factory=dict)
    """How well the column alone ranks the rows, by reading: `number`, `ranges`, `category`."""
    warning: str | None = None

    @property
    def kind(self) -> str:
        """The kind of feature, or the role of a column that becomes none."""
        return self.rules[0]["kind"] if self.rules else self.role

    @property
    def is_renamed(self) -> bool:
        """Whether the feature cannot have the column's name, so that all its rules have a `name`."""
        return bool(self.rules) and "name" in self.rules[0]


@dataclass(frozen=True)
class Roles:
    """Columns that say something about rows beside what a model reads."""

    group: str | None
    weight: str | None
    time: str | None
    candidate: str | None
    reasons: Mapping[str, str]
    """Why, by column."""
    time_settings: Mapping[str, str]
    """How the column of times is written, if not as ISO 8601 has it."""


def find_roles(columns: Mapping[str, Column], label: Label) -> Roles:
    """The columns of groups, weights, times and candidates, by clear names and by their values."""
    others = [c for c in columns.values() if c.name != label.column]
    reasons = {}
    group = next((c for c in sorted(others, key=_group_place) if _is_group(c, label)), None)
    if group is not None:
        rows = group.present / group.distinct
        reasons[group.name] = f"lists of {rows:.1f} rows on average, by its name; their rows stay in one split"
    weight = next((c for c in others if squeezed(c.name) in _WEIGHT_NAMES and _is_weight(c)), None)
    if weight is not None:
        reasons[weight.name] = "the weight of a row in loss and metrics, by its name"
    times = [c for c in others if c.form == "time" and c.missing_share < 0.01 and c.distinct > 1]
    time = max(times, key=lambda c: ("timestamp" in name_words(c.name), c.distinct), default=None)
    if time is not None:
        assert time.seconds is not None
        first, last = (np.datetime64(int(t), "s") for t in (np.nanmin(time.seconds), np.nanmax(time.seconds)))
        reasons[time.name] = f"the time of a row, {first} to {last}"
    candidate = None
    if group is not None:
        candidate = next((c for c in others if c.name != group.name and _is_candidate(c, group)), None)
    found = {"group": group, "weight": weight, "time": time, "candidate": candidate}
    names = {role: None if column is None else column.name for role, column in found.items()}
    return Roles(**names, reasons=reasons, time_settings=time_settings(time))


def time_settings(column: Column | None) -> dict[str, str]:
    """What a recipe must say about how times are written."""
    return {} if column is None or column.time_format in (None, "iso") else {"format": str(column.time_format)}


def _group_place(column: Column) -> int:
    name = squeezed(column.name)
    return _GROUP_NAMES.index(name) if name in _GROUP_NAMES else len(_GROUP_NAMES)


def _is_group(column: Column, label: Label) -> bool:
    """Whether rows with equal values are a list of which few are positive."""
    if squeezed(column.name) not in _GROUP_NAMES or column.form not in ("integer", "text") or column.missing_share > 0:
        return False
    rows = column.counts
    positives = np.bincount(column.codes, weights=np.nan_to_num(label.values), minlength=len(rows))
    return bool(rows.mean() >= 1.5 and (positives[rows > 1] <= np.maximum(rows[rows > 1] / 2, 1)).mean() > 0.9)


def _is_weight(column: Column) -> bool:
    return (
        column.numbers is not None and column.missing_share == 0 and column.range is not None and column.range[0] >= 0
    )


def _is_candidate(column: Column, group: Column) -> bool:
    """Whether it names what a list offers: different in each row of a list, and the same in many lists."""
    words = name_words(column.name)
    if column.form != "integer" or words[-1:] != ["id"] or not _CANDIDATE_WORDS & set(words):
        return False
    pairs = len(np.unique(np.stack([group.codes, column.codes]), axis=1).T)
    return pairs > 0.99 * len(group.codes) and column.distinct < 0.9 * pairs


def decide(
    columns: Mapping[str, Column], label: Label, roles: Roles, *, total_rows: int, seed: int = 0
) -> list[Decision]:
    """What each column becomes, in their order."""
    groups = columns[roles.group].codes if roles.group is not None else None
    evidence = Evidence(label.values, groups, seed)
    row_time = columns[roles.time].row_seconds if roles.time is not None else None
    decisions = []
    for column in columns.values():
        if column.name == label.column:
            decisions.append(Decision(column, "label", label.reason))
        elif column.name == roles.group:
            decisions.append(Decision(column, "group", roles.reasons[column.name]))
        elif column.name == roles.weight:
            decisions.append(Decision(column, "weight", roles.reasons[column.name]))
        else:
            decision = _decide(column, label, evidence, roles, total_rows, row_time)
            if decision.role != "time":
                decision = _without_leak(decision, label, row_time)
            decisions.append(decision)
    return [_nameable(decision, columns) for decision in decisions]


def _nameable(decision: Decision, columns: Mapping[str, Column]) -> Decision:
    """The decision with another name for a feature whose table cannot have the column's."""
    name = decision.column.name
    if decision.kind not in ("categorical", "list", "buckets") or can_name_a_table(name):
        return decision
    other = f"{name.replace('.', '_')}_"
    while other in columns:
        other += "_"
    rules = tuple({**rule, "name": rule.get("name", other).replace(".", "_")} for rule in decision.rules)
    reason = f"{decision.reason}; named '{other}', as no table can be named '{name}'"
    return replace(decision, rules=rules, reason=reason)


def _decide(
    column: Column,
    label: Label,
    evidence: Evidence,
    roles: Roles,
    total_rows: int,
    row_time: NDArray[np.float64] | None,
) -> Decision:
    if (reason := _says_nothing(column, total_rows)) and column.name != roles.time:
        return Decision(column, "ignored", reason)
    if column.form == "time":
        return _times(column, roles, evidence, row_time)
    if column.form == "list":
        return _lists(column)
    if column.form == "vector":
        assert column.lengths is not None
        rule = {"kind": "vector", "size": int(column.lengths.max()), **_separator(column)}
        return Decision(column, "feature", f"every row has {rule['size']} numbers", (rule,))
    if column.form == "text" or column.name == roles.candidate:
        readings = {"category": evidence.as_category(column.codes)} if evidence.is_possible else {}
        return Decision(
            column, "feature", _with_auc(_text_reason(column), readings), ({"kind": "categorical"},), readings
        )
    return _numbers(column, evidence)


def _says_nothing(column: Column, total_rows: int) -> str | None:
    """Why a column cannot help a model; None if it can."""
    if column.form == "nested":
        return f"holds {column.type}, which no feature can be made of"
    if column.present == 0:
        return "no row has a value"
    if column.form in ("list", "vector"):
        return None
    if column.distinct == 1 and column.missing_share == 0:
        return f"constant: every row has '{column.texts[0]}'"
    if column.form == "number" and not column.is_integral:
        return None
    if column.distinct == column.present and column.form in ("integer", "number", "text"):
        expected = column.present**2 / (2 * max(total_rows, 1))
        is_named = bool({"id", "uuid", "guid", "key", "index", "row"} & set(name_words(column.name)))
        if (column.form == "text" or is_named or _is_running(column)) and (is_named or expected >= _ROW_ID_REPEATS):
            return f"a row id: all {column.present:,} values differ"
    is_long = column.form == "text" and np.mean([len(t) for t in column.texts]) > _FREE_TEXT_CHARACTERS
    if is_long and column.repeated_share < 0.1 and not column.notes:
        return f"free text: {1 - column.repeated_share:.0%} of its values occur once"
    return None


def _is_running(column: Column) -> bool:
    """Whether numbers only rise, or only fall, from row to row."""
    steps = np.diff(column.row_numbers[np.isfinite(column.row_numbers)])
    return bool((steps > 0).all() or (steps < 0).all())


def _with_auc(reason: str, readings: Mapping[str, Reading]) -> str:
    return f"{reason}; AUC {max(r.auc for r in readings.values()):.3f}" if readings else reason


def _separator(column: Column) -> dict[str, Any]:
    return {} if column.separator is None else {"separator": column.separator}


def _lists(column: Column) -> Decision:
    assert column.lengths is not None
    filled = column.lengths[column.lengths > 0]
    longest, mean = int(filled.max()), filled.mean()
    kept = max(1, min(int(np.quantile(filled, 0.99)), 64))
    rule = {"kind": "list", **_separator(column), "max_length": kept, "pooling": "mean"}
    how = f"'{column.separator}' between" if column.separator is not None else "lists of"
    cut = "" if kept >= longest else f"; the longest has {longest}, few more than {kept}"
    return Decision(column, "feature", f"{how} {column.items:,} different items, {mean:.1f} a row{cut}", (rule,))


def _text_reason(column: Column) -> str:
    if column.form != "text":
        return f"{column.distinct:,} {column.form}s that name what a list offers"
    note = f" ({'; '.join(column.notes)})" if column.notes else ""
    once = f", {1 - column.repeated_share:.0%} of them once" if column.repeated_share < 0.9 else ""
    return f"text{note}, {column.distinct:,} values{once}"


def _times(column: Column, roles: Roles, evidence: Evidence, row_time: NDArray[np.float64] | None) -> Decision:
    """Parts of a time that differ in rows of one split as they do between splits."""
    assert column.seconds is not None and column.time_format is not None
    seconds = column.row_seconds
    span = float(np.nanmax(seconds) - np.nanmin(seconds))
    has_hours = bool((np.nan_to_num(column.seconds) % _DAY != 0).any())
    parts = [*(["hour"] if span >= 2 * _DAY and has_hours else []), *(["weekday"] if span >= 14 * _DAY else [])]
    is_row_time = column.name == roles.time
    if not is_row_time and row_time is not None:
        parts.append("age")
    written = {"iso": "as ISO 8601 writes them", "s": "seconds since 1970", "ms": "milliseconds since 1970",
               "us": "microseconds since 1970"}.get(column.time_format, f"as {column.time_format}")  # fmt: skip
    notes = "".join(f"; {note}" for note in column.notes)
    spans = f"over {span / _DAY:.0f} days" if span >= 2 * _DAY else f"over {span / 3600:.1f} hours"
    reason = f"times {written}, {spans}{notes}"
    role: Role = "time" if is_row_time else "feature"
    if not parts:
        return Decision(column, "time" if is_row_time else "ignored", f"{reason}: too short for an hour or a weekday")
    readings = {"number": evidence.as_bins(seconds)} if evidence.is_possible else {}
    return Decision(column, role, reason, ({"kind": "timestamp", "derive": parts, **time_settings(column)},), readings)


def _numbers(column: Column, evidence: Evidence) -> Decision:
    """A column of numbers: a number, a category or both, by what foretells the label and else by name and values."""
    readings = {}
    if evidence.is_possible:
        readings = {"number": evidence.as_number(column.row_numbers), "ranges": evidence.as_bins(column.row_numbers)}
    if not column.is_integral:
        return Decision(
            column,
            "feature",
            _with_auc(f"decimals{_range(column)}", readings),
            _number_rules(column, readings),
            readings,
        )
    if evidence.is_possible:
        readings["category"] = evidence.as_category(column.codes)
    is_category, why = _reads_as_category(column, readings)
    rules = ({"kind": "categorical"},) if is_category else _number_rules(column, readings)
    shown = f"{column.distinct:,} integers{_range(column)}: {why}"
    if readings:
        number, category = max(readings["number"].auc, readings["ranges"].auc), readings["category"].auc
        figures = [f"{category:.3f} as category", f"{number:.3f} as number"]
        shown += f"; AUC {', '.join(figures if is_category else reversed(figures))}"
    return Decision(column, "feature", shown, rules, readings)


def _range(column: Column) -> str:
    return "" if column.range is None else f", {_shown(column.range[0])} to {_shown(column.range[1])}"


def _shown(number: float) -> str:
    return f"{number:,.0f}" if number == int(number) and abs(number) < 1e15 else f"{number:g}"


def _reads_as_category(column: Column, readings: Mapping[str, Reading]) -> tuple[bool, str]:
    if column.distinct <= 2:
        return True, "two values"
    if readings:
        number = max((readings[name] for name in ("number", "ranges")), key=lambda r: r.auc)
        if readings["category"].is_better_than(number):
            return True, "better as category"
        if number.is_better_than(readings["category"]):
            return False, "better as number"
    known = [word for word in name_words(column.name) if word in _CATEGORY_WORDS | _AMOUNT_WORDS]
    if known:
        return known[-1] in _CATEGORY_WORDS, f"'{known[-1]}' in its name"
    if _looks_like_counts(column):
        return False, "small ones are frequent, as in counts"
    if column.distinct <= min(_SMALL_KIND, column.present / 5):
        return True, "few values"
    return False, "many values"


def _looks_like_counts(column: Column) -> bool:
    """Whether numbers begin at about 0 without gaps, and are the rarer the larger they are."""
    numbers = column.row_numbers[np.isfinite(column.row_numbers)]
    values, counts = np.unique(numbers, return_counts=True)
    least, most = values[0], values[-1]
    if not -10 <= least <= 1 or values[min(3, len(values) - 1)] - least > 10:
        return False
    if column.distinct > _FEW_KINDS:
        return bool(np.median(numbers) - least <= 0.25 * (most - least))
    falls = (np.diff(counts[1:]) <= 0).all() and counts[-1] < counts.max() / 2
    return column.distinct > 3 and bool((np.diff(values) == 1).all() and falls)


def _number_rules(column: Column, readings: Mapping[str, Reading]) -> tuple[dict[str, Any], ...]:
    numbers = column.row_numbers[np.isfinite(column.row_numbers)]
    low, median, high = np.quantile(numbers, [0.01, 0.5, 0.99])
    least = float(numbers.min())
    is_skewed = high - median > 10 * max(median - low, 1e-9) or (least >= 0 and high > 20 * max(median, 1e-9))
    steps: list[Any]
    if not is_skewed:
        steps = ["standardize"]
    elif least > -10:
        steps = [{"op": "log", "offset": 1 - min(0, int(np.floor(least)))}, "standardize"]
    else:
        steps = ["quantile"]
    rules: tuple[dict[str, Any], ...] = ({"kind": "numeric", "transforms": steps},)
    curved = bool(readings) and readings["ranges"].is_better_than(readings["number"])
    if curved or column.missing_share > 0.01:
        rules += ({"kind": "buckets", "name": f"{column.name.replace('.', '_')}_range", "quantiles": 16},)
    return rules


def _without_leak(decision: Decision, label: Label, row_time: NDArray[np.float64] | None) -> Decision:
    """The decision, unless the column seems to know the label: then it is ignored, with a warning."""
    if decision.role != "feature":
        return decision
    column = decision.column
    why = None
    known = np.isfinite(label.values)
    present = (column.codes >= 0)[known]
    positive = label.values[known] == 1
    best = max((reading.auc for reading in decision.auc.values()), default=0.5)
    if (present == positive).all():
        why = "has a value exactly where the label is 1"
    elif (present != positive).all():
        why = "is missing exactly where the label is 1"
    elif best > LEAK_AUC:
        why = f"ranks the rows with an AUC of {best:.3f} all alone"
    elif squeezed(column.name) in LABEL_NAMES and column.distinct <= 2:
        why = "has the name of a label"
    elif column.form == "time" and row_time is not None:
        later = column.row_seconds - row_time
        share = float((later[np.isfinite(later)] > 0).mean()) if np.isfinite(later).any() else 0.0
        if share > 0.5:
            why = f"is later than the row's time in {share:.0%} of the rows"
    if why is None:
        return decision
    reason = f"may leak the label: it {why}; delete this line if it is known before the label"
    warning = f"{column.name}: {why}, so it may leak the label; the recipe ignores it"
    return Decision(column, "ignored", reason, (), decision.auc, warning)


def table_warnings(decisions: Sequence[Decision], label: Label) -> list[str]:
    """What a person should look at before training."""
    warnings = [d.warning for d in decisions if d.warning]
    unknown = 1 - float(np.isfinite(label.values).mean())
    if unknown:
        warnings.append(f"{label.column}: {unknown:.2%} of the rows have no label; preprocessing sets them aside")
    for decision in decisions:
        column = decision.column
        if column.misfits and decision.role != "ignored":
            shown = ", ".join(f"'{t}'" for t in column.misfits[:3])
            warnings.append(f"{column.name}: some values are no number ({shown}); preprocessing sets their rows aside")
        if column.notes and column.notes[0].startswith(("day and month", "JSON")) and decision.role != "ignored":
            warnings.append(f"{column.name}: {column.notes[0]}")
    return warnings
