"""What `rayrec inspect` makes of columns, on generated tables whose truth is known."""

import json
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rayrec.common.errors import ConfigError, UserError
from rayrec.common.text import shell_line
from rayrec.config.table import FileFormat, LabelCondition
from rayrec.inspection.table import recipe_text
from rayrec.inspection.table.column_forms import profile_column
from rayrec.inspection.table.columns import ColumnProfile
from rayrec.inspection.table.decisions import Decision
from rayrec.inspection.table.evidence import Evidence
from rayrec.inspection.table.file_form import recognize
from rayrec.inspection.table.inspected_table import InspectedTable, inspect_table
from rayrec.preprocessing.column_plan import plan_columns
from rayrec.raw import delimited
from rayrec.raw.input_files import list_inputs
from rayrec.recipes import load_recipe

ROWS = 4_000
Inspect = Callable[..., InspectedTable]


@pytest.fixture
def inspect(tmp_path: Path) -> Inspect:
    """Inspects columns written to a CSV file, besides a label that follows the column `signal` if there is one."""

    def inspect(columns: dict[str, Any], label: str | None = "click", parquet: bool = False) -> InspectedTable:
        rows = len(next(iter(columns.values())))
        if "click" not in columns and (label is None or label == "click"):
            rng = np.random.default_rng(1)
            columns = {**columns, "click": (rng.random(rows) < 0.3).astype(int)}
        if parquet:
            path = tmp_path / "table.parquet"
            pq.write_table(pa.table(columns), path)
        else:
            path = tmp_path / "table.csv"
            rows_of_text = (
                ["" if value is None else str(value) for value in row] for row in zip(*columns.values(), strict=True)
            )
            path.write_text("".join(",".join(row) + "\n" for row in (columns, *rows_of_text)))
        found = inspect_table([str(path)], label, "wide_deep", 100_000, "rayrec inspect table.csv")
        (tmp_path / "recipe.yaml").write_text(found.recipe)
        recipe = load_recipe(tmp_path / "recipe.yaml")
        # Raises if a column is matched twice, or by no rule.
        plan_columns(recipe.source, recipe.preprocess.split, found.sample.rows.column_names, {})
        return found

    return inspect


def decision(found: InspectedTable, name: str) -> Decision:
    return next(d for d in found.decisions if d.column.name == name)


def describe(values: list[Any], name: str = "x", named: bool = True) -> ColumnProfile:
    return profile_column(name, pa.chunked_array([pa.array(values, pa.string())]), delimited=True, named=named)


# --- how values are written


@pytest.mark.parametrize(
    ("name", "values", "form", "time_format"),
    [
        ("n", ["1", "-5", "300"], "integer", None),
        ("n", ["1.5", "-5", "1e3"], "number", None),
        ("zip", ["007", "123", "999"], "text", None),
        ("id", ["10000169349117863715", "20000169349117863715"], "text", None),
        ("h", ["05db9164", "68fd1e64", "9b98e9fc"], "text", None),
        ("t", ["2016-06-14 04:06:19.061", "2016-06-14 04:06:20"], "time", "iso"),
        ("t", ["2016-06-14T04:06:19Z", "2016-06-14T04:06:20+02:00"], "time", "iso"),
        ("day", ["2016-06-14", "2016-06-15"], "time", "iso"),
        ("hour", ["14102100", "14102123"], "time", "%y%m%d%H"),
        ("date", ["20141021", "20141123"], "time", "%Y%m%d"),
        ("C14", ["14102100", "14102123"], "integer", None),
        ("hour", ["14102100", "14103200"], "integer", None),  # no 32nd of October
        ("hour", ["14", "15"], "integer", None),
        ("timestamp", ["964982703", "1537799250"], "time", "s"),
        ("user_id", ["964982703", "1537799250"], "integer", None),
        ("when_ms", ["1537799250123", "1537799250999"], "time", "ms"),
        ("at", ["14/10/2021", "15/10/2021"], "time", "%d/%m/%Y"),
        ("at", ["10/14/2021 10:00", "12/31/2021 23:59"], "time", "%m/%d/%Y %H:%M"),
        ("at", ["01/05/2021 12:30 AM", "31/05/2021 01:30 PM"], "time", "%d/%m/%Y %I:%M %p"),
        ("at", ["2021-05-01 12:30 AM", "2021-05-01 01:30 PM"], "time", "%Y-%m-%d %I:%M %p"),
        ("at", ["May 1, 2021", "Jun 12, 2021"], "time", "%b %d, %Y"),
        ("ts", ["1714521600.000", "1714525620.5"], "time", "s"),
        ("born", ["1931-05-01", "1987-01-31"], "time", "iso"),
        ("n", ["517.0", "12", " 7 "], "integer", None),
        ("flag", ["True", "true", "FALSE"], "text", None),
        ("ratio", ["1/2", "3/4"], "text", None),
        ("version", ["1.2.3", "1.2.4"], "text", None),
    ],
)
def test_form_of_texts(name: str, values: list[str], form: str, time_format: str | None) -> None:
    column = describe(values, name)
    assert (column.form, column.time_format) == (form, time_format)


def test_words_for_missing_values_among_numbers_count_as_missing() -> None:
    column = describe(["1", "NA", "2", None, "null"])
    assert (column.form, column.missing_share, column.null_words) == ("integer", 0.6, ("NA", "null"))
    assert describe(["NA", "US", "DE"], "country").null_words == ()


def test_a_few_misfits_leave_a_column_one_of_numbers() -> None:
    column = describe([*map(str, range(1_000)), "oops"])
    assert (column.form, column.null_words, column.present) == ("integer", (), 1_000)
    assert describe([*map(str, range(10)), "oops"]).form == "text"


def test_seconds_without_a_name_are_times_only_if_most_differ() -> None:
    assert describe([str(964982703 + i) for i in range(50)], "c4", named=False).time_format == "s"
    assert describe([str(964982703 + i % 5) for i in range(50)], "c4", named=False).form == "integer"


def lists_of(items: list[str], separator: str, rows: int = 500) -> list[str]:
    rng = np.random.default_rng(0)
    return [separator.join(rng.choice(items, rng.integers(1, 5), replace=False)) for _ in range(rows)]


@pytest.mark.parametrize("separator", ["|", ";", " "])
def test_delimited_lists(separator: str) -> None:
    items = ["Action", "Comedy", "Drama", "Children's", "Sci-Fi", "War"]
    column = describe(lists_of(items, separator), "genres")
    assert (column.form, column.separator, column.items) == ("list", separator, 6)
    assert column.lengths is not None and (column.lengths.min(), column.lengths.max()) == (1, 4)


LISTS: dict[str, tuple[Callable[[list[str]], str], str]] = {
    "Python": (str, "[,]"),
    "tuples": (lambda items: str(tuple(items)), "[,]"),
    "sets": (lambda items: str(set(items)), "[,]"),
    "JSON": (json.dumps, "[,]"),
    "JSON of one": (lambda items: json.dumps(items[:1]), "[,]"),
    "PostgreSQL": (lambda items: "{" + ",".join(f'"{i}"' if " " in i else i for i in items) + "}", "[,]"),
    "NumPy": (lambda items: str(np.array(items, object)), "[ ]"),
    "NumPy's scalars": (lambda items: str(list(map(np.str_, items))), "[,]"),
    "Java": (lambda items: f"[{', '.join(items)}]", "[,]"),
    "pipes": (lambda items: f"[{'|'.join(items)}]", "[|]"),
}


@pytest.mark.parametrize("case", LISTS)
def test_lists_in_brackets(case: str) -> None:
    write, separator = LISTS[case]
    items, rng = ["Action", "Sci Fi", "Children's", "War", "caf\u00e9"], np.random.default_rng(0)
    rows = [rng.choice(items, rng.integers(0, 4), replace=False).tolist() for _ in range(300)]
    column = describe([write(row) if n % 50 else "None" for n, row in enumerate(rows)], "genres")
    assert (column.form, column.separator, column.items) == ("list", separator, 5)
    assert column.null_words == ("None",) and set(column.texts) == set(items)
    assert column.lengths is not None and column.lengths[1:50].tolist() == [
        min(len(row), 1) if case == "JSON of one" else len(row) for row in rows[1:50]
    ]


@pytest.mark.parametrize("write", [str, tuple, np.array, lambda numbers: [np.float64(number) for number in numbers]])
def test_vectors_in_brackets(write: Callable[[list[float]], Any]) -> None:
    column = describe([str(write([i + 0.5, 0.25, -1.0])) for i in range(30)])
    assert (column.form, column.separator) == ("vector", "[ ]" if write is np.array else "[,]")
    assert column.lengths is not None and set(column.lengths) == {3}


@pytest.mark.parametrize(
    "values",
    [
        [f"{{{i % 40:08x}}}" for i in range(400)],
        [f"[0{i % 9}/May/2024:10:00:{i % 60} +0000]" for i in range(400)],
        [json.dumps([{"id": i % 9, "name": "a"}] * (i % 3)) for i in range(400)],
        [json.dumps([["a", "b"][: i % 3]]) for i in range(400)],
        [json.dumps({"a": i % 9, "b": 1}) for i in range(400)],
        ["New York", "Los Angeles", "San Francisco"] * 50,
        [f"US>CA>{i % 40}" for i in range(400)],
        [f"{c}|{i % 30}" for i in range(400) for c in "ab"],  # always two parts
        [f"Toy Story {i}" for i in range(400)],
    ],
)
def test_texts_that_are_no_lists(values: list[str]) -> None:
    assert describe(values).form == "text"


def test_vectors_in_texts() -> None:
    column = describe([f"{i}.5|0.25|-1" for i in range(30)])
    assert (column.form, column.separator) == ("vector", "|")


@pytest.mark.parametrize(
    ("values", "form"),
    [
        (pa.array([1, None, 3]), "integer"),
        (pa.array([1.5, float("nan"), None]), "number"),
        (pa.array([True, False, None]), "text"),
        (pa.array(["a", "b", None]).dictionary_encode(), "text"),
        (pa.array([["a", "b"], [], None]), "list"),
        (pa.array([[1, 2], [3], None]), "list"),
        (pa.array([[0.5, 1.5], [2.5, 3.5]]), "vector"),
        (pa.array([[0.5, 1.5], [2.5]]), "nested"),
        (pa.array([{"a": 1}, None]), "nested"),
        (pa.array([0, 1]).cast(pa.timestamp("s")), "time"),
        (pa.nulls(3), "text"),
    ],
)
def test_form_of_typed_columns(values: pa.Array, form: str) -> None:
    column = profile_column("x", pa.chunked_array([values]), delimited=False)
    assert column.form == form
    assert column.rows == len(values)


@given(st.lists(st.one_of(st.none(), st.text(max_size=12), st.integers().map(str), st.floats().map(str)), max_size=40))
def test_every_column_of_text_is_described(values: list[str | None]) -> None:
    column = describe(values)
    assert column.rows == len(values)
    assert 0 <= column.distinct <= len(set(values))
    assert column.present <= sum(bool(v) for v in values)


def test_distinct_values_of_all_rows_are_estimated_from_a_sample() -> None:
    rng = np.random.default_rng(0)
    values = rng.integers(10_000, size=1_000_000)
    column = describe([str(v) for v in values[:8_000]])
    assert column.distinct < 6_000
    assert 8_000 < column.distinct_estimate(1_000_000) < 12_000
    assert column.distinct_estimate(8_000) == column.distinct


# --- evidence


def test_evidence_of_noise_is_one_half() -> None:
    rng = np.random.default_rng(0)
    evidence = Evidence((rng.random(ROWS) < 0.3).astype(float))
    for reading in (evidence.as_category(rng.integers(500, size=ROWS)), evidence.as_number(rng.random(ROWS))):
        assert abs(reading.auc - 0.5) < 0.05


def test_lists_with_one_positive_tell_nothing_of_themselves() -> None:
    groups = np.arange(ROWS) // 4
    label = (np.arange(ROWS) % 4 == 0).astype(float)
    assert Evidence(label).as_category(groups).auc < 0.2
    assert Evidence(label, groups).as_category(groups).auc == 0.5


def test_missing_numbers_are_evidence_too() -> None:
    rng = np.random.default_rng(0)
    label = (rng.random(ROWS) < 0.3).astype(float)
    numbers = np.where(rng.random(ROWS) < np.where(label == 1, 0.8, 0.2), np.nan, rng.random(ROWS))
    evidence = Evidence(label)
    assert evidence.as_number(numbers).auc > 0.75
    assert evidence.as_bins(numbers, 16).auc > 0.75


# --- what columns become


def clicks_by(scores: np.ndarray) -> list[int]:
    rng = np.random.default_rng(2)
    return (rng.random(len(scores)) < 1 / (1 + np.exp(-scores))).astype(int).tolist()


def test_integers_are_ids_or_numbers_by_what_foretells_the_label(inspect: Inspect) -> None:
    rng = np.random.default_rng(0)
    ids, amounts = rng.integers(50, size=ROWS), rng.integers(1_000, size=ROWS)
    effect = rng.normal(0, 1.5, 50)
    found = inspect({"a": ids, "b": amounts, "click": clicks_by(effect[ids] + amounts / 300 - 2)})
    assert decision(found, "a").kind == "categorical"
    assert "better as category" in decision(found, "a").reason
    assert decision(found, "b").kind == "numeric"
    assert "better as number" in decision(found, "b").reason


def test_without_evidence_the_name_decides_then_the_values(inspect: Inspect) -> None:
    rng = np.random.default_rng(0)
    found = inspect({
        "shop_id": rng.integers(30, size=ROWS),
        "price": rng.integers(30, size=ROWS),
        "x": rng.geometric(0.05, ROWS) - 1,
        "y": rng.integers(100, 130, size=ROWS),
        "z": rng.integers(2, size=ROWS),
    })  # fmt: skip
    kinds = {name: decision(found, name).kind for name in ("shop_id", "price", "x", "y", "z")}
    assert kinds == {"shop_id": "categorical", "price": "numeric", "x": "numeric", "y": "categorical",
                     "z": "categorical"}  # fmt: skip
    assert "'id' in its name" in decision(found, "shop_id").reason
    assert "counts" in decision(found, "x").reason


def test_integers_with_gaps_stay_integers(inspect: Inspect) -> None:
    rng = np.random.default_rng(0)
    values = [None if rng.random() < 0.2 else int(v) for v in rng.integers(20, size=ROWS)]
    found = inspect({"kind_id": values}, parquet=True)
    assert decision(found, "kind_id").kind == "categorical"
    assert decision(found, "kind_id").column.examples()[0].isdigit()
    number = inspect({"price": [None if v is None else v * v for v in values]})
    assert [rule["kind"] for rule in decision(number, "price").rules] == ["numeric", "buckets"]
    assert decision(number, "price").rules[1]["name"] == "price_range"


def test_a_curve_is_found_that_no_line_follows(inspect: Inspect) -> None:
    numbers = np.random.default_rng(0).normal(size=ROWS)
    found = inspect({"x": numbers, "click": clicks_by(4 * numbers**2 - 3)})
    assert [rule["kind"] for rule in decision(found, "x").rules] == ["numeric", "buckets"]
    assert "better than a straight line" in found.recipe


def test_ordered_integers_of_many_values_are_numbers(inspect: Inspect) -> None:
    rng = np.random.default_rng(0)
    rows = 20_000
    delay = np.round(rng.gamma(1.2, 25, rows) - 20).astype(int)
    credit = np.where(rng.random(rows) < 0.1, 0, np.round(rng.lognormal(6, 1.4, rows))).astype(int)
    campaign = np.minimum(rng.geometric(0.4, rows), 60)
    gate = rng.integers(1_000, 1_400, rows)
    scores = delay / 40 - (credit == 0) + rng.normal(0, 1.5, 1_400)[gate] - np.log(campaign) / 2 - 2
    found = inspect({"delay": delay, "credit": credit, "campaign": campaign, "gate": gate, "click": clicks_by(scores)})
    kinds = {d.column.name: d.kind for d in found.decisions}
    assert kinds == {"delay": "numeric", "credit": "numeric", "campaign": "numeric", "gate": "categorical",
                     "click": "label"}  # fmt: skip


@pytest.mark.parametrize(
    ("sentinel", "share"), [(-1, 0.3), (-999_999, 0.001), (-999_999, 0.3), (999_999_999, 0.001), (999_999_999, 0.3)]
)
def test_sentinels_do_not_spoil_a_column(inspect: Inspect, sentinel: int, share: float) -> None:
    rng = np.random.default_rng(0)
    is_sentinel = rng.random(ROWS) < share
    found = inspect({"price": np.where(is_sentinel, sentinel, rng.integers(3, 900, ROWS)), "shop": np.arange(ROWS) % 9})
    number, *ranges = decision(found, "price").rules
    side = "min" if sentinel < 0 else "max"
    clip = number["transforms"][0]
    if share == 0.3:
        assert number["transforms"] == [{"op": "clip", side: 3 if sentinel < 0 else 899}, "standardize"]
    else:  # a few absurd numbers say nothing
        assert (clip.keys(), clip["outside"]) == ({"op", side, "outside"}, "missing") if abs(sentinel) > 1 else True
        assert abs(clip[side]) < 10_000
    assert f"{sentinel:,}" in decision(found, "price").reason
    if share == 0.3:  # the sentinel has a range of its own
        assert {3, sentinel}.intersection(ranges[0]["boundaries"])
    else:
        assert not ranges


def test_outliers_are_clipped_where_the_others_lie(inspect: Inspect) -> None:
    rng = np.random.default_rng(0)
    numbers = rng.normal(50, 10, ROWS).round(3)
    numbers[:9] = 10.0 ** np.arange(4, 13)
    rule = decision(inspect({"x": numbers, "shop": np.arange(ROWS) % 9}), "x").rules[0]
    assert rule["transforms"][1:] == ["standardize"]
    assert 60 < rule["transforms"][0]["max"] < 1_000


def test_one_odd_value_takes_no_role_away(inspect: Inspect) -> None:
    rng = np.random.default_rng(0)
    displays = np.arange(ROWS) // 5
    start = np.datetime64("2024-03-01T00:00:00")
    table: dict[str, Any] = {
        "display_id": [None if i == 77 else v for i, v in enumerate(displays)],
        "weight": ["?" if i == 78 else v for i, v in enumerate(rng.random(ROWS))],
        "time": ["soon" if i == 79 else v for i, v in enumerate(start + np.arange(ROWS) * np.timedelta64(9, "m"))],
        "row": [0, *range(1, ROWS - 1), 5],
        "price": ["007" if i == 80 else v for i, v in enumerate(rng.integers(10, 900, ROWS))],
        "shop": np.arange(ROWS) % 9,
        "click": (np.arange(ROWS) % 5 == rng.integers(5, size=ROWS // 5)[displays]).astype(int),
    }
    found = inspect(table)
    roles = {"display_id": "group", "weight": "weight", "time": "time", "row": "ignored", "price": "feature"}
    assert {name: decision(found, name).role for name in roles} == roles
    assert decision(found, "price").kind == "numeric"
    assert found.left_out.reasons.total() == 3 and found.can_run
    assert yaml.safe_load(found.recipe)["preprocess"]["split"]["kind"] == "time"


ENGLISH, GERMAN = "1,234.5", "1.234,5"


@pytest.mark.parametrize(
    ("values", "number_format", "first"),
    [
        ([f"{v % 900 * 9:,}" for v in range(1, ROWS + 1)], ENGLISH, 9),
        ([f"{v % 900 * 9:,}".replace(",", ".") for v in range(1, ROWS + 1)], GERMAN, 9),
        ([f"{v % 90},{v % 7}" for v in range(ROWS)], GERMAN, 0),
        ([f"{v % 90} EUR" for v in range(ROWS)], ENGLISH, 0),
        ([f"-US${v % 90}.50" for v in range(ROWS)], ENGLISH, -0.5),
        ([f"\u20ac {v % 900 * 9:,}".replace(",", ".") for v in range(ROWS)], GERMAN, 0),
        ([f"{v % 90 + 1}\u202f{v % 900 + 100}" for v in range(ROWS)], ENGLISH, 1100),
        ([f"{v % 90}%" for v in range(ROWS)], ENGLISH, 0),
        ([f"({v % 90}.25)" if v % 2 else f"{v % 90}.25" for v in range(ROWS)], ENGLISH, 0.25),
        (["n. a." if v % 9 == 1 else f"{v % 90},5" for v in range(ROWS)], GERMAN, 0.5),
        (["0,125" if v % 9 == 1 else f"{v % 900 + 1},{v % 900 + 100}" for v in range(ROWS)], GERMAN, 1.1),
        (["?" if v == 77 else f"${v % 90}.5" for v in range(ROWS)], ENGLISH, 0.5),
    ],
)
def test_numbers_are_read_as_people_write_them(
    inspect: Inspect, values: list[str], number_format: str, first: float
) -> None:
    found = inspect({"price": pa.array(values), "shop": pa.array(np.arange(ROWS) % 9)}, parquet=True)
    price = decision(found, "price")
    assert price.kind == "numeric" and price.column.row_numbers[0] == first and "written as" in price.reason
    assert yaml.safe_load(found.recipe)["source"]["number_format"] == number_format
    assert not found.warnings and found.can_run


@pytest.mark.parametrize(
    ("values", "warning"),
    [
        (
            [f"{v % 90 + 1},{v % 900 + 100}" for v in range(ROWS)],
            r"'1,100' is 1100 by number_format: \"1,234.5\" and 1.1",
        ),
        ([f"{'$' if v % 2 else 'EUR '}{v % 90}.5" for v in range(ROWS)], r"of several units \('EUR', '\$'\)"),
        ([f"{v % 90} %" if v % 2 else f"0.{v % 90}" for v in range(ROWS)], r"of several units \('%', none\)"),
        ([f"{v % 90}.5 kg" for v in range(ROWS)], r"not alone, such as '0.5 kg'; write plain numbers"),
        ([f"{v % 90}.5" if v % 2 else f"{v % 90},5" for v in range(ROWS)], "50.0% of the values are not as the others"),
        ([f"<{v % 90}.5" for v in range(ROWS)], "not alone, such as '<0.5'"),
        ([f"{v % 900 + 100},{v * 7 % 900 + 100}" for v in range(ROWS)], "perhaps lists"),
        (
            [f"${v}.5" if v % 30 else f"$ {v} or so" for v in range(ROWS)],
            "3.3% of the values are not as the others, such as '\\$ ",
        ),
    ],
)
def test_numbers_that_could_be_others_are_warned_of(inspect: Inspect, values: list[str], warning: str) -> None:
    found = inspect({"x": pa.array(values), "shop": pa.array(np.arange(ROWS) % 9)}, parquet=True)
    (said,) = found.warnings
    assert re.match(f"x: numbers, but .*{warning}", said)
    assert decision(found, "x").kind in ("categorical", "ignored")


def test_lists_of_numbers_are_no_numbers(inspect: Inspect) -> None:
    genres = lists_of([str(n) for n in range(1, 30)], ",", ROWS)
    found = inspect({"genres": pa.array(genres), "shop": pa.array(np.arange(ROWS) % 9)}, parquet=True)
    assert decision(found, "genres").kind == "list" and not found.warnings


def test_places_where_rows_were_shown_are_warned_of(inspect: Inspect) -> None:
    numbers = np.arange(ROWS)
    places = {"slot": numbers % 5 - 1, "Ad Position": [f"{n % 7}.0" for n in numbers], "itemRank": 1 + numbers % 40}
    others = {
        "pos": np.where(numbers % 2, "noun", "verb"), "sales_rank": numbers * 7 % 9_001, "position_x": numbers % 9 / 2,
        "disposition": numbers % 4, "top_slot": numbers % 2,
    }  # fmt: skip
    found = inspect({**places, **others})
    assert [warning.partition(":")[0] for warning in found.warnings] == list(places)
    for name in places:
        said = decision(found, name)
        assert said.rules and "unless" in said.reason and "place" in said.reason


def test_codes_that_look_like_numbers_but_for_some_are_no_cause_for_a_warning(inspect: Inspect) -> None:
    codes = [f"{v % 900 + 10_000}" if v % 50 else f"T8H{v % 9}" for v in range(ROWS)]
    found = inspect({"zip_code": pa.array(codes), "shop": pa.array(np.arange(ROWS) % 9)}, parquet=True)
    assert not found.warnings and decision(found, "zip_code").kind == "categorical"


def test_each_column_has_its_own_number_format_where_one_does_not_suit_all(inspect: Inspect) -> None:
    rng = np.random.default_rng(0)
    found = inspect({
        "price": pa.array([f"{v:.2f}".replace(".", ",") for v in rng.exponential(20, ROWS)]),
        "fee": pa.array([f"{v:.2f}".replace(".", ",") for v in rng.exponential(2, ROWS)]),
        "latitude": pa.array([f"{v:.4f}" for v in rng.uniform(46, 49, ROWS)]),
        "age": pa.array([f"{v}" for v in rng.integers(18, 90, ROWS)]),
        "place": pa.array([";".join(f"{v:.2f}".replace(".", ",") for v in row) for row in rng.normal(size=(ROWS, 3))]),
        "user_id": pa.array([f"{v},0" for v in rng.integers(100, 150, ROWS)]),
        "weight": pa.array([f"{v:.1f}".replace(".", ",") for v in rng.uniform(1, 2, ROWS)]),
    }, parquet=True)  # fmt: skip
    recipe = yaml.safe_load(found.recipe)["source"]
    assert recipe["number_format"] == GERMAN and recipe["weight"] == "weight"
    own = {rule["columns"]: rule.get("number_format") for rule in recipe["features"]}
    assert own == {"price": None, "fee": None, "latitude": "plain", "age": None, "place": None, "user_id": GERMAN}
    assert found.can_run and not found.left_out.bad


def test_a_lost_time_is_said(inspect: Inspect) -> None:
    weeks = [f"2024-W{i % 50:02d}" for i in range(ROWS)]
    (said,) = inspect({"created_at": weeks, "shop": np.arange(ROWS) % 9}).warnings
    assert "'2024-W00'" in said and "the split is at random" in said


def test_row_ids_constants_and_empty_columns_are_ignored(inspect: Inspect) -> None:
    rng = np.random.default_rng(0)
    found = inspect({
        "row": np.arange(ROWS),
        "request": [f"r{v:x}" for v in rng.permutation(10**6)[:ROWS]],
        "price": rng.permutation(10**6)[:ROWS],
        "constant": ["7"] * ROWS,
        "empty": [None] * ROWS,
        "flag": [None, "1"] * (ROWS // 2),
        "shop": rng.integers(9, size=ROWS),
    })  # fmt: skip
    ignored = {d.column.name: d.reason for d in found.decisions if d.role == "ignored"}
    assert set(ignored) == {"row", "request", "constant", "empty"}
    assert "row id" in ignored["row"] and "row id" in ignored["request"]
    assert "every row has '7'" in ignored["constant"]
    assert decision(found, "price").kind == "numeric"  # many different amounts are no ids
    assert decision(found, "flag").kind == "categorical"  # whether there is a value may matter


def test_free_text_is_ignored(inspect: Inspect) -> None:
    rng = np.random.default_rng(0)
    words = np.array(["lorem", "ipsum", "dolor", "sit", "amet", "consectetur"])
    texts = [" ".join(rng.choice(words, 12)) + f" {i}" for i in range(ROWS)]
    found = inspect({"review": [*texts[:-1], texts[0]], "shop": rng.integers(9, size=ROWS)})
    assert "free text" in decision(found, "review").reason


@pytest.mark.parametrize("between", [" ", "-", "_", "/"])
def test_words_that_foretell_the_label_make_texts_lists(inspect: Inspect, between: str) -> None:
    """Of texts that are different in most rows; what says nothing by its parts stays what it was."""
    rng = np.random.default_rng(0)
    makers, models = rng.integers(12, size=ROWS), rng.integers(10**5, size=ROWS)
    liked = rng.random(ROWS) < 1 / (1 + np.exp(-2 * rng.normal(size=12)[makers]))
    table = {
        "car": [f"Make{chr(65 + m)}{between}Model{n}" for m, n in zip(makers, models, strict=True)],
        "person": [f"P{'abcdefgh'[m]}{between}Q{n}" for m, n in zip(rng.integers(8, size=ROWS), models, strict=True)],
        "uuid": [str(uuid.UUID(bytes=rng.bytes(16))) for _ in range(ROWS)],
        "order": [f"ORD-2024-{n:06}" for n in models],
        "address": [f"{n} Main Street" for n in models],
        "shop": rng.integers(9, size=ROWS),
        "click": liked.astype(int),
    }
    found = inspect(table)
    (rule,) = decision(found, "car").rules
    assert (rule["kind"], rule["separator"]) == ("list", between)
    assert [d.column.name for d in found.decisions if d.kind == "list"] == ["car"]
    # A text whose words alone know the label is used, and said.
    sure = inspect(table | {"click": (makers < 6).astype(int)})
    assert decision(sure, "car").kind == "list" and any(said.startswith("car: ") for said in sure.warnings)


def test_times_become_hours_and_weekdays_and_order_the_split(inspect: Inspect) -> None:
    rng = np.random.default_rng(0)
    start = np.datetime64("2024-03-01T00:00:00")
    times = start + np.sort(rng.integers(40 * 86_400, size=ROWS)).astype("timedelta64[s]")
    born = start - rng.integers(900, size=ROWS).astype("timedelta64[D]")
    found = inspect({"timestamp": times, "signup": born.astype("datetime64[D]"), "shop": rng.integers(9, size=ROWS)})
    assert decision(found, "timestamp").rules[0]["derive"] == ["hour", "weekday"]
    assert decision(found, "signup").rules[0]["derive"] == ["weekday", "age"]
    recipe = yaml.safe_load(found.recipe)
    assert recipe["source"]["time"] == "timestamp"
    assert recipe["preprocess"]["split"]["kind"] == "time"


@pytest.mark.parametrize("parquet", [False, True])
@pytest.mark.parametrize(("form", "step"), [("%Y-01-01", 12), ("%Y-12-31", 12), ("%Y-%m-01", 1), ("%Y-%m-01", 3)])
def test_dates_that_stand_for_months_and_years_are_categories(
    inspect: Inspect, form: str, step: int, parquet: bool
) -> None:
    """Their weekday is chance, and so few of them do not order the rows."""
    months = np.datetime64("2009-01", "M") + step * np.random.default_rng(0).integers(12, size=ROWS)
    texts = [month.item().strftime(form) for month in months]
    day = np.array(texts, "datetime64[D]") if parquet else texts
    found = inspect({"made": day, "shop": np.arange(ROWS) % 9}, parquet=parquet)
    assert decision(found, "made").rules == ({"kind": "categorical"},)
    assert "time" not in yaml.safe_load(found.recipe)["source"]


def test_only_parts_of_a_time_that_vary_are_derived(inspect: Inspect) -> None:
    rng, start = np.random.default_rng(0), np.datetime64("2021-01-04T12:00:00")  # a Monday
    derived = {}
    for name, times in {
        "noons": start + rng.integers(300, size=ROWS).astype("timedelta64[D]"),
        "mondays": start + 7 * rng.integers(40, size=ROWS).astype("timedelta64[D]"),
        "months": (np.datetime64("2015-01", "M") + rng.integers(60, size=ROWS)).astype("datetime64[D]"),
    }.items():
        found = inspect({"timestamp": [str(time) for time in times], "shop": np.arange(ROWS) % 9})
        derived[name] = [rule["derive"] for rule in decision(found, "timestamp").rules]
    assert derived == {"noons": [["weekday"]], "mondays": [], "months": [["month"]]}


def test_a_column_with_hours_orders_the_rows(inspect: Inspect) -> None:
    visits = [f"01.03.2026 {i % 24:02d}:30" for i in range(ROWS)]
    signups = np.datetime64("2018-01-01") + np.random.default_rng(0).integers(2_900, size=ROWS)
    found = inspect({"visit": visits, "member since": signups, "shop": np.arange(ROWS) % 9})
    assert yaml.safe_load(found.recipe)["source"]["time"] == {"column": "visit", "format": "%d.%m.%Y %H:%M"}
    assert decision(found, "member since").role == "feature"


def test_births_are_no_times_of_rows(inspect: Inspect) -> None:
    days = np.datetime64("1945-03-01") + np.random.default_rng(0).integers(20_000, size=ROWS)
    recipe = yaml.safe_load(inspect({"born": days, "since": days, "shop": np.arange(ROWS) % 9}).recipe)
    assert "time" not in recipe["source"] and recipe["preprocess"]["split"]["kind"] == "hash"


def test_lists_and_vectors_get_their_rules(inspect: Inspect) -> None:
    rng = np.random.default_rng(0)
    found = inspect({
        "genres": lists_of(["a", "b", "c", "d", "e"], "|", ROWS),
        "embedding": [f"{a:.3f};{b:.3f};0.5" for a, b in rng.random((ROWS, 2))],
    })  # fmt: skip
    assert decision(found, "genres").rules == ({"kind": "list", "separator": "|", "max_length": 4, "pooling": "mean"},)
    assert decision(found, "embedding").rules == ({"kind": "vector", "size": 3, "separator": ";"},)


def test_lists_of_parquet_need_no_separator(inspect: Inspect) -> None:
    values = [["a", "b"], ["c"], []] * 1_000
    found = inspect({"tags": values, "vector": [[0.5, 1.0]] * 3_000}, parquet=True)
    assert decision(found, "tags").rules[0] == {"kind": "list", "max_length": 2, "pooling": "mean"}
    assert decision(found, "vector").rules[0] == {"kind": "vector", "size": 2}


@pytest.mark.parametrize("name", ["type", "values", "site.id"])
def test_names_that_no_table_can_have(inspect: Inspect, name: str) -> None:
    found = inspect({name: [f"v{i % 7}" for i in range(ROWS)], "shop": np.arange(ROWS) % 9})
    rule = decision(found, name).rules[0]
    assert rule["name"] == (name.replace(".", "_") if "." in name else f"{name}_")
    assert name in yaml.safe_load(found.recipe)["source"]["ignore"]


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
def test_names_and_values_with_marks_of_yaml_and_of_terminals(tmp_path: Path, ending: str) -> None:
    marks = [
        "'",
        '"',
        "\\",
        "#",
        " # ",
        ": ",
        "%",
        "{}",
        "[x]",
        "\n",
        "\x1b[2J",
        "\x00",
        "\x85",
        "\u2028",
        "<b>",
        "-",
        "é",
    ]
    table = {
        f"a{mark}b": [f"{marks[(row + n) % 17]}{row % 3}" for row in range(300)]
        for n, mark in enumerate(marks)
        if mark != "\x00"
    }
    table |= {"la\n: 'b\x1bl' #": np.random.default_rng(1).choice(["#\x1b'", "no", "\n"], 300).tolist()}
    path = tmp_path / f"a 'b' # \x1b\n{ending}"
    if ending == ".parquet":
        pq.write_table(pa.table(table), path)
    elif ending == ".csv":
        pd.DataFrame(table).to_csv(path, index=False)
    else:
        pd.DataFrame(table).to_json(path, orient="records", lines=True)
    label = "la\n: 'b\x1bl' #=#\x1b'"
    found = inspect_table([str(path)], label, "wide_deep", 100_000, shell_line(["rayrec", "inspect", str(path)]))
    assert all(line.isprintable() for line in found.recipe.split("\n"))
    (tmp_path / "recipe.yaml").write_text(found.recipe)
    source = load_recipe(tmp_path / "recipe.yaml").source
    assert [column for rule in source.features for column in rule.columns] == list(table)[:-1]
    assert source.label == LabelCondition(column="la\n: 'b\x1bl' #", equals=("#\x1b'",))


# --- groups, weights


def test_groups_weights_and_candidates(inspect: Inspect) -> None:
    rng = np.random.default_rng(0)
    displays = np.arange(ROWS) // 5
    ads = np.concatenate([rng.choice(60, 5, replace=False) for _ in range(ROWS // 5)])
    clicks = (np.arange(ROWS) % 5 == rng.integers(5, size=ROWS // 5)[displays]).astype(int)
    found = inspect({"display_id": displays, "ad_id": ads, "weight": rng.random(ROWS), "click": clicks})
    recipe = yaml.safe_load(found.recipe)
    assert {k: recipe["source"][k] for k in ("group", "candidate", "weight")} == {
        "group": "display_id", "candidate": "ad_id", "weight": "weight"
    }  # fmt: skip
    assert recipe["preprocess"]["split"]["column"] == "display_id"
    assert recipe["evaluate"]["ranking"]["metrics"] == ["map", "ndcg"]
    assert [d.column.name for d in found.decisions if d.role == "feature"] == ["ad_id"]


def test_rates_of_what_lists_offer(inspect: Inspect) -> None:
    rng = np.random.default_rng(0)
    displays = np.arange(ROWS) // 5
    ads = np.concatenate([rng.choice(60, 5, replace=False) for _ in range(ROWS // 5)])
    appeal = rng.normal(size=60)[ads] + rng.gumbel(size=ROWS)
    table = {
        "display_id": displays,
        "ad_id": ads,
        "site_id": rng.integers(60, size=ROWS // 5)[displays],
        "click": (appeal == pd.Series(appeal).groupby(displays).transform("max")).astype(int),
    }
    recipe = yaml.safe_load(inspect(table).recipe)
    assert recipe["source"]["rates"] == [{"keys": "ad_id"}], "what is the same for a whole list foretells nothing"
    alone = {name: values for name, values in table.items() if name != "display_id"}
    assert "rates" not in yaml.safe_load(inspect(alone).recipe)["source"]


def test_crosses_that_gain_are_rates_of_the_recipe(inspect: Inspect) -> None:
    """Of texts as of numbers that occur again, which stay features of their own."""
    rng = np.random.default_rng(0)
    person, shop = rng.integers(60, size=2 * ROWS), rng.integers(6, size=2 * ROWS)
    income = rng.normal(9, 1, 60).round(4)
    taste = 2 * rng.normal(size=(60, 6))[person, shop]
    table = {
        "income": income[person],
        "shop": [f"s{n}" for n in shop],
        "device": rng.choice(["a", "b"], 2 * ROWS),
        "click": (rng.random(2 * ROWS) < 1 / (1 + np.exp(-taste))).astype(int),
    }
    found = inspect(table)
    (rate,) = yaml.safe_load(found.recipe)["source"]["rates"]
    assert set(rate["keys"]) == {"income", "shop"} and "lifts the AUC of a logistic regression from" in found.recipe
    (cross,) = found.regressed.crosses
    assert cross.auc > cross.without + 0.1
    assert "rates" not in yaml.safe_load(inspect({k: v for k, v in table.items() if k != "click"}).recipe)["source"]


@pytest.mark.parametrize(
    ("persons", "visits", "alike", "together", "is_unit"),
    [(300, 4, 2.5, True, True), (300, 12, 0.6, True, False), (300, 4, 2.5, False, False)],
    ids=["repeated measures", "a log of clicks by user", "not together"],
)
def test_rows_of_one_case_stay_in_one_split(
    inspect: Inspect, persons: int, visits: int, alike: float, together: bool, is_unit: bool
) -> None:
    rng = np.random.default_rng(0)
    person = np.repeat(np.arange(persons), visits)
    if not together:
        rng.shuffle(person)
    logit = alike * rng.normal(size=persons)[person]
    found = inspect({
        "zh7": [f"c{1_000 + 7 * number}" for number in person],
        "sex": rng.choice(["f", "m"], persons)[person],
        "dose": rng.normal(size=len(person)).round(2),
        "click": (rng.random(len(person)) < 1 / (1 + np.exp(-logit))).astype(int),
    })  # fmt: skip
    recipe = yaml.safe_load(found.recipe)
    assert (recipe["preprocess"]["split"].get("column") == "zh7") == is_unit
    assert ("zh7" in recipe["source"].get("ignore", [])) == is_unit


def test_a_session_with_many_positives_is_no_group(inspect: Inspect) -> None:
    found = inspect({"session_id": np.arange(ROWS) // 5, "shop": np.arange(ROWS) % 9, "click": [1, 1, 1, 1, 0] * 800})
    assert "group" not in yaml.safe_load(found.recipe)["source"]


# --- leaks


def test_leaks_are_ignored_and_named(inspect: Inspect) -> None:
    rng = np.random.default_rng(0)
    clicks = (rng.random(ROWS) < 0.3).astype(int)
    start = np.datetime64("2024-03-01T00:00:00") + np.arange(ROWS).astype("timedelta64[m]")
    found = inspect({
        "time": start,
        "left": start + rng.integers(1, 99, size=ROWS).astype("timedelta64[s]"),
        "dwell": [round(rng.random(), 3) if c else None for c in clicks],
        "position": np.where(rng.random(ROWS) < 0.99, clicks, 1 - clicks) * 10 + rng.integers(5, size=ROWS),
        "purchase": clicks * (rng.random(ROWS) < 0.2),
        "shop": rng.integers(9, size=ROWS),
        "click": clicks,
    })  # fmt: skip
    warned = {warning.partition(":")[0]: warning for warning in found.warnings}
    assert set(warned) == {"left", "dwell", "position", "purchase"}
    assert "exactly where the label is 1" in warned["dwell"]
    assert "AUC of 0.9" in warned["position"]
    assert "name of a label" in warned["purchase"]
    assert "later than the row's time" in warned["left"]
    assert set(warned) <= set(yaml.safe_load(found.recipe)["source"]["ignore"])


# --- the label


def test_the_label_is_found_by_name_and_values(inspect: Inspect) -> None:
    found = inspect({"shop": np.arange(ROWS) % 9, "gender": np.arange(ROWS) % 2}, label=None)
    assert yaml.safe_load(found.recipe)["source"]["label"] == "click"


@pytest.mark.parametrize(
    ("label", "content", "condition"),
    [
        ("rating>=4", {"rating": ["1", "4", "5"]}, {"column": "rating", "at_least": 4.0}),
        ("rating = 5", {"rating": ["1", "4.0", "5.0"]}, {"column": "rating", "equals": ["5"]}),
        ("answer", {"answer": ["yes", " No", "n/a"]}, "answer"),
        ("answer", {"answer": ["1", "-1", "-1"]}, {"column": "answer", "equals": ["1"]}),
        ("answer", {"answer": ["True", "False", "False"]}, "answer"),
        ("kind=a,b", {"kind": ["a", "b", "c"]}, {"column": "kind", "equals": ["a", "b"]}),
    ],
)
def test_conditions(inspect: Inspect, label: str, content: dict[str, list[str]], condition: Any) -> None:
    found = inspect({name: values * 100 for name, values in content.items()} | {"shop": [1, 2] * 150}, label=label)
    assert yaml.safe_load(found.recipe)["source"]["label"] == condition
    name = next(iter(content))
    assert [d.column.name for d in found.decisions if d.rules] == ["shop"] and decision(found, name).role == "label"


@pytest.mark.parametrize(
    ("label", "message", "kind"),
    [
        ("raiting>=4", "--label raiting>=4: no column 'raiting'; did you mean 'rating'?", ConfigError),
        ("rating>=x", "'x' is not a number", ConfigError),
        ("rating>=0", "every row of the sample meets it", UserError),
    ],
)
def test_wrong_labels(inspect: Inspect, label: str | None, message: str, kind: type[Exception]) -> None:
    columns = {"rating": [1, 4, 5], "one": [1, 1, 1], "answer": ["b", "a", "b"], "flag": [0, 1, 0], "click": [1, 2, 3]}
    with pytest.raises(kind) as raised:
        inspect({name: values * 50 for name, values in columns.items()}, label=label)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_rows_without_a_label_are_warned_of(inspect: Inspect) -> None:
    found = inspect({"shop": [1, 2, 3] * 100, "click": [0, 1, 1, None] * 75})
    assert found.warnings == [
        "click: 25.00% of the rows have no label and are left out; --missing-label gives them one"
    ]


def test_no_feature_is_an_error(inspect: Inspect) -> None:
    with pytest.raises(UserError, match=r"no column can be a feature \(one constant: every row has '1'\)"):
        inspect({"one": [1] * 100})


# --- files


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a,b\n1,2\n", {}),
        ("a\tb\n1\t2\n", {}),
        ("a;b\n1,5;2\n2,5;3\n", {"separator": ";"}),
        ("1,2\n3,4\n", {"header": ("c1", "c2")}),
        ("x,y\nx,z\n", {"header": ("c1", "c2")}),
        ('a,b\n"1,5",2\n', {}),
        ('a,b\n5" disk,2\n3" disk,2\n', {"quote": False}),
        (",b\n1,2\n", {}),
        ("a,b,7,a,,\n1,2,3,4,,\n", {}),
        ("a,b\na,b\n1,2\na,b\n", {}),
        ("2024-05-01,x\n2024-05-02,y\n", {"header": ("c1", "c2")}),
        ("NA,4,x\n2,4,y\n", {"header": ("c1", "c2", "c3")}),
        ("1,clicked\n0,clicked\n", {}),
    ],
)
def test_form_of_delimited_files(tmp_path: Path, text: str, expected: dict[str, Any]) -> None:
    (tmp_path / "table.csv").write_text(text)
    form = recognize(list_inputs([str(tmp_path / "table.csv")])[0], "clicked=1")
    assert form.settings.model_dump(exclude_defaults=True) == expected
    assert form.has_names == ("header" not in expected)


SPARSE: dict[str, tuple[str, str | None]] = {
    "LIBSVM": ("+1 3:0.5 7:1\n-1 2:1\n-1\n", "LIBSVM"),
    "LIBSVM with all indexes": ("1 1:0.5 2:1\n0 1:7 2:1e-3 # note\n", "LIBSVM"),
    "LIBSVM of queries": ("2 qid:1 1:0.5 4:1\n0 qid:1 2:1\n", "LIBSVM"),
    "Vowpal Wabbit": ("1 'r1 |user u7 age:30 |item i9\n-1 0.5 |user u8 |item i9\n", "Vowpal Wabbit"),
    "Vowpal Wabbit without namespaces": ("1 | price:0.5 vip\n0 | price:2\n", "Vowpal Wabbit"),
    "times with blanks": ("1 10:30 17:15\n0 9:30 18:15\n", None),
    "pipes with blanks": ("1 | u7 | 30\n0 | u8 | 12:30\n", None),
    "pipes": ("1|u7|30\n0|u8|31\n", None),
    "numbers": ("1 3 0.5\n0 7 1\n", None),
}


@pytest.mark.parametrize("case", SPARSE)
def test_rows_without_columns_are_refused(tmp_path: Path, case: str) -> None:
    text, name = SPARSE[case]
    (tmp_path / "rows.txt").write_text(text * 20)
    file = list_inputs([str(tmp_path / "rows.txt")])[0]
    if name is None:
        recognize(file)
        return
    for read in (recognize, lambda file: delimited.read_layout(file, FileFormat(), ())):
        with pytest.raises(UserError, match=f"rows.txt: lines of {name}, which have no columns; write"):
            read(file)


@pytest.mark.parametrize("parquet", [False, True])
def test_long_ids_that_became_floats_are_warned_of(inspect: Inspect, parquet: bool) -> None:
    ids = [float(1234567890123456789 + n % 90 * 10**6) for n in range(ROWS)]
    found = inspect({"user": ids}, parquet=parquet)
    assert decision(found, "user").kind == "categorical"
    assert [warning[:45] for warning in found.warnings] == ["user: floats that have lost their last digits"]


def test_a_plus_and_a_minus_are_labels(inspect: Inspect) -> None:
    clicks = clicks_by(np.arange(ROWS) % 7 - 3.0)
    found = inspect({
        "click": ["+" if click else "-" for click in clicks],
        "price": [str(n % 90 + 0.5) if n % 9 else "-" for n in range(ROWS)],
        "seat": [f"s{n % 7}" for n in range(ROWS)],
    })  # fmt: skip
    assert found.label is not None and found.label.tolist() == clicks
    assert yaml.safe_load(found.recipe)["source"]["label"] == {"column": "click", "equals": ["+"]}
    assert "-" not in yaml.safe_load(found.recipe)["source"].get("null_values", []), "it is a label"
    assert found.can_run


@pytest.mark.parametrize(("odd", "role"), [(1, "weight"), (200, "feature")])
def test_odd_cells_of_weights(inspect: Inspect, odd: int, role: str) -> None:
    weights = ["heavy"] * odd + ["1", "2.5", "0"] * ROWS
    found = inspect({"seat": [f"s{n % 7}" for n in range(ROWS)], "weight": weights[:ROWS]})
    assert decision(found, "weight").role == role
    warning = (
        "weight: is named as a weight, but 5.0% of the rows have no number"
        if role == "feature"
        else "1 of 4,000 rows are"
    )
    assert len(found.warnings) == 1 and found.warnings[0].startswith(warning)


def test_null_words_stand_in_the_recipe(inspect: Inspect) -> None:
    found = inspect({"price": [1.5, 2.5, "NA", 4] * 100})
    assert yaml.safe_load(found.recipe)["source"]["null_values"] == ["", "NA"]


def test_figures_are_json(inspect: Inspect) -> None:
    found = inspect({"shop": np.arange(ROWS) % 9, "price": np.random.default_rng(0).random(ROWS)})
    columns = json.loads(json.dumps(found.columns_as_json()))
    assert [column["name"] for column in columns] == ["shop", "price", "click"]
    assert columns[0]["distinct"] == 9
    assert set(columns[0]["auc"]) == {"number", "ranges", "category"}


def test_rows_are_streamed_once_they_are_too_large(inspect: Inspect, monkeypatch: pytest.MonkeyPatch) -> None:
    """What all rows take as numbers decides, of which a vector has many."""
    monkeypatch.setattr(recipe_text, "_MOST_IN_MEMORY", 4 * ROWS * 50)
    for width, is_held in ((20, True), (70, False)):
        columns = {"shop": np.arange(ROWS) % 9, "embedding": [";".join(["0.25"] * width)] * ROWS}
        recipe = inspect(columns).recipe
        assert yaml.safe_load(recipe)["train"]["ingest"] == {"in_memory": is_held}
        assert "KiB would be streamed" in recipe


@pytest.mark.parametrize("rows", [8, 12, 40, 76, 100])
def test_few_rows_fill_a_batch(rows: int) -> None:
    for model in ("wide_deep", "dlrm", "dcnv2"):
        (batch,) = re.findall(r"global_batch_size: ([0-9]+)", recipe_text.starting_point(model, rows, 2, 2.0))
        assert rows / 4 <= int(batch) <= rows / 2
