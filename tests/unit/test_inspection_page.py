"""What `rayrec inspect --page` shows of a raw table: alerts, label rates and drift, with a label or without."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import rayrec
from rayrec.common.errors import ConfigError, UserError
from tests.unit.test_inspected_tables import ROWS, UNTIDY

COUNT = 4_000


def flights(rng: np.random.Generator) -> dict[str, Any]:
    """Columns with a known fault each."""
    delayed = (rng.random(COUNT) < 0.3).astype(int)
    day = np.sort(rng.integers(0, 90, COUNT))
    day[:400] = day[:400][::-1]
    gap = rng.random(COUNT) < 0.6
    return {
        "delayed": delayed,
        "departure": (np.datetime64("2024-01-01") + day).astype(str),
        "flight_id": np.arange(COUNT) + 10_000,
        "country": ["US"] * COUNT,
        "distance": rng.integers(100, 3_000, COUNT),
        "carrier": np.array(["UA", "AA", "B6"])[rng.integers(0, 3, COUNT)],
        "arrival_delay": np.where(delayed == 1, 30, 0) + rng.integers(0, 10, COUNT),
        "gate": [None if g else int(v) for g, v in zip(gap, rng.integers(1, 40, COUNT), strict=True)],
        "belt": [None if g else int(v) for g, v in zip(gap, rng.integers(1, 9, COUNT), strict=True)],
        "price": np.where(np.arange(COUNT) < COUNT / 2, 50, 500) + rng.integers(0, 40, COUNT),
    }


def page_of(tmp_path: Path, columns: dict[str, Any], **options: Any) -> dict[str, Any]:
    pa.csv.write_csv(pa.table(columns), tmp_path / "table.csv")
    rayrec.inspect(str(tmp_path / "table.csv"), page=tmp_path / "page.html", progress=False, **options)
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    figures: dict[str, Any] = json.loads((tmp_path / "page.json").read_text())
    return figures


def test_each_fault_is_found(tmp_path: Path) -> None:
    figures = page_of(tmp_path, flights(np.random.default_rng(1)), label="delayed")
    alerts = {(alert["kind"], alert["column"]) for alert in figures["alerts"]}
    assert alerts == {
        ("leak suspect", "arrival_delay"),
        ("like an id", "flight_id"),
        ("constant", "country"),
        ("missing", "gate"),
        ("missing", "belt"),
        ("order of time", "departure"),
        ("drift", "price"),
    }
    assert figures["with_label"][0]["name"] == "arrival_delay"
    for column in figures["columns"]:
        assert sum(cell["rows"] for cell in column["cells"]) == COUNT, column["name"]


def test_a_frequent_number_has_a_range_of_its_own(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    rain = np.where(rng.random(COUNT) < 0.95, 0.0, rng.random(COUNT).round(3) + 0.001)
    figures = page_of(
        tmp_path, {"y": rng.integers(0, 2, COUNT), "rain": rain, "b": rng.integers(0, 9, COUNT)}, label="y"
    )
    (cells,) = (column["cells"] for column in figures["columns"] if column["name"] == "rain")
    assert cells[0]["value"] == "0" and cells[0]["rows"] == (rain == 0).sum()
    assert len(cells) > 10 and sum(cell["rows"] for cell in cells) == COUNT


def test_rows_that_repeat_are_counted(tmp_path: Path) -> None:
    columns = {"y": [0, 1] * 300, "a": [0, 1] * 150 + list(range(2, 302)), "b": ["x"] * 299 + ["y"] * 301}
    figures = page_of(tmp_path, columns, label="y")
    assert figures["duplicates"] == 600 - len(set(zip(*columns.values(), strict=True)))
    assert "duplicates" in {alert["kind"] for alert in figures["alerts"]}


def test_a_rare_label_is_an_alert(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    columns = {"y": (np.arange(COUNT) % 250 == 0).astype(int), "a": rng.integers(0, 9, COUNT), "b": rng.random(COUNT)}
    assert ("skewed label", "y") in {(a["kind"], a["column"]) for a in page_of(tmp_path, columns, label="y")["alerts"]}


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_untidy_columns_have_a_page(tmp_path: Path, suffix: str) -> None:
    columns: dict[str, Any] = {"y": [0, 1, 0] * (ROWS // 3)}
    columns |= {name: [None if v is None else str(v) for v in values] for name, values in UNTIDY.items()}
    table = pa.table(
        {name: values if name == "y" else pa.array(values, pa.string()) for name, values in columns.items()}
    )
    file = tmp_path / f"table.{suffix}"
    pa.csv.write_csv(table, file) if suffix == "csv" else pq.write_table(table, file)
    rayrec.inspect(str(file), label="y", page=tmp_path / "page.html", progress=False)
    shown = json.loads((tmp_path / "page.json").read_text())["columns"]
    assert {column["name"] for column in shown} == set(columns)


def test_users_and_items_have_activity_and_popularity(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    columns = {
        "user_id": rng.integers(0, 200, COUNT), "item_id": (rng.pareto(1.0, COUNT) * 5).astype(int) % 300,
        "rating": rng.integers(1, 6, COUNT), "timestamp": 1_700_000_000 + np.arange(COUNT),
    }  # fmt: skip
    figures = page_of(tmp_path, columns)
    users, items = figures["interactions"]["user"], figures["interactions"]["item"]
    assert users["count"] == 200 and items["count"] == len(np.unique(columns["item_id"]))
    assert sum(row["share"] for row in users["rows"]) == pytest.approx(1)
    assert items["cumulated"]["of_rows"][-1] == pytest.approx(1)
    assert items["cumulated"]["of_rows"][0] == pytest.approx(items["most"] / COUNT)
    assert figures["label"] is None


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"page": "page.txt"}, ConfigError, "--page page.txt: the name of a page ends in .html"),
        ({"page": "page.html", "against": "data"}, ConfigError, "--page: nothing is written with --against"),
    ],
)
def test_mistakes_get_a_line(options: dict[str, str], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        paths: dict[str, Any] = {name: Path(value) for name, value in options.items()}
        rayrec.inspect("nowhere.csv", progress=False, **paths)


def test_a_page_is_never_written_over(tmp_path: Path) -> None:
    columns = flights(np.random.default_rng(1))
    page_of(tmp_path, columns, label="delayed")
    with pytest.raises(UserError, match=r"page.html: already exists"):
        page_of(tmp_path, columns, label="delayed")
