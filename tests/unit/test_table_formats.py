"""Tables as text, JSON lines and Parquet: the same rows, types that do not depend on chunks, what is set aside."""

import csv
import datetime as dt
import gzip
import json
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rayrec.common.errors import UserError
from rayrec.config.table import FileFormat, LabelCondition
from rayrec.features.raw_columns import ListLength, RawColumn
from rayrec.inspection.table.file_form import first_with_rows
from rayrec.inspection.table.inspected_table import inspect_table
from rayrec.raw.input_files import list_inputs
from rayrec.raw.json_lines import JsonLinesLayout
from rayrec.raw.rows import Reason, RowTypes
from rayrec.raw.sample import sample_rows
from rayrec.raw.table_reader import open_table
from tests.table_files import raw_columns, read_table

Rows = list[dict[str, Any]]


def write_delimited(path: Path, rows: Rows, separator: str, quoting: int) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter=separator, lineterminator="\n", quoting=quoting)  # type: ignore[arg-type]
        writer.writerow(rows[0])
        for row in rows:
            values = (json.dumps(v) if isinstance(v, bool) else v for v in (row[name] for name in rows[0]))
            writer.writerow(" ".join(map(str, v)) if isinstance(v, list) else v for v in values)


def write_json(path: Path, rows: Rows) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=len(rows) % 2 == 0) + "\n" for row in rows))


def write_parquet(path: Path, rows: Rows) -> None:
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=3)


WRITERS: dict[str, Callable[[Path, Rows], None]] = {
    "csv": lambda path, rows: write_delimited(path, rows, ",", csv.QUOTE_ALL),
    "tsv": lambda path, rows: write_delimited(path, rows, "\t", csv.QUOTE_MINIMAL),
    "jsonl": write_json,
    "parquet": write_parquet,
}

TEXT = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\n\r"), min_size=1, max_size=8)
TABLE_COLUMNS: tuple[tuple[RawColumn, st.SearchStrategy[Any]], ...] = (
    (RawColumn(name="text", type="text"), TEXT),
    (RawColumn(name="code", type="text"), st.integers(-(2**63), 2**63 - 1)),
    (RawColumn(name="007", type="text"), st.from_regex(r"\A0[0-9]{1,4}\Z")),
    (RawColumn(name="integer", type="integer"), st.integers(-(2**63), 2**63 - 1)),
    (RawColumn(name="number", type="number"), st.floats(allow_nan=False)),
    (RawColumn(name="flag", type="number"), st.integers(0, 1)),
    (RawColumn(name="is on", type="text"), st.booleans()),
    (RawColumn(name="time", type="time"), st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31)).map(str)),
    (RawColumn(name="words", type="texts", separator=" "), st.lists(st.sampled_from(["a", "b,", '"c"']), min_size=1)),
    (RawColumn(name="ids", type="integers", separator=" "), st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1)),
)
ROW = st.fixed_dictionaries(
    {"label": st.sampled_from([0, 1])} | {raw.name: st.none() | values for raw, values in TABLE_COLUMNS}
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(st.lists(ROW, min_size=1, max_size=12), st.integers(100, 2_000))
def test_a_table_reads_the_same_from_every_format(tmp_path: Path, rows: Rows, chunk_bytes: int) -> None:
    columns = [raw for raw, _ in TABLE_COLUMNS]
    found = {}
    for suffix, write in WRITERS.items():
        path = tmp_path / f"rows.{suffix}"
        write(path, rows)
        table = read_table(path, columns, "label", chunk_bytes=chunk_bytes)
        assert table.rejected == []
        found[suffix] = table.rows
    expected = [
        row
        | {
            "text": (row["text"] or "").strip() or None,
            "code": None if row["code"] is None else str(row["code"]),
            "flag": None if row["flag"] is None else float(row["flag"]),
            "is on": None if row["is on"] is None else str(row["is on"]).lower(),
            "time": row["time"] and dt.datetime.fromisoformat(row["time"]).replace(tzinfo=dt.UTC),
        }
        for row in rows
    ]
    for suffix, table_rows in found.items():
        assert table_rows == expected, suffix


ROWS: Rows = [
    {"label": i % 2, "x": i - 3, "y": f"ä{i},", "z": None if i % 3 else i / 4, "w": ["a"] * (i % 3)} for i in range(3)
]


@pytest.mark.parametrize(
    ("suffix", "packing"),
    [*((suffix, "plain") for suffix in WRITERS), ("csv", "gzip"), ("tsv", "zstd"), ("jsonl", "zstd")],
)
def test_every_border_between_chunks_gives_the_same_rows(suffix: str, packing: str, tmp_path: Path) -> None:
    path = tmp_path / f"rows.{suffix}"
    WRITERS[suffix](path, ROWS)
    if packing != "plain":
        text = path.read_bytes()
        path.unlink()
        path = path.with_name(f"{path.name}.{packing}")
        path.write_bytes(gzip.compress(text) if packing == "gzip" else pa.compress(text, "zstd", asbytes=True))
        path = path.rename(path.with_suffix(".gz" if packing == "gzip" else ".zst"))
    columns = [*raw_columns(x="integer", y="text", z="number"), RawColumn(name="w", type="texts", separator=" ")]
    expected = read_table(path, columns, "label")
    assert len(expected.rows) == len(ROWS) and expected.rows[1]["x"] == -2 and expected.rows[2]["y"] == "ä2,"
    # A packed file is one chunk; to open a Parquet file takes its time.
    step = {"plain": 53 if suffix == "parquet" else 1}.get(packing, 100)
    for chunk_bytes in range(1 if step == 1 else step // 2, path.stat().st_size + 2, step):
        found = read_table(path, columns, "label", chunk_bytes=chunk_bytes)
        assert found.rows == expected.rows
        assert found.places == expected.places


# JSON lines


JSON: dict[str, tuple[str, dict[str, Any] | tuple[Reason, str | None, str | None]]] = {
    # line; row, or reason, column and value; columns: text t, number n, integer i, texts l
    "plain": ('{"t": "a", "n": 1.5, "i": 2, "l": ["x"]}', {"t": "a", "n": 1.5, "i": 2, "l": ["x"]}),
    "keys missing": ("{}", {}),
    "nulls": ('{"t": null, "n": null, "l": null}', {}),
    "other keys": ('{"t": "a", "other": {"x": [1, {}]}}', {"t": "a"}),
    "spaces and escapes": ('  {"t":\t"\\u00e9\\n\\ud83d\\ude00"} ', {"t": "é\n😀"}),
    "integer as text": ('{"t": 9007199254740993}', {"t": "9007199254740993"}),
    "integer beyond 64 bits as text": ('{"t": 10000169349117863715}', {"t": "10000169349117863715"}),
    "leading zeros": ('{"t": "007", "i": "007"}', {"t": "007", "i": 7}),
    "whole float as text": ('{"t": 2.0, "i": 3.0}', {"t": "2", "i": 3}),
    "boolean as text and number": ('{"t": true, "n": true}', {"t": "true", "n": 1.0}),
    "integer beyond 2^53": ('{"i": 9007199254740993}', {"i": 9007199254740993}),
    "number as text": ('{"n": "1.5"}', {"n": 1.5}),
    "integer as number": ('{"n": 2}', {"n": 2.0}),
    "huge number": ('{"n": 1e400}', {"n": math.inf}),
    "NaN": ('{"n": NaN}', {"n": math.nan}),
    "mixed list": ('{"l": ["a", null]}', {"l": ["a", None]}),
    "integers in a list of texts": ('{"l": [1, 2]}', {"l": ["1", "2"]}),
    "a key twice": ('{"t": "a", "t": "b"}', {"t": "b"}),
    "fraction as text": ('{"t": 1.50}', {"t": "1.5"}),
    "object as text": ('{"t": {"x": 1}}', (Reason.TEXT, "t", '{"x": 1}')),
    "list as number": ('{"n": [1]}', (Reason.NUMBER, "n", "[1]")),
    "word as number": ('{"n": "x"}', (Reason.NUMBER, "n", "x")),
    "fraction as integer": ('{"i": 1.5}', (Reason.INTEGER, "i", "1.5")),
    "integer beyond 64 bits": ('{"i": 9223372036854775808}', (Reason.INTEGER, "i", "9223372036854775808")),
    "text as list": ('{"l": "a"}', (Reason.VALUES, "l", "a")),
    "objects in a list": ('{"l": ["a", {}]}', (Reason.VALUES, "l", '["a", {}]')),
    "list": ('["a"]', (Reason.JSON, None, None)),
    "text": ("hello", (Reason.JSON, None, None)),
    "empty": ("", (Reason.JSON, None, None)),
    "cut": ('{"t": "a"', (Reason.JSON, None, None)),
    "two objects": ('{"t": "a"} {"t": "b"}', (Reason.JSON, None, None)),
    "number with leading zeros": ('{"i": 007}', (Reason.JSON, None, None)),
    "deep": ('{"t":' + "[" * 100_000, (Reason.JSON, None, None)),
    "half of a surrogate pair": ('{"t": "\\ud83d"}', (Reason.UTF8, None, None)),
    "latin-1": ('{"t": "\udce9"}', (Reason.UTF8, None, None)),
}
JSON_COLUMNS = raw_columns(t="text", n="number", i="integer", l="texts")


@pytest.mark.parametrize("name", JSON)
def test_json_line_among_others(name: str, tmp_path: Path) -> None:
    line, expected = JSON[name]
    path = tmp_path / "file.jsonl"
    plain = JSON["plain"][0]
    path.write_bytes("\n".join([plain, line, plain]).encode("utf-8", "surrogateescape"))
    found = read_table(path, JSON_COLUMNS)
    rows = [{k: v for k, v in row.items() if v is not None} for row in found.rows]
    if isinstance(expected, tuple):
        assert rows == [JSON["plain"][1]] * 2
        reason, column, value = expected
        assert found.reasons == [(2, str(reason), column, value)]
        assert (
            found.rejected[0]["text"]
            == line.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")[:10_000]
        )
    else:
        assert found.rejected == []
        assert repr(sorted(rows[1].items())) == repr(sorted(expected.items()))  # NaN does not equal itself


JSON_VALUES = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | TEXT
JSON_ROWS = st.lists(
    st.dictionaries(st.sampled_from("tnil"), JSON_VALUES | st.lists(JSON_VALUES, max_size=3)), min_size=1, max_size=6
)
HEADS = (pa.null(), pa.int64(), pa.float64(), pa.string(), pa.bool_(), pa.list_(pa.string()), pa.list_(pa.int64()))


@given(
    JSON_ROWS, st.sampled_from(HEADS), st.sampled_from(["text", "number", "integer", "texts", "integers", "numbers"])
)
def test_a_json_value_does_not_depend_on_the_rows_around_it(rows: Rows, head: pa.DataType, kind: str) -> None:
    types = RowTypes(tuple(raw_columns(**dict.fromkeys("tnil", kind))))
    layout = JsonLinesLayout(pa.schema([(name, head) for name in "tnil"]))
    other = JsonLinesLayout(pa.schema([("t", pa.string())]))
    lines = [f"{json.dumps(row)}\n".encode() for row in rows]

    def read(of: JsonLinesLayout, data: bytes) -> list[Any]:
        ((_, cells),) = of.parse(data, types.wanted)
        parsed = types.parse(cells)
        found = dict(zip(parsed.positions.tolist(), map(repr, parsed.rows.to_pylist()), strict=True))
        found |= {line: repr((row.reason, row.cell)) for line, row in parsed.rejected.items()}
        return [found[number] for number in range(parsed.num_lines)]

    alone = [read(layout, line)[0] for line in lines]
    assert read(layout, b"".join(lines)) == alone
    assert read(other, b"".join(lines)) == alone


def test_json_columns_and_their_types_are_those_of_the_first_lines(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text(
        '{"i": 1, "n": 1, "t": "a", "m": 1, "b": true, "o": {"x": 1}, "l": [1], "e": null}\n'
        'no object\n{"n": 2.5, "m": "x", "l": [1.5], "late": [], "big": 9223372036854775808}\n'
    )
    table = open_table(list_inputs([str(path)]), FileFormat())
    expected: dict[str, pa.DataType] = {
        "i": pa.int64(),
        "n": pa.float64(),
        "t": pa.string(),
        "m": pa.string(),
        "b": pa.bool_(),
        "o.x": pa.int64(),
        "l": pa.list_(pa.float64()),
        "e": pa.null(),
        "late": pa.list_(pa.null()),
        "big": pa.string(),
    }
    assert table.columns == pa.schema(expected)


def test_json_as_pandas_reads_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "i": rng.integers(-(2**60), 2**60, 5_000),
            "n": rng.standard_normal(5_000),
            "t": rng.choice(["a", "bé"], 5_000),
        }
    )
    path = tmp_path / "file.ndjson"
    rows = frame.to_dict("records")
    lines = [json.dumps(row) for row in rows]
    # Odd lines, of which Arrow cannot read the first and must not read the second, slow down few others.
    lines[1_000], lines[4_990] = lines[1_000].replace('"t"', '"t": 0, "t"'), "{"
    path.write_text("\n".join(lines))
    for chunk_bytes in (50_000, 2**20):
        found = read_table(path, raw_columns(i="integer", n="number", t="text"), chunk_bytes=chunk_bytes)
        assert found.rows == rows[:4_990] + rows[4_991:]
        assert found.reasons == [(4_991, str(Reason.JSON), None, None)]


WEIGHED = (
    RawColumn(name="tags", type="texts", separator="|"),
    RawColumn(name="weights", type="numbers", separator="|"),
)


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl", "rows.parquet"])
def test_weights_of_lists(tmp_path: Path, name: str) -> None:
    """A row whose weights are no numbers from 0 on, one for each value, is set aside."""
    rows: list[tuple[list[str] | None, list[float | None] | None]] = [
        (["a", "b"], [0.5, 0.0]),
        (["a", "b"], None),
        (None, None),
        (["a"], [1e-320]),
        (["a", "b"], [0.5]),
        (None, [0.5]),
        (["a"], [-1.0]),
        (["a", "b"], [1.0, None]),
        (["a"], [1e300]),
    ]
    text = [",".join("|".join("" if v is None else str(v) for v in of or ()) for of in row) for row in rows]
    table = pa.table({"tags": [tags for tags, _ in rows], "weights": [weights for _, weights in rows]})
    match Path(name).suffix:
        case ".csv":
            (tmp_path / name).write_text("\n".join(["tags,weights", *text]))
        case ".jsonl":
            write_json(tmp_path / name, table.to_pylist())
        case ".parquet":
            pq.write_table(table, tmp_path / name)
    lengths = [ListLength("weights", "tags"), ListLength("elsewhere", "tags")]
    found = read_table(tmp_path / name, WEIGHED, list_lengths=lengths)
    assert found.rows == table.to_pylist()[:4]
    first = 6 if name.endswith(".csv") else 5
    assert [reason[:3] for reason in found.reasons] == [(first + n, str(Reason.WEIGHTS), "weights") for n in range(5)]
    assert found.reasons[2][3] in ("-1.0", "[-1.0]")


# Parquet


PARQUET: dict[str, tuple[pa.Array, str, list[Any]]] = {
    "integers with gaps": (pa.array([2**60 + 1, None]), "integer", [2**60 + 1, None]),
    "small integers as texts": (pa.array([7, None], pa.int8()), "text", ["7", None]),
    "decimals": (pa.array([Decimal("1.50"), None]), "number", [1.5, None]),
    "floats of pandas": (pa.array([1.0, math.nan]), "integer", [1, None]),
    "dictionary": (pa.array(["a", None]).dictionary_encode(), "text", ["a", None]),
    "large text": (pa.array(["é", None], pa.large_string()), "text", ["é", None]),
    "booleans": (pa.array([True, None]), "number", [1.0, None]),
    "dates": (pa.array([dt.date(2024, 1, 2), None]), "time", [dt.datetime(2024, 1, 2, tzinfo=dt.UTC), None]),
    "times": (
        pa.array([1_700_000_000_000_000_000, None], pa.timestamp("ns")),
        "time",
        [dt.datetime(2023, 11, 14, 22, 13, 20, tzinfo=dt.UTC), None],
    ),
    "lists": (pa.array([["a", None], None]), "texts", [["a", None], None]),
    "vectors": (pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2)), "numbers", [[1.0, 2.0], None]),
    "nothing": (pa.nulls(2), "number", [None, None]),
}


@pytest.mark.parametrize("name", PARQUET)
def test_parquet_types(name: str, tmp_path: Path) -> None:
    values, kind, expected = PARQUET[name]
    path = tmp_path / "file.parquet"
    pq.write_table(pa.table({"unread": [b"", b""], "x": values}), path)
    found = read_table(path, raw_columns(x=kind))
    assert [row["x"] for row in found.rows] == expected and found.rejected == []


def test_bad_values_of_parquet_name_row_column_and_value(tmp_path: Path) -> None:
    path = tmp_path / "file.parquet"
    pq.write_table(pa.table({"label": [0, 1, 2, None], "x": ["1", "word", "2", "3"]}), path, row_group_size=1)
    found = read_table(path, raw_columns(x="integer"), "label", chunk_bytes=30)
    assert found.rows == [{"label": 0.0, "x": 1}]
    assert found.reasons == [
        (2, str(Reason.INTEGER), "x", "word"),
        (3, str(Reason.LABEL), "label", "2"),
        (4, str(Reason.NO_LABEL), "label", ""),
    ]
    assert found.rejected[0]["text"] == "{'label': 1, 'x': 'word'}"


def test_types_of_files_may_differ(tmp_path: Path) -> None:
    parts = [pa.array([1, None]), pa.array([2.0, math.nan]), pa.array(["3", ""]), pa.array([4], pa.int8())]
    for number, part in enumerate(parts):
        pq.write_table(pa.table({"x": part}), tmp_path / f"{number}.parquet")
    (tmp_path / "4.csv").write_text("x\n5\n")
    paths = sorted(tmp_path.iterdir())
    assert open_table(list_inputs(map(str, paths[:2])), FileFormat()).columns == pa.schema([("x", pa.float64())])
    assert open_table(list_inputs(map(str, paths)), FileFormat()).columns == pa.schema([("x", pa.string())])
    found = read_table(paths, raw_columns(x="integer"))
    assert [row["x"] for row in found.rows] == [1, None, 2, None, 3, None, 4, 5]


@pytest.mark.parametrize("kind", [".csv", ".csv.gz", ".json", ".jsonl.gz", ".parquet"])
def test_files_without_rows_are_said_and_nothing_else(tmp_path: Path, kind: str) -> None:
    """As Spark writes them: empty, or with a header alone, and beside them files that are no parts."""
    frame = pd.DataFrame({"a": ["x", "y"], "b": [1, 2]})

    def write(part: str, rows: pd.DataFrame) -> None:
        path = tmp_path / f"{part}{kind}"
        if kind == ".parquet":
            rows.to_parquet(path)
        elif "csv" in kind:
            rows.to_csv(path, index=False)
        else:
            rows.to_json(path, orient="records", lines=True)

    write("part-1", frame[:0])
    write("part-2", frame)
    write("part-4", frame)
    (tmp_path / f"part-0{kind}").write_bytes(gzip.compress(b"\n") if kind.endswith(".gz") else b"")
    (tmp_path / f"part-3{kind}").touch()
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".part-2.crc").write_bytes(b"\0crc")
    files = list_inputs([str(tmp_path)])
    sample = sample_rows(files, FileFormat(), 100, 0)
    assert sample.rows.to_pydict()["a"] == ["x", "y"] * 2 and not sample.unreadable
    assert sample.table.warnings == (f"3 of 5 files have no rows, such as {files[0].name}",)
    assert first_with_rows(files).base_name == f"part-2{kind}" or kind == ".parquet"
    for number in (2, 4):
        (tmp_path / f"part-{number}{kind}").write_bytes(b"")
    with pytest.raises(UserError, match=r"no rows|empty"):
        inspect_table([str(tmp_path)], None, None, 100, "")


def test_an_index_that_pandas_wrote_is_no_column(tmp_path: Path) -> None:
    pd.DataFrame({"x": [1, 2]}, index=[7, 3]).to_parquet(tmp_path / "a.parquet")
    assert open_table(list_inputs([str(tmp_path / "a.parquet")]), FileFormat()).columns.names == ["x"]


def test_a_packed_parquet_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.parquet.gz").write_bytes(gzip.compress(b"x"))
    with pytest.raises(UserError, match=r"a\.parquet\.gz: a Parquet file inside a gzip file; unpack it"):
        open_table(list_inputs([str(tmp_path / "a.parquet.gz")]), FileFormat())


def test_damage_inside_a_parquet_file(tmp_path: Path) -> None:
    path = tmp_path / "file.parquet"
    pq.write_table(pa.table({"x": np.random.default_rng(0).random(10_000)}), path)
    data = path.read_bytes()
    path.write_bytes(data[:4] + b"\xff" * 1_000 + data[1_004:])
    with pytest.raises(UserError, match=r"file\.parquet: damaged Parquet file") as error:
        read_table(path, raw_columns(x="number"))
    assert "\n" not in str(error.value)


# Labels, weights, and columns that need a value


LABELS: dict[str, tuple[list[Any], list[float | None]]] = {
    "integers": ([0, 1, 2, -1, None], [0, 1, None, None, None]),
    "floats": ([0.0, 1.0, 0.5, None], [0, 1, None, None]),
    "booleans": ([False, True, None], [0, 1, None]),
    "texts": (
        ["0", " 1", "0.0", "1.00", "true", "False ", "YES", "n", "", "maybe", "-1"],
        [0, 1, 0, 1, 1, 0, 1, 0, None, None, None],
    ),
}


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("name", LABELS)
def test_labels(name: str, suffix: str, tmp_path: Path) -> None:
    values, expected = LABELS[name]
    path = tmp_path / f"file.{suffix}"
    WRITERS[suffix](path, [{"label": value, "x": number} for number, value in enumerate(values)])
    found = read_table(path, raw_columns(x="integer"), "label")
    assert found.rows == [{"label": v, "x": i} for i, v in enumerate(expected) if v is not None]
    header = suffix == "csv"
    shown = ["" if v is None else json.dumps(v) if isinstance(v, bool) else str(v) for v in values]
    assert found.reasons == [
        (i + 1 + header, str(Reason.LABEL if shown[i] else Reason.NO_LABEL), "label", shown[i])
        for i, v in enumerate(expected)
        if v is None
    ]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_labels_of_rows_that_have_none(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"file.{suffix}"
    WRITERS[suffix](path, [{"y": v, "n": n} for v, n in [("1", 5.0), (None, None), ("0", 3.0), ("4", 1.5)]])
    for condition, labels in (
        (LabelCondition(column="y", missing=0), [1.0, 0.0, 0.0]),
        (LabelCondition(column="y", equals=("4.0",), missing=1), [0.0, 1.0, 0.0, 1.0]),
        (LabelCondition(column="n", at_least=3, missing=0), [1.0, 0.0, 1.0, 0.0]),
    ):
        assert [row[condition.column] for row in read_table(path, [], condition).rows] == labels


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_labels_by_a_condition(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"file.{suffix}"
    WRITERS[suffix](path, [{"rating": v, "kind": k} for v, k in [(3.5, "a"), (4.0, "b"), (None, "c"), (5.0, None)]])
    line = 3 + (suffix == "csv")
    found = read_table(path, [], LabelCondition(column="rating", at_least=4))
    assert found.rows == [{"rating": 0.0}, {"rating": 1.0}, {"rating": 1.0}]
    assert found.reasons == [(line, str(Reason.NO_LABEL), "rating", "")]
    found = read_table(path, raw_columns(rating="number"), LabelCondition(column="kind", equals=("b", "c")))
    assert [row["kind"] for row in found.rows] == [0.0, 1.0, 1.0]
    assert found.reasons == [(line + 1, str(Reason.NO_LABEL), "kind", "")]


def test_condition_on_a_column_of_words(tmp_path: Path) -> None:
    path = tmp_path / "file.csv"
    path.write_text("rating\n4\nfive\n")
    found = read_table(path, [], LabelCondition(column="rating", at_least=4))
    assert found.rows == [{"rating": 1.0}]
    assert found.reasons == [(3, str(Reason.NUMBER), "rating", "five")]


def test_weights_and_columns_that_need_a_value(tmp_path: Path) -> None:
    path = tmp_path / "file.csv"
    path.write_text("w,k\n1.5,a\n0,b\n-1,c\n,d\ninf,e\nx,f\n2,\n")
    found = read_table(path, raw_columns(w="number", k="text"), weight="w", required=["k"])
    assert found.rows == [{"w": 1.5, "k": "a"}, {"w": 0.0, "k": "b"}]
    weight, number = str(Reason.WEIGHT), str(Reason.NUMBER)
    assert found.reasons == [
        (4, weight, "w", "-1"),
        (5, weight, "w", ""),
        (6, weight, "w", "inf"),
        (7, number, "w", "x"),
        (8, str(Reason.KEY), "k", ""),
    ]


def test_a_misspelt_column(tmp_path: Path) -> None:
    path = tmp_path / "file.csv"
    path.write_text("click,user\n")
    table = open_table(list_inputs([str(path)]), FileFormat())
    with pytest.raises(UserError, match=r"file\.csv: no column 'clicks'; did you mean 'click'\?"):
        table.reader([], "clicks")
    with pytest.raises(UserError, match=r"file\.csv: no column 'x'; it has click, user"):
        table.reader(raw_columns(x="text"))


@pytest.mark.parametrize("rows", [3, 100_000])
@pytest.mark.parametrize(
    "form",
    [
        lambda cells: {name: dict(enumerate(cells)) for name in ("a", "b")},
        lambda cells: {row: {"a": row, "b": row} for row in cells},
        lambda cells: {name: list(cells) for name in ("a", "b")},
        lambda cells: {"columns": ["a", "b"], "index": list(cells), "data": [[cell, cell] for cell in cells]},
    ],
    ids=["columns", "index", "list", "split"],
)
@pytest.mark.parametrize("indent", [None, 1])
def test_json_of_whole_columns_is_refused(
    tmp_path: Path, form: Callable[[Sequence[int]], Any], rows: int, indent: int | None
) -> None:
    """As pandas writes it, unless it is told to write a row a line."""
    path = tmp_path / "table.json"
    path.write_text(json.dumps(form(range(rows)), indent=indent))
    with pytest.raises(UserError, match="one JSON object of whole columns"):
        open_table(list_inputs([str(path)]), FileFormat())
