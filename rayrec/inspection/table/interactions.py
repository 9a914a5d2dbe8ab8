"""Inspects a table of who chose what, perhaps rated and when: its columns, and a recipe by its size."""

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from string import Template
from typing import Any

import numpy as np

from rayrec.common.errors import UserError
from rayrec.config.table import LabelCondition
from rayrec.config.validation import dump_yaml
from rayrec.inspection.table.column_profile import ColumnProfile, name_words
from rayrec.inspection.table.decisions import Decision
from rayrec.inspection.table.file_form import FileForm
from rayrec.inspection.table.recipe_text import starting_point
from rayrec.inspection.table.roles import Label
from rayrec.raw.input_files import InputFile
from rayrec.raw.sample import Sample

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
_COMMENT_COLUMN = 48
_LEAST_HELD_OUT = 50
"""People whose last choices tell one epoch from another."""


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
    user, item, time = found.user, found.item, found.time
    # How many people, items and choices there are, and how many people have choices to hold out.
    users, items = (column.distinct_estimate(sample.total_rows) for column in (user, item))
    is_choice = np.ones(user.rows, bool) if label is None else label.values == 1
    total = round(sample.total_rows * is_choice.mean())
    # Rows of the sample are no more than all rows: a person has these or more.
    of_person = np.bincount(user.codes[(user.codes >= 0) & is_choice])
    held_out = int((of_person >= 3).sum()), int((of_person >= 2).sum())
    if items < 2 or not held_out[1]:
        what = "there is one item" if items < 2 else f"no user has two rows (column '{user.name}')"
        raise UserError(f"{file.name}: {what}, so recommendations cannot be learnt; give more rows")
    has_validation = held_out[0] >= _LEAST_HELD_OUT
    # What a person should look at.
    a_person = total / users
    is_bad = (user.codes < 0) | (item.codes < 0)
    if time is not None:
        is_bad |= time.codes < 0 if time.seconds is None else np.isnan(time.row_seconds)
    bad = float(is_bad.mean())
    warnings = []
    if bad:
        warnings.append(f"{bad:.2%} of the rows have no user, item or time; preprocessing rejects them")
    if time is None:
        warnings.append("no column has times: a person's last row in the file is taken for the latest choice")
    # What each column becomes, and what the source is told of it.
    decisions = [
        Decision(user, "user", f"about {a_person:.1f} choices each"),
        Decision(item, "item", f"about {total / items:.1f} choices each"),
        *([Decision(time, "time", "the order of a person's choices")] if time is not None else []),
    ]
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

    def line(text: str, why: str) -> str:
        return f"{text:<{_COMMENT_COLUMN}}  # {why}"

    # The recipe.
    decisions.sort(key=lambda decision: sample.rows.column_names.index(decision.column.name))
    facts = f"{total:,} interactions of {users:,} people with {items:,} items"
    candidates = min(99, max(1, items // 2))
    test = f"each person's last choice is ranked among {candidates} other items, unless the person has too few rows"
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
            [line(f"  max_rejected_fraction: {min(1.0, 2 * bad):.2g}", "rows without a user, item or time")]
            if bad
            else []
        ),
        "  split:",
        "    kind: leave_one_out",
        line("    min_interactions: 0", f"nobody is dropped; a person has {a_person:.1f} rows on average"),
        line(f"    validation: {str(has_validation).lower()}", "the choice before the last, to choose the epoch"),
        line(f"    negatives: {candidates}", test),
        "",
        Template(starting_point(model, total, 0, values=2)).substitute(
            # A row that occurs often needs less to hold it back: 0.02 for 10 choices a person, 0.005 for 165.
            embedding_l2=f"{0.06 / a_person**0.5:.2g}",
            small_batch=2 ** max(6, int(np.log2(total * 9 / 128))),
            recency="null" if time is None else "{half_life: 8}",
        ),
        "evaluate:",
        line("  ranking: {k: [10], metrics: [hr, ndcg]}", "how often, and how high, the choice is among the first ten"),
    ]
    return decisions, warnings, "\n".join(lines) + "\n"
