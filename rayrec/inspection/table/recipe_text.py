"""Writes the recipe for a table of labelled rows, or of who chose what, with the evidence for each line beside it."""

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Template
from typing import Any

import numpy as np

from rayrec.common.errors import ConfigError, UserError
from rayrec.common.plugins import MODELS
from rayrec.common.text import format_bytes, printable
from rayrec.config.table import LabelCondition
from rayrec.config.validation import dump_yaml
from rayrec.inspection.table.columns import ColumnProfile, estimate_distinct, name_words
from rayrec.inspection.table.decisions import Decision, FoundCross, Regressed
from rayrec.inspection.table.file_form import FileForm
from rayrec.inspection.table.histories import FoundPast
from rayrec.inspection.table.roles import Label, Roles
from rayrec.raw.input_files import InputFile
from rayrec.raw.sample import Sample

STARTING_POINTS = "starting_points"
"""The folder of a model's package with its sections `model` and `train` for tables of up to so many rows."""
_COMMENT_COLUMN = 50
_WIDTH = 150
_SAFE = re.compile(r"[A-Za-z_][A-Za-z0-9_./%-]*")
_YAML_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
_SMALL, _MEDIUM = 30_000, 1_000_000
_MOST_IN_MEMORY = 2**30
"""Bytes of encoded rows that each worker holds; more are streamed."""
_PRIOR_VARIANCE = 3.0
_RATED_VALUES = 50
"""Number of values from which on a smoothed rate predicts better than a weight for each, as many are rare."""


def write_recipe(
    command: str,
    sample: Sample,
    form: FileForm,
    label: Label,
    roles: Roles,
    decisions: Sequence[Decision],
    model: str,
    regressed: Regressed,
    past: FoundPast,
) -> str:
    """Return the YAML of a recipe that trains unedited.

    Raises ConfigError if the model has no starting point for tables.
    """
    # How much was read, as the first line says.
    rows, total = sample.rows.num_rows, sample.total_rows
    of = f"{total:,} rows" if sample.is_whole else f"about {total:,} rows"
    read = f"all {rows:,} rows" if rows == total else f"{rows:,} of {of}"
    # The model's starting point for a table of this size. An item of a list is an id, as a whole category is.
    per_rule = [1 if d.column.lengths is None else float(d.column.lengths.mean()) for d in decisions]
    values = sum(each * len(decision.rules) for each, decision in zip(per_rule, decisions, strict=True))
    taken = sum(len(history.take) for history in past.histories)
    features = sum(len(decision.rules) for decision in decisions) + len(regressed.crosses) + taken
    point = starting_point(model, total, features, values + taken)
    lines = [
        f"# Written by `{command}`, which read {read}.",
        "# Comments give the evidence. AUC: how well a column alone ranks held-out rows by their label; 0.5 is chance.",
        "# Change what you know better; `rayrec recipes --schema` lists all keys.",
        "",
        "source:",
        "  kind: table",
        *_source_lines(form, label, roles, decisions, regressed.crosses, past),
        "",
        "preprocess:",
        *_preprocess_lines(model, total, roles, decisions),
        "",
        point.rstrip(),
        "",
        "evaluate:",
        *_evaluate_lines(total, roles, decisions, regressed.auc),
    ]
    return "\n".join(lines) + "\n"


def _line(text: str, reason: str = "") -> str:
    """Return a line of YAML with a comment, which begins below if both are long."""
    reason = printable(" ".join(reason.split()))
    if not reason:
        return text
    line = f"{text:<{_COMMENT_COLUMN}}  # {reason}"
    if len(line) <= _WIDTH:
        return line
    indent = " " * (len(text) - len(text.lstrip()))
    return "\n".join(
        [*textwrap.wrap(reason, _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# "), text]
    )


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _SAFE.fullmatch(value) and value.lower() not in _YAML_WORDS:
        return value
    return printable(json.dumps(value, ensure_ascii=False))


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return _scalar(value)


def _source_lines(
    form: FileForm,
    label: Label,
    roles: Roles,
    decisions: Sequence[Decision],
    crosses: Sequence[FoundCross],
    past: FoundPast,
) -> list[str]:
    lines = []
    # How the files hold rows; long lists take several lines.
    for key, value in form.settings.model_dump(exclude_defaults=True).items():
        reason = form.reasons.get(key, "")
        if isinstance(value, tuple):
            # Only between items, as a quoted one must stay as it is.
            items = textwrap.wrap(
                ", ".join(_scalar(item).replace(" ", "\0") for item in value),
                _WIDTH - 6,
                break_long_words=False,
                break_on_hyphens=False,
            )
            lines += [
                _line(f"  {key}:", reason),
                *(f"    {'[' if i == 0 else ' '}{t}".replace("\0", " ") for i, t in enumerate(items)),
            ]
            lines[-1] += "]"
        else:
            lines.append(_line(f"  {key}: {_scalar(value)}", reason))
    # The label, and the columns that say something about rows.
    condition = label.condition
    said: Any = label.column if condition is None else condition.model_dump(exclude_none=True)
    lines.append(_line(f"  label: {_flow(said)}", f"{label.reason}; {label.rate:.1%} of the rows have label 1"))
    for key, column in (("weight", roles.weight), ("group", roles.group), ("candidate", roles.candidate)):
        if column is not None:
            default = "the candidates of a list, which `:rank` takes"
            lines.append(_line(f"  {key}: {_scalar(column)}", roles.reasons.get(column, default)))
    if roles.time is not None:
        time = {"column": roles.time, **roles.time_settings} if roles.time_settings else roles.time
        lines.append(_line(f"  time: {_flow(time)}", roles.reasons[roles.time]))
    # What becomes no feature of its own name, and the features.
    ignored = {d.column.name: d.reason for d in decisions if d.role == "ignored"}
    ignored |= {d.column.name: "the feature below has another name" for d in decisions if d.is_renamed}
    if ignored:
        lines += ["  ignore:", *(_line(f"    - {_scalar(name)}", why) for name, why in ignored.items())]
    lines.append("  features:")
    for decision in decisions:
        for number, rule in enumerate(decision.rules):
            why = f"also as ranges: {decision.further}" if number else decision.reason
            lines.append(_line(f"    - {_flow({'columns': decision.column.name, **rule})}", why))
    # Rates of candidates: where a list has one positive row, a rate predicts better than a weight alone.
    rates = []
    for decision in decisions if roles.group is not None else ():
        reading, name = decision.auc.get("category"), decision.column.name
        is_rated = decision.kind == "categorical" and decision.column.distinct >= _RATED_VALUES
        is_free = all(other.column.name != f"rate_{name}" for other in decisions)
        is_told = any(history.by == (name,) for history in past.histories)
        if is_rated and is_free and not is_told and reading is not None and reading.is_clear:
            which = "other" if roles.time is None else "earlier"
            why = f"mean label of the same value in {which} lists; AUC {reading.auc:.3f}"
            rates.append(_line(f"    - {_flow({'keys': name})}", why))
    for cross in crosses:
        gain = f"lifts the AUC of a logistic regression from {cross.without:.3f} to {cross.auc:.3f}"
        rates.append(
            _line(
                f"    - {_flow({'keys': cross.keys, 'smoothing': cross.smoothing})}",
                f"mean label of other rows with both values; {gain}",
            )
        )
    return [*lines, *(["  rates:", *rates] if rates else []), *_history_lines(past)]


def _history_lines(past: FoundPast) -> list[str]:
    if not past.histories:
        return []
    lines = [_line("  histories:", f"what happened before a row; {past.delay_reason}")]
    for history in past.histories:
        said: dict[str, Any] = {"by": history.by[0] if len(history.by) == 1 else history.by, "take": history.take}
        said |= {} if past.delay is None else {"delay": past.delay}
        gain = (
            f"lifts the AUC of a logistic regression on held-out rows from {history.without:.3f} to {history.auc:.3f}"
        )
        lines.append(_line(f"    {_scalar(history.name)}: {_flow(said)}", gain))
    return lines


def planned_split(model: str, total: int, roles: Roles, decisions: Sequence[Decision]) -> tuple[dict[str, Any], str]:
    """Return `preprocess.split` for a table of so many rows, and why it is so."""
    share = 0.15 if total < _SMALL / 3 else 0.1
    # A ridge regression is trained to its end: there is no epoch to choose.
    split: dict[str, Any] = {"test": share} if _is_ridge(model, total) else {"validation": share, "test": share}
    times = next((d.column for d in decisions if d.column.name == roles.time), None)
    if times is not None and times.orders_rows:
        return {"kind": "time", **split}, "the latest rows are held out, as the model will score later rows"
    if roles.group is not None:
        return {"kind": "hash", "column": roles.group, **split}, "by group, so that a list stays in one split"
    if roles.unit is not None:
        return {"kind": "hash", "column": roles.unit, **split}, "the rows of one value are alike"
    return {"kind": "hash", **split}, "at random: no column has enough different times"


def _is_ridge(model: str, total: int) -> bool:
    """Tell whether the model of a table of so many rows starts as a ridge regression."""
    return "weight_decay" in starting_point(model, total, 1, 1)


def _preprocess_lines(model: str, total: int, roles: Roles, decisions: Sequence[Decision]) -> list[str]:
    split, why = planned_split(model, total, roles, decisions)
    is_ridge = _is_ridge(model, total)
    # Rare values share a row of the table.
    limit = 1 if is_ridge else 2 if total < _SMALL else 5 if total < _MEDIUM else 10
    reason = f"values that occur less often in {total:,} rows are too rare to learn"
    most = max((int(d.column.counts.max()) for d in decisions if d.kind in ("categorical", "list")), default=limit * 3)
    if most < limit * 3:
        limit, reason = 1, "no value occurs often"
    lines = [
        _line(f"  split: {_flow(split)}", why),
        _line(f"  frequency_limit: {limit}", "weight_decay shrinks the weights of rare values" if is_ridge else reason),
    ]
    if total < _MEDIUM:
        lines.append(
            _line("  layout: {rows_per_row_group: 1024}", "several row groups to shuffle, though there are few rows")
        )
    return lines


def starting_point(model: str, total: int, features: int, values: float) -> str:
    """Return the sections of a model for about so many rows, features, and values of a row, as its package has them.

    `$ridge_penalty` in them is the weight decay of a ridge regression with the prior belief that the log odds of rows
    have the variance 3, shared by the features alike: a weight has the variance C = 3 / features, whose penalty on the
    mean loss is 1 / (C * rows). `$ingest` holds encoded rows in memory, four bytes a value, unless they take too much.
    """
    size = 4 * total * values
    ingest = (
        f"{{in_memory: {str(size <= _MOST_IN_MEMORY).lower()}}} # {format_bytes(size)} of encoded rows; more than "
        f"{format_bytes(_MOST_IN_MEMORY)} would be streamed"
    )
    points = MODELS.texts(model, ".yaml", STARTING_POINTS)
    digits = {name: re.sub(r"\D", "", name) for name in points}
    most_rows = {name: int(number) if number else np.inf for name, number in digits.items()}
    # The rows to train on, over half of a table, fill a batch however few they are.
    most = 1 << max(total.bit_length() - 2, 0)
    for name in sorted(points, key=most_rows.__getitem__):
        if total <= most_rows[name]:
            penalty = f"{features / (_PRIOR_VARIANCE * total):.2g}"
            point = points[name].replace("$ridge_penalty", penalty).replace("$ingest", ingest)
            return re.sub(r"(?<=global_batch_size: )[0-9]+", lambda size: str(min(int(size[0]), most)), point)
    able = [kind for kind in MODELS.packages if MODELS.texts(kind, ".yaml", STARTING_POINTS)]
    raise ConfigError(f"--model {model}: has no starting point for tables; use {', '.join(able)}")


def _evaluate_lines(total: int, roles: Roles, decisions: Sequence[Decision], baseline: float | None) -> list[str]:
    batch = 4_096 if total < _MEDIUM else 65_536
    lines = [_line(f"  global_batch_size: {batch}", "rows of a step; metrics do not depend on it")]
    if baseline is not None:
        # No `baselines`: it is of other rows than the model's metrics, so beside them it would mislead.
        lines.append(f"  # AUC of a logistic regression on the sample's rows, out of fold: {baseline:.4f}")
    group = next((d.column for d in decisions if d.column.name == roles.group), None)
    if group is not None:
        longest = int(np.quantile(group.counts, 0.95))
        ranks = [k for k in (1, 3, 5, 10, 20, 50) if k < longest][-2:] or [1]
        lines.append(_line(
            f"  ranking: {_flow({'k': ranks, 'metrics': ['map', 'ndcg']})}",
            f"metrics of ranked lists; 95% of the lists have up to {longest} rows",
        ))  # fmt: skip
    return lines


# Who chose what: users and items, where every row is a choice or some are.

_USER_WORDS = {
    "user", "person", "people", "customer", "client", "member", "reviewer", "visitor", "buyer", "player", "reader",
    "listener", "viewer", "account", "uid",
}  # fmt: skip
_ITEM_WORDS = {
    "item", "movie", "film", "product", "article", "book", "isbn", "asin", "sku", "song", "track", "artist", "game",
    "app", "video", "business", "news", "document", "content", "recipe", "place", "venue", "course", "iid",
}  # fmt: skip
_RATING_WORDS = {"rating", "score", "stars", "overall", "grade"}
_TIME_WORDS = {"time", "timestamp", "ts", "date", "datetime", "epoch"}
_LEAST_HELD_OUT = 50
"""People whose last choices tell one epoch from another."""
_LEAST_LATEST = 10
"""Choices that each of the latest tenths must have."""
_NOTABLE_REPEATS = 0.1
"""Share of rows from which on it is worth a word that they repeat others."""


@dataclass(frozen=True)
class Interactions:
    """The columns of a table of interactions."""

    user: ColumnProfile
    item: ColumnProfile
    rating: ColumnProfile | None
    time: ColumnProfile | None
    others: tuple[ColumnProfile, ...]
    """What a model of users and items does not read."""


def find_interactions(columns: Mapping[str, ColumnProfile], form: FileForm) -> Interactions | None:
    """Return the columns of user, item, rating and time, by their names; None unless they name one user and one
    item.
    """
    left = list(columns.values())
    if not form.has_names and len(left) in (2, 4):
        # Files without a header have user, item, or user, item, rating, time, as published sets of ratings do.
        rating, time = left[2:] or (None, None)
        return Interactions(left[0], left[1], rating, time, ())

    def take(words: set[str]) -> ColumnProfile | None:
        found = [column for column in left if words & _words(column)]
        if len(found) > 1:  # user_id beside user_name and user_age
            found = [column for column in found if "id" in _words(column)]
        if len(found) != 1:
            return None
        left.remove(found[0])
        return found[0]

    user, item, rating = take(_USER_WORDS), take(_ITEM_WORDS), take(_RATING_WORDS)
    if user is None or item is None:
        return None
    times = [c for c in left if c.form == "time" or (c.is_integral and _TIME_WORDS & _words(c))]
    time = max(times, key=lambda column: column.distinct, default=None)
    return Interactions(user, item, rating, time, tuple(column for column in left if column is not time))


def _words(column: ColumnProfile) -> set[str]:
    """Return the words of a column's name; `userid` and `users` have `user` in them."""
    words = {*name_words(column.name)}
    ids = {word.removesuffix("id") for word in words if word.endswith("id")}
    return words | ids | {word.removesuffix("s") for word in words} | ({"id"} if ids else set())


def inspect_interactions(
    command: str,
    file: InputFile,
    sample: Sample,
    form: FileForm,
    found: Interactions,
    label: Label | None,
    model: str,
) -> tuple[list[Decision], list[str], str]:
    """Return what each column becomes, what a person should look at, and the YAML of a recipe that trains unedited.

    `file`: the first one; `label`: which rows are choices, None for all. Raises UserError where a model could learn
    nothing.
    """
    user, item = found.user, found.item
    time = found.time if found.time is not None and found.time.distinct > 1 else None
    # How many people, items and choices there are, and how many people have choices to hold out. A person chooses an
    # item once: the first row of a pair counts.
    users, items = (column.distinct_estimate(sample.total_rows) for column in (user, item))
    is_bad = (user.codes < 0) | (item.codes < 0)
    if time is not None:
        is_bad |= time.codes < 0 if time.seconds is None else np.isnan(time.row_seconds)
    is_choice = np.ones(user.rows, bool) if label is None else label.values == 1
    is_pair = is_choice & ~is_bad
    pair_of_row = user.codes[is_pair] * len(item.texts) + item.codes[is_pair]
    pairs, rows_of_pair = np.unique(pair_of_row, return_counts=True)
    total = estimate_distinct(rows_of_pair, user.rows, sample.total_rows)
    repeated = 1 - total / max(sample.total_rows * is_pair.mean(), 1)
    # Rows of the sample are no more than all rows: a person has these or more.
    of_person = np.bincount(pairs // len(item.texts))
    held_out = int((of_person >= 3).sum()), int((of_person >= 2).sum())
    if items < 2 or not held_out[1]:
        what = "there is one item" if items < 2 else f"no user has two items (column '{user.name}')"
        raise UserError(f"{file.name}: {what}, so recommendations cannot be learnt; give more rows")
    has_validation = held_out[0] >= _LEAST_HELD_OUT
    # What a person should look at.
    a_person = total / users
    bad = float(is_bad.mean())
    warnings = []
    if bad:
        warnings.append(f"{bad:.2%} of the rows have no user, item or time; preprocessing rejects them")
    if repeated >= _NOTABLE_REPEATS:
        warnings.append(f"{repeated:.0%} of the rows repeat an item of their person; only the first row of each counts")
    if time is None:
        warnings.append("no column has times: a person's last row in the file is taken for the latest choice")
    # What each column becomes, and what the source is told of it.
    decisions = [
        Decision(user, "user", f"about {a_person:.1f} choices each"),
        Decision(item, "item", f"about {total / items:.1f} choices each"),
        *([Decision(time, "time", "the order of a person's choices")] if time is not None else []),
    ]
    if found.time is not None and time is None:
        decisions.append(Decision(found.time, "ignored", "one time in all rows"))
    why = "every row is a choice, whatever the rating" if found.rating is not None else ""
    settings: dict[str, Any] = {"kind": "interactions", **form.settings.model_dump(mode="json", exclude_defaults=True)}
    settings |= {"user": user.name, "item": item.name}
    if time is not None:
        is_evident = time.time_format in (None, "iso", "s")
        settings["timestamp"] = time.name if is_evident else {"column": time.name, "format": time.time_format}
    if label is not None:
        condition = label.condition or LabelCondition(column=label.column, equals=("1", "true"))
        settings["choices"] = condition.model_dump(exclude_none=True)
        why = f"other rows ({1 - is_choice.mean():.0%}) are neither learnt nor recommended"
    for column in (*([found.rating] if found.rating is not None else []), *found.others):
        if label is not None and column.name == label.column:
            if "plain" not in column.number_formats:
                settings["number_format"] = column.number_formats[0]
            decisions.append(Decision(column, "label", f"says which rows are choices; {why}"))
        else:
            is_rating = column is found.rating and label is None
            reason = why if is_rating else "a model of users and items does not read it"
            decisions.append(Decision(column, "ignored", reason))

    # The recipe.
    decisions.sort(key=lambda decision: sample.rows.column_names.index(decision.column.name))
    facts = f"{total:,} interactions of {users:,} people with {items:,} items"
    is_next = MODELS.configs[model].scores_next_items
    is_by_time = False
    if is_next and time is not None and time.orders_rows:
        # Rows of the latest tenths that repeat earlier ones are no choices, and too few choices measure nothing.
        when = (time.row_numbers if time.seconds is None else time.row_seconds)[is_pair]
        order = np.argsort(when, kind="stable")
        _, first = np.unique(pair_of_row[order], return_index=True)
        starts = np.nanquantile(when, [0.8, 0.9])
        latest = np.bincount(np.searchsorted(starts, when[order][first], side="right"), minlength=3)[1:]
        is_by_time = bool(latest.min() >= _LEAST_LATEST)
    lines = [
        f"# Written by `{command}`: {'' if sample.is_whole else 'about '}{facts}.",
        "# Sizes, epochs and penalty follow from these numbers. Change what you know better.",
        "",
        "source:",
        textwrap.indent(dump_yaml(settings, default_flow_style=None, allow_unicode=True), "  ").rstrip(),
        *([f"  # {why}"] if why else []),
        "",
        "preprocess:",
        *(
            [_line(f"  max_rejected_fraction: {min(1.0, 2 * bad):.2g}", "rows without a user, item or time")]
            if bad
            else []
        ),
        *(
            [_line("  split: {kind: time, validation: 0.1, test: 0.1}", "the latest choices, also of new people")]
            if is_by_time
            else _last_choices(
                a_person, items, has_validation, "too few different times, or new choices at the end" if is_next else ""
            )
        ),
        "",
        Template(starting_point(model, total, 0, values=2)).substitute(
            # A row that occurs often needs less to hold it back: 0.02 for 10 choices a person, 0.005 for 165.
            embedding_l2=f"{0.06 / a_person**0.5:.2g}",
            small_batch=2 ** max(6, int(np.log2(total * 9 / 128))),
            recency="null" if time is None else "{half_life: 8}",
        ),
        "evaluate:",
        _line(
            f"  ranking: {{{'candidates: next, ' * is_next}k: [10], metrics: [hr, ndcg]}}",
            "how often and how high the choice is in the first ten" + " of all items" * is_next,
        ),
    ]
    return decisions, warnings, "\n".join(lines) + "\n"


def _last_choices(a_person: float, items: int, has_validation: bool, why: str) -> list[str]:
    """Return the lines of a split that holds out each person's last choice."""
    candidates = min(99, max(1, items // 2))
    test = f"each person's last choice is ranked among {candidates} other items, unless the person has too few rows"
    return [
        "  split:",
        _line("    kind: leave_one_out", why),
        _line("    min_interactions: 0", f"nobody is dropped; a person has {a_person:.1f} choices on average"),
        _line(f"    validation: {str(has_validation).lower()}", "the choice before the last, to choose the epoch"),
        _line(f"    negatives: {candidates}", test),
    ]
