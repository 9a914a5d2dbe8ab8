"""The rows that a dataset keeps: how values are written, which are left out, and the same ones always."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rayrec.features.raw_columns import RawColumn
from rayrec.ingest.held_out_rows import held_out_rows, read_held_out_rows, write_held_out_rows

NAN = float("nan")
MOMENT = datetime(2024, 7, 1, 22, 30, 5, 250_000, tzinfo=UTC)
VALUES: dict[str, tuple[RawColumn, Any, Any]] = {
    "whole": (RawColumn(name="x", type="number"), 3.0, 3),
    "decimal": (RawColumn(name="x", type="number"), 0.1, 0.1),
    "no number": (RawColumn(name="x", type="number"), NAN, None),
    "infinite": (RawColumn(name="x", type="number"), float("inf"), None),
    "beyond exact": (RawColumn(name="x", type="number"), 2.0**60, 2.0**60),
    "id": (RawColumn(name="x", type="integer"), 2**60, 2**60),
    "text": (RawColumn(name="x", type="text"), "Wien", "Wien"),
    "missing": (RawColumn(name="x", type="text"), None, None),
    "list": (RawColumn(name="x", type="numbers"), [1.0, 0.5], [1, 0.5]),
    "iso": (RawColumn(name="x", type="time"), MOMENT, "2024-07-01T22:30:05.250000+00:00"),
    "seconds": (RawColumn(name="x", type="time", time_format="s"), MOMENT, 1_719_873_005),
    "milliseconds": (RawColumn(name="x", type="time", time_format="ms"), MOMENT, 1_719_873_005_250),
    "a zone": (RawColumn(name="x", type="time", time_format="%y%m%d%H", zone="Europe/Vienna"), MOMENT, "24070200"),
}


@pytest.mark.parametrize("case", VALUES)
def test_values_are_written_as_a_request_gives_them(case: str) -> None:
    column, value, expected = VALUES[case]
    rows = pa.table({"x": pa.array([value], column.arrow), "label": [1.0]})
    (row,) = held_out_rows("test", rows, [column], "label").rows
    assert row == ({} if expected is None else {"x": expected})


def test_labels_ranges_and_long_texts(tmp_path: Path) -> None:
    rows = pa.table(
        {
            "n": pa.array([1.0, None, NAN, float("inf"), -4.5]),
            "empty": pa.array([None] * 5, pa.float64()),
            "text": ["a", "b", "c" * 2_000, "d", "e"],
            "label": pa.array([1, NAN, 0, None, 0], pa.float32()),
        }
    )
    columns = [RawColumn(name=name, type="number") for name in ("n", "empty")] + [RawColumn(name="text", type="text")]
    found = held_out_rows("test", rows, columns, "label")
    assert [row["text"] for row in found.rows] == ["a", "b", "d", "e"]
    assert found.labels == (1.0, None, None, 0.0)
    assert found.ranges == {"n": (-4.5, 1.0)}
    write_held_out_rows(tmp_path, {"test": found.model_copy(update={"rows": found.rows[:2]})})
    assert read_held_out_rows(tmp_path)["test"].rows == found.rows[:2]
    assert read_held_out_rows(tmp_path / "other") == {}


def test_rows_are_from_all_over_and_always_the_same() -> None:
    rows = pa.table({"n": np.arange(4_000.0), "label": np.zeros(4_000)})
    found = held_out_rows("test", rows, [RawColumn(name="n", type="number")], "label")
    assert [row["n"] for row in found.rows] == [500 * place for place in range(8)]
    assert found.looked_at == 4_000
