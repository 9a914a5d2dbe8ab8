"""Objects within rows: their fields are columns, the same from JSON, Parquet and requests."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rayrec.common.errors import UserError
from rayrec.config.table import FileFormat
from rayrec.config.transforms import Hash
from rayrec.features.raw_columns import RawColumn
from rayrec.features.schema import CategoricalFeature, NumericFeature, Schema, VectorFeature
from rayrec.inference.raw_rows import RawRows
from rayrec.raw.input_files import list_inputs
from rayrec.raw.table_reader import open_table
from tests.table_files import raw_columns, read_table

Rows = list[dict[str, Any]]
WRITERS: dict[str, Callable[[Path, Rows], object]] = {
    "rows.jsonl": lambda path, rows: path.write_text("".join(json.dumps(row) + "\n" for row in rows)),
    "rows.json": lambda path, rows: path.write_text(json.dumps(rows, indent=1)),
    "rows.parquet": lambda path, rows: pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=2),
}
TYPES = {"id": "number", "user.name": "text", "user.geo.at": "numbers", "user.geo.x.y": "number", "a.b": "number"}
COLUMNS = raw_columns(**TYPES)
SOME = st.none() | st.integers(-9, 9)
GEO = st.none() | st.fixed_dictionaries(
    {
        "at": st.none() | st.lists(st.sampled_from([0.5, 1.5]), min_size=1, max_size=1),
        "x.y": st.none() | st.sampled_from([0.25, 2.5]),
    }
)
ROWS = st.fixed_dictionaries(
    {
        "id": st.integers(0, 9),
        "user": st.none() | st.fixed_dictionaries({"name": st.none() | st.sampled_from("ab"), "geo": GEO}),
        "a.b": SOME,
    }
)
WHOLE = {"id": 0, "user": {"name": "n", "geo": {"at": [0.5], "x.y": 0.5}}, "a.b": 0}


def flat(row: dict[str, Any]) -> dict[str, Any]:
    user = row["user"] or {}
    geo = user.get("geo") or {}
    values = (row["id"], user.get("name"), geo.get("at"), geo.get("x.y"), row["a.b"])
    return dict(zip(TYPES, values, strict=True))


@given(st.lists(ROWS, max_size=6), st.integers(20, 300))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_fields_of_objects_are_columns(tmp_path: Path, rows: Rows, chunk_bytes: int) -> None:
    rows = [*rows, WHOLE]  # in it every field has a type
    for name, write in WRITERS.items():
        write(tmp_path / name, rows)
        files = list_inputs([str(tmp_path / name)])
        assert sorted(open_table(files, FileFormat()).columns.names) == sorted(TYPES)
        found = read_table(tmp_path / name, COLUMNS, chunk_bytes=chunk_bytes)
        assert found.rows == [flat(row) for row in rows] and not found.rejected
    requested = raw_rows().from_rows(rows)
    assert requested.to_pylist() == [flat(row) for row in rows]
    assert requested.equals(raw_rows().from_rows([flat(row) for row in rows]))


def raw_rows() -> RawRows:
    schema = Schema(
        label="label",
        features=(
            *(NumericFeature(name=f"f{n}", inputs=(name,)) for n, name in enumerate(TYPES) if TYPES[name] == "number"),
            CategoricalFeature(
                name="name", inputs=("user.name",), transforms=(Hash(buckets=9, of="strings"),), cardinality=9
            ),
            VectorFeature(name="at", inputs=("user.geo.at",), size=1),
        ),
        columns=tuple(COLUMNS),
    )
    return RawRows(schema)


def test_objects_that_the_first_rows_do_not_have(tmp_path: Path) -> None:
    """A field that comes late is a column; one where others have an object is read in each row as it is."""
    path = tmp_path / "rows.jsonl"
    rows: Rows = [{"id": n, "user": {"age": n}} for n in range(2_000)]
    rows[1_500] |= {"device": {"os": "a"}, "user": 5}
    WRITERS["rows.jsonl"](path, rows)
    columns = [RawColumn(name="user.age", type="integer"), RawColumn(name="device.os", type="text")]
    assert open_table(list_inputs([str(path)]), FileFormat()).columns.names == ["id", "user.age", "device.os"]
    other = tmp_path / "other.jsonl"
    WRITERS["rows.jsonl"](other, [{"id": 0, "user": {"age": 7}, "device": {"os": "b"}}])
    found = read_table([path, other], columns).rows
    expected = [{"user.age": n, "device.os": None} for n in range(2_000)] + [{"user.age": 7, "device.os": "b"}]
    expected[1_500] = {"user.age": None, "device.os": "a"}
    assert found == expected


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"user": {"nam": "x"}}, r"row 0: .*'user\.nam'.*user\.name"),
        ({"user": 5}, "row 0: unknown feature 'user'"),
        ({"usr": None}, "row 0: unknown feature 'usr'"),
        ({"usr": {}}, "row 0: unknown feature 'usr'"),
        ({"user": {"nam": {}}}, r"row 0: .*'user\.nam'.*user\.name"),
        ({"user": {"name": {}}}, r"row 0, .*'user\.name'"),
        ({"id": {"of": 1}}, "row 0, .*'id'"),
    ],
)
def test_a_request_with_an_object_of_other_fields(row: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        raw_rows().from_rows([row])


def test_an_object_without_fields_has_missing_values() -> None:
    assert raw_rows().from_rows([{"user": {}}]) == raw_rows().from_rows([{}])
    with pytest.raises(UserError, match="row 1: the number 5"):
        raw_rows().from_rows([{"user": {"name": "x"}}, 5])  # type: ignore[list-item]
