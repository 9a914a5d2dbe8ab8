"""Which columns of a table are read and what becomes of them; what is wrong with a config is one line."""

import re
from typing import Any

import pytest
from pydantic import TypeAdapter
from torch import nn

from rayrec.common.errors import ConfigError
from rayrec.config.preprocess import SplitConfig
from rayrec.config.table import TableSourceConfig
from rayrec.features.raw_columns import RawColumn
from rayrec.preprocessing.column_plan import plan_columns
from rayrec.preprocessing.planned_columns import MODULE_ATTRIBUTES, ColumnPlan, KeptColumn

COLUMNS = ("click", "user_id", "item_id", "price", "C1", "C2", "C10", "tags", "ts", "weight", "debug_1")
TABLES = {"users": ("user_id", "age", "zip")}
GOOD: dict[str, Any] = {
    "kind": "table",
    "label": "click",
    "weight": "weight",
    "group": "user_id",
    "candidate": "item_id",
    "time": "ts",
    "ignore": ["debug_*"],
    "features": [
        {"columns": "price", "kind": "numeric", "transforms": ["standardize"]},
        {"columns": ["user_id", "C1"], "kind": "categorical"},
        {"columns": "C*", "kind": "categorical", "min_count": 3},
        {"columns": "item_id", "kind": "categorical", "share": "user_id"},
        {"columns": "tags", "kind": "list", "separator": "|"},
        {"columns": "ts", "kind": "timestamp", "derive": ["hour", "age"], "format": "s"},
        {"columns": "price", "kind": "buckets", "quantiles": 4, "name": "price_range"},
        {"of": ["user_id", "ts_hour"], "kind": "cross"},
        {"columns": "users_*", "kind": "categorical"},
    ],
    "tables": {"users": {"path": "users.csv", "key": "user_id"}},
    "rates": [{"keys": ["user_id", "C1"]}],
}


def plan(split: Any = None, **changes: Any) -> ColumnPlan:
    config = TableSourceConfig.model_validate({**GOOD, **changes})
    adapter: TypeAdapter[SplitConfig] = TypeAdapter(SplitConfig)
    return plan_columns(
        config, adapter.validate_python(split or {"kind": "hash"}), COLUMNS, TABLES if config.tables else {}
    )


def rules(*, at: int, change: Any) -> list[Any]:
    """The good rules, with one replaced, or with others in its place."""
    features = list(GOOD["features"])
    features[at : at + 1] = change if isinstance(change, list) else [{**features[at], **change}]
    return features


def test_the_plan_of_a_table() -> None:
    found = plan({"kind": "column", "column": "debug_1"})
    assert [(f.name, f.inputs) for f in found.features] == [
        ("price", ("price",)),
        ("user_id", ("user_id",)),
        ("C1", ("C1",)),
        ("C2", ("C2",)),
        ("C10", ("C10",)),
        ("item_id", ("item_id",)),
        ("tags", ("tags",)),
        ("ts_hour", ("ts",)),
        ("ts_age", ("ts", "ts")),
        ("price_range", ("price",)),
        ("users_age", ("users_age",)),
        ("users_zip", ("users_zip",)),
        ("rate_user_id_C1", ("rate_user_id_C1",)),
        ("user_id_x_ts_hour", ("user_id", "ts_hour")),
    ]
    assert [column.name for column in found.read] == [name for name in COLUMNS if name != "click"]
    by_name = {column.name: column for column in found.read}
    assert by_name["tags"] == RawColumn(name="tags", type="texts", separator="|")
    assert by_name["ts"] == RawColumn(name="ts", type="time", time_format="s")
    assert {by_name[name].type for name in ("user_id", "item_id", "C1", "debug_1")} == {"text"}
    assert {by_name[name].type for name in ("price", "weight")} == {"number"}
    assert found.label == "click"
    assert found.kept == (
        KeptColumn("weight", "weight", "weight"),
        KeptColumn("group", "user_id", "user_id_group"),
        KeptColumn("candidate", "item_id", "item_id_candidate"),
    )
    (users,), ((rate, _),) = found.tables, found.histories
    assert (users.key, users.columns) == ("user_id", ("users_age", "users_zip"))
    assert (rate.name, rate.keys) == ("rate_user_id_C1", ("user_id", "C1"))
    in_requests = ["price", "user_id", "C1", "C2", "C10", "item_id", "tags", "ts"]
    assert [c.name for c in found.columns] == [*in_requests, "users_age", "users_zip", "rate_user_id_C1"]


def test_weights_of_lists() -> None:
    """Patterns leave out the column of weights, which is read as the values are, also of a side table."""
    change = [
        {"columns": "tags", "kind": "list", "separator": "|", "weights": "C10"},
        {"columns": "users_age", "kind": "list", "separator": ",", "weights": "users_zip"},
    ]
    found = plan(features=rules(at=4, change=change)[:-1])
    features = {feature.name: feature.inputs for feature in found.features}
    assert (features["tags"], features["users_age"]) == (("tags", "C10"), ("users_age", "users_zip"))
    assert not {"C10", "users_zip"} & set(features)
    assert {c.name: (c.type, c.separator) for c in found.columns if c.name in {"C10", "users_zip"}} == {
        "C10": ("numbers", "|"),
        "users_zip": ("numbers", ","),
    }
    assert found.list_lengths == (("C10", "tags"), ("users_zip", "users_age"))
    assert found.tables[0].columns == ("users_age", "users_zip")
    assert "C10" in {column.name for column in found.read}


def test_patterns_leave_out_what_says_something_of_the_row() -> None:
    everything = [{"columns": "*", "kind": "categorical"}]
    found = plan(features=everything, tables={}, rates=[], time=None, ignore=["C?"])
    assert [f.name for f in found.features] == ["price", "C10", "tags", "ts", "debug_1"]


def test_ids_of_given_cardinality_are_integers() -> None:
    change = [{"columns": ["user_id", "C1"], "kind": "categorical", "cardinality": "auto"}]
    found = plan(features=rules(at=1, change=change)[:-1], rates=[], tables={}, group=None, candidate=None)
    assert {c.name: c.type for c in found.read if c.type == "integer"} == dict.fromkeys(
        ("user_id", "item_id", "C1"), "integer"
    )


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "unknown time": ({"time": {"column": "tss"}}, "source.time: the files have no column 'tss'; did you mean 'ts'?"),
    "weight is label": ({"weight": "click"}, "source.weight: column 'click' is the label; name another column"),
    "condition on a feature": (
        {"label": {"column": "price", "at_least": 4}},
        "source.features.0: column 'price' is the label; ",
    ),
    "several unmatched": (
        {"features": rules(at=2, change=[])},
        "source.features: no rule matches column 'C2' (and 1 more: C10); add a rule, or list it in source.ignore",
    ),
    "nothing left": (
        {"features": [*GOOD["features"], {"columns": "C?", "kind": "categorical"}]},
        "source.features.9: earlier rules, roles, weights and source.ignore take all columns that it matches",
    ),
    "named twice": (
        {"features": rules(at=1, change={"columns": ["C1", "C1"]})},
        "source.features.1: column 'C1' is named twice; remove one",
    ),
    "ignored and named": (
        {"ignore": ["debug_*", "price"]},
        "source.features.0: column 'price' is also in source.ignore; remove one, or give the feature a `name`",
    ),
    "name for a pattern": (
        {"features": rules(at=2, change={"name": "all"})},
        "source.features.2.name: only a rule of one column can have a name; name one column",
    ),
    "name of the label": (
        {"features": rules(at=6, change={"name": "click"})},
        "source.features.6: two columns of the dataset would be named 'click' (also source.label); give one",
    ),
    "name with a dot": (
        {"features": rules(at=6, change={"name": "price.range"})},
        "source.features.6: 'price.range' cannot name an embedding table; ",
    ),
    "name of torch's": (
        {"features": rules(at=6, change={"name": "type"})},
        "source.features.6: 'type' cannot name an embedding table; list the column in source.ignore and give the",
    ),
    "two time formats": (
        {"time": {"column": "ts"}},
        "source.time: column 'ts' would be read as time in format iso and zone UTC here and as time in format s and ",
    ),
    "shares a number": (
        {"features": rules(at=3, change={"share": "price"})},
        "source.features.3.share: feature 'price' is numeric, which has no vocabulary; name a categorical one",
    ),
    "shares a share": (
        {"features": rules(at=4, change={"share": "item_id"})},
        "source.features.4.share: feature 'item_id' itself shares 'user_id'; share that one",
    ),
    "unknown weights": (
        {"features": rules(at=4, change={"weights": "weigth"})},
        "source.features.4.weights: the files have no column 'weigth'; did you mean 'weight'?",
    ),
    "weights of the label": (
        {"features": rules(at=4, change={"weights": "click"})},
        "source.features.4.weights: column 'click' is the label; name another column",
    ),
    "weights of other files": (
        {"features": rules(at=4, change={"weights": "users_zip"})},
        "source.features.4.weights: column 'users_zip' is not in the files of 'tags'; name a column of the same files",
    ),
    "weights that are numbers": (
        {"features": rules(at=4, change={"weights": "price"})},
        "source.features.4.weights: column 'price' would be read as numbers here and as number in source.features.0; a",
    ),
    "unknown feature crossed": (
        {"features": rules(at=7, change={"of": ["user_id", "ts"]})},
        "source.features.7.of: no feature 'ts' before it; did you mean 'tags'?",
    ),
    "list crossed": (
        {"features": rules(at=7, change={"of": ["user_id", "tags"]})},
        "source.features.7.of: feature 'tags' is list, ",
    ),
    "useless side table": (
        {"ignore": ["debug_*", "users_*"], "features": rules(at=8, change=[])},
        "source.tables.users: no feature reads a column of it; remove the table, or ignore fewer of its columns",
    ),
}

HISTORY = "source.histories.h"


def history(*take: Any, **changes: Any) -> dict[str, Any]:
    return {"histories": {"h": {"by": "C1", "take": list(take) or ["count"], **changes}}}


def of(op: str, column: str) -> dict[str, str]:
    return {"op": op, "column": column}


WRONG |= {
    "key of a history unknown": (history(by="C11"), f"{HISTORY}.by: the files have no column 'C11'; did you mean 'C1"),
    "key of a history is given by one": (history(by="h_count"), f"{HISTORY}.by: the files have no column 'h_count'; "),
    "key of a history is the label": (
        history(by="click"),
        f"{HISTORY}.by: column 'click' is the label; name another column",
    ),
    "key of a history is a list": (
        history(by="tags"),
        f"{HISTORY}.by: column 'tags' would be read as text here and as texts in source.features.4; a column can be",
    ),
    "condition on an unknown column": (
        history(where={"column": "clik", "equals": 1}),
        f"{HISTORY}.where: the files have no column 'clik'; did you mean 'click'?",
    ),
    "condition on a number's text": (
        history(where={"column": "price", "equals": 1}),
        f"{HISTORY}.where: column 'price' would be read as text here and as number in source.features.0; a column",
    ),
    "another condition than the label's": (
        {
            "label": {"column": "debug_1", "at_least": 4},
            **history(where={"column": "debug_1", "at_least": 3}),
            "ignore": ["click"],
        },
        f"{HISTORY}.where: column 'debug_1' is the label, of which only source.label is known; give the same",
    ),
    "mean of the label": (
        history(of("mean", "click")),
        f"{HISTORY}.take.0.column: column 'click' is the label; leave it out of a rate, which is of the label",
    ),
    "mean of texts": (
        history("count", of("mean", "C1")),
        f"{HISTORY}.take.1.column: column 'C1' would be read as number here and as text in source.features.1; a column",
    ),
    "sum of an unknown column": (
        history(of("sum", "prices")),
        f"{HISTORY}.take.0.column: the files have no column 'prices'; did you mean 'price'?",
    ),
    "last of lists": (
        history(of("last", "tags")),
        f"{HISTORY}.take.0.column: column 'tags' is a list itself; take the last values of a column of categories",
    ),
    "last of times": (
        history(of("last", "ts")),
        f"{HISTORY}.take.0.column: column 'ts' is a time; take the last values of a column of categories",
    ),
    "taken twice": (
        history(of("last", "C1"), {"length": 5, **of("last", "C1")}),
        f"{HISTORY}.take: 'h_last_C1' is taken twice; remove one",
    ),
    "a history with the name of a rate": (
        {"histories": {"rate_user_id_C1": {"by": "C1", "take": ["count"]}}},
        "source.rates.0: the rate would be named 'rate_user_id_C1', like a history; rename the history",
    ),
    "a category of a count": (
        {**history(), "features": [*GOOD["features"], {"columns": "h_count", "kind": "categorical"}]},
        "source.features.9: column 'h_count' is a number; change the rule's kind",
    ),
    "a number of a list": (
        {**history(of("last", "C1")), "features": [*GOOD["features"], {"columns": "h_last_C1", "kind": "numeric"}]},
        "source.features.9: column 'h_last_C1' is a list of values; change the rule's kind",
    ),
    "a pattern of a history's columns": (
        {**history(), "features": [*GOOD["features"], {"columns": "h_*", "kind": "numeric"}]},
        "source.features.9: a pattern matches no columns of histories, which have rules anyway; name them in full",
    ),
    "nothing left of a history": (
        {**history(), "ignore": ["debug_*", "h_*"]},
        f"{HISTORY}: source.ignore has all of its columns; remove the history, or ignore fewer of them",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_one_line(case: str) -> None:
    changes, message = WRONG[case]
    with pytest.raises(ConfigError) as caught:
        plan(changes.get("split"), **{name: value for name, value in changes.items() if name != "split"})
    assert str(caught.value).startswith(message), caught.value
    assert "\n" not in str(caught.value)


def test_events_of_the_log_have_the_columns_of_side_tables() -> None:
    found = plan(
        ignore=["debug_*", "users_zip", "h_count"],
        features=rules(at=8, change=[]),
        histories={
            "h": {"by": "C1", "where": {"column": "users_zip", "equals": 1}, "take": ["count", of("last", "users_age")]}
        },
    )
    (users,), (history, _) = found.tables, found.histories[0]
    assert users.columns == ("users_age", "users_zip")
    # A column that source.ignore names is not taken.
    assert history.columns == ("h_last_users_age",) and found.features[-2].name == "h_last_users_age"
    assert {"users_age", "users_zip"} <= {column.name for column in found.columns}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({**history(), "time": None}, "histories.h: the past of a row needs its time; add `time`"),
        (
            {"rates": [{"keys": "C1", "delay": "1d"}], "time": None},
            "rates.0.delay: needs the times of rows; add `time`",
        ),
        (history(time="ts"), "time: is that of events at `path`; those of the log have source.time"),
        (history("rate", path="a.csv"), "take.0.column: missing; events at `path` have no label, so name a column"),
        (history(window="0d"), "window: is empty; give a longer one, or leave it out to count all earlier events"),
        (history(known="0h"), "known: is empty; leave it out where a server knows each event at once"),
        (history(delay="99999999w"), "is longer than 1,000 years; give a shorter one, or leave it out"),
        (history(of("last", "C1") | {"length": 2_000}), "less than or equal to 1000"),
    ],
)
def test_a_past_without_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        TableSourceConfig.model_validate({**GOOD, **changes})


def test_two_columns_of_one_name() -> None:
    config = TableSourceConfig.model_validate({**GOOD, "tables": {}})
    adapter: TypeAdapter[SplitConfig] = TypeAdapter(SplitConfig)
    with pytest.raises(ConfigError, match="input: two columns are named 'click'; rename one"):
        plan_columns(config, adapter.validate_python({"kind": "hash"}), ("click", "click"), {})


def test_words_of_torch() -> None:
    public = {name for name in dir(nn.ModuleDict()) if not name.startswith("_")}
    assert public == MODULE_ATTRIBUTES
