"""Numbers as people write them are the same numbers in files and requests as plain ones."""

import json
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayrec.common.errors import ConfigError, UserError
from rayrec.config.preprocess import HashSplitConfig
from rayrec.features.raw_columns import RawColumn
from rayrec.features.raw_values import read_column
from rayrec.features.text_forms import plain_numbers
from rayrec.inference.raw_rows import RawRows
from rayrec.ingest.dataset import Dataset
from rayrec.preprocessing.column_plan import plan_columns
from rayrec.preprocessing.engine import EmbeddedEngine
from rayrec.sources.registry import preprocessing
from tests.builders import make_recipe

ENGLISH, GERMAN = "1,234.5", "1.234,5"
WRITTEN: dict[str, tuple[str | None, str | None]] = {
    "1,234": ("1234", "1.234"),
    "1.234": ("1.234", "1234"),
    "1,234.50": ("1234.50", None),
    "1.234,50": (None, "1234.50"),
    "1,234,567": ("1234567", None),
    "12,34,567.8": ("1234567.8", None),
    "1 234,5": (None, "1234.5"),
    "1\u202f234\u00a0567": ("1234567", "1234567"),
    "1'234\u2019567.25": ("1234567.25", None),
    "\u20ac 3,20": (None, "3.20"),
    "3,20 EUR": (None, "3.20"),
    "US$5": ("5", "5"),
    "-$5": ("-5", "-5"),
    "$-5": ("-5", "-5"),
    "($5)": ("-5", "-5"),
    "$ (5)": ("-5", "-5"),
    "(45.00)": ("-45.00", None),
    "5-": ("-5", "-5"),
    "\u22125 kr": ("-5", "-5"),
    "12 %": ("12", "12"),
    "%12": ("12", "12"),
    "1,5E+03": (None, "1.5E+03"),
    ",5": (None, ".5"),
    "0,125": (None, "0.125"),
    "01.234": ("01.234", None),
    "1e5": ("1e5", "1e5"),
    "inf": ("inf", "inf"),
    **dict.fromkeys(["$", "x", "--5", "-5-", "(-5)", "+-5", "1,23,4", "12 kg", "1_000", "$5 %5"], (None, None)),
}  # fmt: skip


def test_numbers_are_written_plainly() -> None:
    for place, number_format in enumerate((ENGLISH, GERMAN)):
        for kind in (pa.string(), pa.large_string()):
            found = plain_numbers(pa.array([*WRITTEN, None], kind), number_format)  # type: ignore[arg-type]
            assert found.type == kind
            assert dict(zip(WRITTEN, found.to_pylist()[:-1], strict=True)) == {t: w[place] for t, w in WRITTEN.items()}


@given(
    st.decimals(-(10**9), 10**9, places=2),
    st.sampled_from(["", "$", "\u20ac ", "CHF "]),
    st.sampled_from(["", " %", " \u20ac"]),
    st.booleans(),
)
def test_any_number_is_read_as_it_was_written(number: Decimal, before: str, after: str, in_parentheses: bool) -> None:
    minus = number < 0
    for number_format, marks in ((ENGLISH, (",", ".")), (GERMAN, (".", ",")), (GERMAN, ("\u00a0", ","))):
        digits = f"{abs(number):,.2f}".translate(str.maketrans({",": marks[0], ".": marks[1]}))
        written = before + digits + after
        written = f"({written})" if minus and in_parentheses else f"-{written}" if minus else written
        raw = RawColumn.model_validate({"name": "x", "type": "number", "number_format": number_format})
        values, unreadable = read_column(pa.array([written]), raw)
        assert not unreadable.any() and values.to_pylist() == [float(number)], written


@pytest.mark.parametrize(
    ("type_", "given_", "expected"),
    [
        ("number", ["1.234,5", "1,5", "12.5", "", 7], [1234.5, 1.5, None, None, 7.0]),
        ("integer", ["1.234", "12,0", "1,5", None], [1234, 12, None, None]),
        ("text", ["1.234", "517,0", "517", "2,1250", 2.125, "v1.2"], ["1234", "517", "517", "2,125", "2,125", "v1.2"]),
        ("numbers", ["1,5|2,25", "1.000"], [[1.5, 2.25], [1000.0]]),
    ],
)
def test_every_type_of_column_has_them(type_: str, given_: list[Any], expected: list[Any]) -> None:
    settings = {"form": "number", "separator": "|" if type_ == "numbers" else None, "number_format": GERMAN}
    raw = RawColumn.model_validate({"name": "x", "type": type_, **settings})
    for value, wanted in zip(given_, expected, strict=True):
        values, unreadable = read_column(pa.array([value]), raw)
        assert values.to_pylist() == [wanted] and unreadable.any() == (wanted is None and value not in ("", None))


@given(st.sampled_from([ENGLISH, GERMAN]), st.lists(st.from_regex(r"[-(]?[$]?[0-9][0-9.,]{0,9}[%)]?", fullmatch=True)))
def test_texts_that_are_read_again_stay_as_they_are(number_format: str, texts: list[str]) -> None:
    raw = RawColumn.model_validate({"name": "x", "type": "text", "form": "number", "number_format": number_format})
    once, _ = read_column(pa.array(texts, pa.string()), raw)
    assert read_column(once, raw)[0].equals(once)


SOURCE = {
    "kind": "table",
    "label": {"column": "sold", "at_least": 1000},
    "weight": "times",
    "features": [
        {"kind": "numeric", "columns": ["price", "share"], "transforms": ["standardize"]},
        {"kind": "numeric", "columns": "width", "number_format": "plain"},
        {"kind": "buckets", "columns": "price", "name": "range", "boundaries": [0, 1000, 2000]},
        {"kind": "categorical", "columns": ["item", "size"], "number_format": GERMAN},
        {"kind": "categorical", "columns": "site"},
        {"kind": "vector", "columns": "place", "size": 2, "separator": "|"},
    ],
}


def _table(rows: int = 200) -> dict[str, list[Any]]:
    rng = np.random.default_rng(5)
    return {
        "sold": rng.integers(0, 2_000, rows).astype(float).tolist(),
        "times": (rng.integers(1, 9, rows) / 2).tolist(),
        "price": rng.exponential(1_500, rows).round(2).tolist(),
        "share": rng.integers(0, 100, rows).tolist(),
        "width": rng.random(rows).round(3).tolist(),
        "item": rng.integers(1_000, 1_040, rows).tolist(),
        "size": (rng.integers(9, 40, rows) / 8).tolist(),
        "site": [f"1.{n}00" for n in rng.integers(0, 9, rows)],
        "place": rng.normal(size=(rows, 2)).round(2).tolist(),
    }


def _german(number: float) -> str:
    return f"{number:,}".translate(str.maketrans(",.", ".,"))


WRITE = {
    "sold": lambda value: f"{_german(value)} \u20ac",
    "times": _german,
    "price": lambda value: f"\u20ac {_german(value)}",
    "share": lambda value: f"{value} %",
    "item": _german,
    "size": _german,
    "place": lambda value: "|".join(map(_german, value)),
}


def _as_people_write(table: dict[str, list[Any]]) -> list[dict[str, str]]:
    rows = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    return [{name: WRITE.get(name, str)(value) for name, value in row.items()} for row in rows]


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> list[Dataset]:
    """Return a dataset of plain numbers in Parquet, then of numbers as people write them in CSV and JSON lines."""
    folder, table = tmp_path_factory.mktemp("numbers"), _table()
    written = _as_people_write(table)
    pq.write_table(pa.table(table), folder / "rows.parquet")
    lines = [";".join(row) for row in (list(table), *(row.values() for row in written))]
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in written))
    found = []
    for name in ("rows.parquet", "rows.csv", "rows.jsonl"):
        source = {**SOURCE, "number_format": GERMAN, "separator": ";"}
        recipe = make_recipe(source=source, preprocess={"split": {"kind": "files"}, "frequency_limit": 1})
        output = folder / f"dataset-{name}"
        preprocessing(recipe, {"train": [str(folder / name)]}, output).run(EmbeddedEngine(2))
        found.append(Dataset.open(output))
    return found


def test_the_dataset_is_that_of_plain_numbers(datasets: list[Dataset]) -> None:
    first, *others = datasets
    rows = pq.read_table(first.folder / "train")
    assert rows.num_rows == 200 and first.schema.features[-1].columns == ("place",)
    for other in others:
        assert other.schema == first.schema
        assert pq.read_table(other.folder / "train").equals(rows)


def test_requests_may_have_numbers_or_texts(datasets: list[Dataset]) -> None:
    raw_rows, table = RawRows(datasets[1].schema), _table(20)
    del table["sold"], table["times"]
    plain = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    expected = raw_rows.from_rows(plain)
    assert expected.num_rows == 20
    assert raw_rows.from_batch(expected).equals(expected)
    written = _as_people_write(table)
    assert raw_rows.from_rows(written).equals(expected)
    assert raw_rows.from_batch(pa.Table.from_pylist(written).combine_chunks().to_batches()[0]).equals(expected)
    assert all(raw_rows.from_rows([row]).equals(expected.slice(at, 1)) for at, row in enumerate(written))
    with pytest.raises(
        UserError, match=r"row 0, 'price': the string '12.5'; needs a number \(or a text such as 1\.234,5\)"
    ):
        raw_rows.from_rows([{"price": "12.5"}])


def test_two_formats_of_a_column_are_refused() -> None:
    source = make_recipe(
        source={
            "kind": "table",
            "label": "y",
            "features": [
                {"kind": "numeric", "columns": "x"},
                {"kind": "buckets", "columns": "x", "name": "range", "quantiles": 4, "number_format": GERMAN},
            ],
        }
    ).source
    with pytest.raises(ConfigError, match=r"number with number_format '1.234,5' here and as .*'plain' in source.feat"):
        plan_columns(source, HashSplitConfig(test=0.1), ["x", "y"], {})  # type: ignore[arg-type]


def test_schemas_of_plain_numbers_do_not_name_a_format() -> None:
    assert "number_format" not in RawColumn(name="x", type="number").model_dump()
    assert RawColumn(name="x", type="number", number_format="1.234,5").model_dump()["number_format"] == GERMAN
