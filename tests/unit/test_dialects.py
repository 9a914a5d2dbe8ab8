"""One table in every dialect that programs write: `inspect` finds it, and its recipe reads the same rows."""

import bz2
import csv
import gzip
import io
import json
import lzma
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayrec.common.errors import UserError
from rayrec.config.table import FileFormat, TableSourceConfig
from rayrec.config.validation import parse_yaml
from rayrec.inspection.table.inspected_table import inspect_table
from rayrec.raw.input_files import list_inputs, plan_chunks
from rayrec.raw.table_reader import open_table
from rayrec.recipes import RecipeContent
from tests.table_files import raw_columns, read_table

COLUMNS = ("click", "site", "user", "price", "note")
NOTES = ("ok", "a, b", 'say "hi"', "naïve; é|x\tz", "", "two\nlines", "C:\\tmp")
PLAIN = ("ok", "b", "naïve", "")
Row = tuple[str, ...]


def table(notes: Sequence[str]) -> list[Row]:
    """Rows whose label follows from the site."""
    return [
        (str(n % 3 // 2), ("news", "game", "mail")[n * 7 % 3], str(1000 + n % 40), f"{n % 90}.5", notes[n % len(notes)])
        for n in range(240)
    ]


def delimited(separator: str = ",", end: str = "\n", **options: object) -> Callable[[Sequence[Row]], str]:
    def write(rows: Sequence[Row]) -> str:
        text = io.StringIO(newline="")
        csv.writer(text, delimiter=separator, lineterminator=end, **options).writerows([COLUMNS, *rows])  # type: ignore[arg-type]
        return text.getvalue()

    return write


def spark(rows: Sequence[Row]) -> str:
    """Fields of other characters than letters in quotes, and backslashes before quotes."""
    return "".join(
        ",".join(
            field if field.isalnum() else '"' + field.replace("\\", "\\\\").replace('"', '\\"') + '"' for field in row
        )
        + "\n"
        for row in (COLUMNS, *rows)
    )


def lines_of(rows: Sequence[Row], separator: str, begin: str = "", end: str = "") -> str:
    return "".join(f"{begin}{separator.join(row)}{end}\n" for row in rows)


DIALECTS: dict[str, tuple[Sequence[str], Callable[[Sequence[Row]], str | bytes]]] = {
    # notes of the rows; text of the rows
    "commas": (NOTES, delimited()),
    "semicolons": (NOTES, delimited(";")),
    "tabs": (NOTES, delimited("\t")),
    "bars": (NOTES, delimited("|")),
    "Hive": (PLAIN, delimited("\x01")),
    "carets": (PLAIN, delimited("^")),
    "double colons": (PLAIN, lambda rows: lines_of([COLUMNS, *rows], "::")),
    "blanks": (PLAIN[:3], delimited(" ")),
    "all in quotes": (NOTES, delimited(quoting=csv.QUOTE_ALL)),
    "CRLF": ([note for note in NOTES if "\n" not in note], delimited(end="\r\n")),
    "carriage returns": ([note for note in NOTES if "\n" not in note], delimited(end="\r")),
    "byte order mark": (NOTES, lambda rows: delimited()(rows).encode("utf-8-sig")),
    "Excel": (NOTES, lambda rows: f"sep=;\r\n{delimited(';')(rows)}".encode("utf-8-sig")),
    "Excel's text": (NOTES, lambda rows: delimited("\t")(rows).encode("utf-16")),
    "UTF-16 without a mark": (NOTES, lambda rows: delimited()(rows).encode("utf-16-be")),
    "Latin-1": (NOTES, lambda rows: delimited()(rows).encode("latin-1")),
    "Windows": (("ok", "10 €", "“x”"), lambda rows: delimited()(rows).encode("windows-1252")),
    "Latin-1 after many lines": (
        PLAIN,
        lambda rows: (
            delimited()([rows[0]] * 6_000).replace("naïve", "x") + lines_of(rows[:100], ",").replace("ï", "\xef")
        ).encode("latin-1"),
    ),
    "Spark": (NOTES, spark),
    "single quotes": (NOTES, delimited(quotechar="'", quoting=csv.QUOTE_ALL)),
    "comments": (NOTES, lambda rows: f"# exported by x, at 5\n#\n{delimited()(rows)}# 240 rows\n"),
    "comments of SQL": (PLAIN, lambda rows: f"-- exported\n{delimited(';')(rows)}"),
    "blank lines first": (NOTES, lambda rows: f"\n\n{delimited()(rows)}\n\n"),
    "a separator after each row": (PLAIN, lambda rows: lines_of([COLUMNS], ",") + lines_of(rows, ",", end=",")),
    "such separators, semicolons": (PLAIN, lambda rows: lines_of([COLUMNS], ";") + lines_of(rows, ";", end=";")),
    "a header in the middle": (NOTES, lambda rows: delimited()(rows[:120]) + delimited()(rows[120:])),
    "loose quotes": (("ok", 'a "b', "c"), lambda rows: lines_of([COLUMNS, *rows], "\t")),
}


def read_as_inspected(paths: Sequence[Path]) -> list[Row]:
    """Return the rows, with all columns as text, that a reader by the inspected recipe reads in several chunks."""
    inspected = inspect_table(list(map(str, paths)), "click", None, 100_000, "rayrec inspect")
    assert inspected.can_run
    recipe = RecipeContent("the recipe", {"name": "inspected", **parse_yaml(inspected.recipe)}).resolve()
    assert isinstance(recipe.source, TableSourceConfig)
    files = list_inputs(map(str, paths))
    opened = open_table(files, recipe.source)
    columns = raw_columns(**dict.fromkeys(opened.columns.names, "text"))
    rows = []
    for chunk in plan_chunks(files, 2_000):
        for block in opened.reader(columns).read(chunk):
            assert {row["reason"] for row in block.rejected.to_pylist()} <= {"header repeated"}
            rows += [tuple(value or "" for value in row.values()) for row in block.rows.to_pylist()]
    assert len(inspected.sample.rows) == len(rows)
    return rows


@pytest.mark.parametrize("name", DIALECTS)
def test_a_dialect_is_found_and_read(name: str, tmp_path: Path) -> None:
    notes, write = DIALECTS[name]
    rows = table(notes)
    text = write(rows)
    (tmp_path / "table.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    found = read_as_inspected([tmp_path / "table.csv"])
    assert found[-100:] == rows[:100] if name == "Latin-1 after many lines" else found == rows


def zipped(text: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("folder/member.csv", text)
        archive.writestr("__MACOSX/folder/._member.csv", b"\0")
    return file.getvalue()


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "zip": zipped,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda text: pa.compress(text, "zstd", asbytes=True),
}


@pytest.mark.parametrize("suffix", PACKED)
@pytest.mark.parametrize("name", ["commas", "Excel's text", "carriage returns", "Latin-1"])
def test_a_packed_dialect(suffix: str, name: str, tmp_path: Path) -> None:
    notes, write = DIALECTS[name]
    text = write(table(notes))
    path = tmp_path / f"table.csv.{suffix}"
    path.write_bytes(PACKED[suffix](text if isinstance(text, bytes) else text.encode()))
    assert read_as_inspected([path]) == table(notes)


def as_objects(rows: Sequence[Row]) -> list[dict[str, str | int | float | None]]:
    return [
        {"click": int(click), "site": site, "user": int(user), "price": float(price), "note": note or None}
        for click, site, user, price, note in rows
    ]


OBJECTS: dict[str, Callable[[Sequence[Row]], bytes]] = {
    "lines": lambda rows: "".join(f"{json.dumps(row)}\n" for row in as_objects(rows)).encode(),
    "array": lambda rows: json.dumps(as_objects(rows)).encode(),
    "array of lines": lambda rows: ("[\n" + ",\n".join(map(json.dumps, as_objects(rows))) + "\n]\n").encode(),
    "indented array": lambda rows: json.dumps(as_objects(rows), indent=2, ensure_ascii=False).encode("utf-8-sig"),
    "indented objects": lambda rows: "\n".join(json.dumps(row, indent=1) for row in as_objects(rows)).encode(),
    "UTF-16": lambda rows: json.dumps(as_objects(rows), indent=1, ensure_ascii=False).encode("utf-16"),
    "CRLF": lambda rows: json.dumps(as_objects(rows), indent=1).replace("\n", "\r\n").encode(),
}


@pytest.mark.parametrize("block_bytes", [50, 2**23])
@pytest.mark.parametrize("name", OBJECTS)
def test_objects(name: str, block_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rayrec.raw.json_lines.BLOCK_BYTES", block_bytes)
    rows = table([*NOTES, '{"a": "[{"}', "\\", '\\"'])
    (tmp_path / "table.json").write_bytes(OBJECTS[name](rows))
    assert read_as_inspected([tmp_path / "table.json"]) == rows


def test_indented_objects_that_begin_with_an_object(tmp_path: Path) -> None:
    """They are rows, not the columns of a table."""
    rows = [{"user": {"age": n}, "tags": [n]} for n in range(3)]
    (tmp_path / "table.json").write_text("\n".join(json.dumps(row, indent=1) for row in rows))
    assert open_table(list_inputs([str(tmp_path / "table.json")]), FileFormat()).columns.names == ["user.age", "tags"]


BROKEN = {
    # text; rows that are read; what is rejected, or the error
    "other elements": ('[{"x": 1}, 5, "a b", [3], null, {"x": 2}]', [1, 2], [2, 3, 4, 5]),
    "no array at all": ("[]", [], []),
    "array of nothing else": ("[1, 2]", "no JSON object in its first lines", None),
    "breaks off in an object": ('[{"x": 1}, {"x": ', "breaks off after 1 objects", None),
    "breaks off after an object": ('[{"x": 1},\n{"x": 2},', "breaks off after 2 objects", None),
    "a quote too few": ('[{"x": 1}, {"x": "a}, {"x": 3}]', "breaks off after 1 objects", None),
    "a brace too many": ('[{"x": 1}}, {"x": 3}]', "no JSON after 0 objects; a quote or a brace is missing", None),
}


@pytest.mark.parametrize("name", BROKEN)
def test_arrays_that_are_no_rows(name: str, tmp_path: Path) -> None:
    text, expected, lines = BROKEN[name]
    (tmp_path / "table.json").write_text(text)
    (tmp_path / "other.json").write_text('[{"x": 7}]')
    paths = [tmp_path / "table.json", tmp_path / "other.json"]
    if isinstance(expected, str):
        with pytest.raises(UserError, match=rf"table\.json: {expected}"):
            read_table(paths, raw_columns(x="integer"))
        return
    found = read_table(paths, raw_columns(x="integer"))
    assert [row["x"] for row in found.rows] == [*expected, 7]
    assert [line for line, *_ in found.reasons] == lines


def test_folders_of_folders_and_what_their_names_tell(tmp_path: Path) -> None:
    rows = table(PLAIN)
    parts = {"dt=2024-05-01/country=at": rows[:80], "dt=2024-05-01/country=a%2Fb": rows[80:160]}
    parts["dt=2024-05-02/country=__HIVE_DEFAULT_PARTITION__"] = rows[160:]
    for folder, part in parts.items():
        (tmp_path / "log" / folder).mkdir(parents=True)
        (tmp_path / "log" / folder / "part-0.csv").write_text(delimited()(part))
        (tmp_path / "log" / folder / "part-1.csv").write_text("")
        (tmp_path / "log" / folder / ".part-0.csv.crc").write_bytes(b"\0")
    (tmp_path / "log" / "_temporary").mkdir()
    (tmp_path / "log" / "_temporary" / "part-2.csv").write_text(delimited()(rows))
    (tmp_path / "log" / "_SUCCESS").write_text("")
    (tmp_path / "log" / "around").symlink_to(tmp_path / "log")
    told = [("2024-05-01", "a/b")] * 80 + [("2024-05-01", "at")] * 80 + [("2024-05-02", "")] * 80
    expected = [(*row, *of) for row, of in zip([*rows[80:160], *rows[:80], *rows[160:]], told, strict=True)]
    assert read_as_inspected([tmp_path / "log"]) == expected
    # A day alone, a file alone, a glob.
    day = tmp_path / "log" / "dt=2024-05-02"
    for path in (day, day / "country=__HIVE_DEFAULT_PARTITION__" / "part-0.csv", day / "*" / "part-0.csv"):
        columns = raw_columns(user="text", dt="time", country="text")
        assert [row["country"] for row in read_table(path, columns).rows] == [None] * 80
        assert len(read_table(path, raw_columns(dt="time")).rows) == 80
    with pytest.raises(UserError, match=r"no column '(dt|country)', which"):
        (tmp_path / "log" / "more.csv").write_text(delimited()(rows))
        open_table(list_inputs([str(tmp_path / "log")]), FileFormat())


def test_a_column_of_the_file_counts_more_than_the_name_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "x=1").mkdir()
    pq.write_table(pa.table({"x": [2], "y": [3]}), tmp_path / "x=1" / "data")
    found = read_table(tmp_path, raw_columns(x="integer", y="integer"))
    assert found.rows == [{"x": 2, "y": 3}]


LISTED = {
    # files of the folder; those that are data
    "JSON alone": ({"a.json": "{}", "b.json": '{"x": 1}\n', "README.md": ""}, ["a.json", "b.json"]),
    "a description": ({"a.csv": "", "truth.json": '{"x": 1}\n', "schema.json": '{\n "x": 1\n}\n'}, ["a.csv"]),
    "rows of JSON beside": (
        {"a.csv": "", "b.json": '{"x": 1}\n{"x": 2}\n', "c.json": "[]"},
        ["a.csv", "b.json", "c.json"],
    ),
    "folders": ({"b/a.csv": "", "a.csv": "", "b/c/d.csv": "", ".git/a.csv": ""}, ["a.csv", "b/a.csv", "b/c/d.csv"]),
}


@pytest.mark.parametrize("name", LISTED)
def test_no_data_of_a_folder_is_left_out(name: str, tmp_path: Path) -> None:
    files, expected = LISTED[name]
    for file, text in files.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    assert [str(file.path.relative_to(tmp_path)) for file in list_inputs([str(tmp_path)])] == expected
