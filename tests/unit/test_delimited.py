"""Delimited text -> rows: fields, quotes, headers, and what is set aside."""

import csv
import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayrec.common.errors import UserError
from rayrec.config.table import FileFormat
from rayrec.raw.delimited import DelimitedLayout
from rayrec.raw.input_files import list_inputs, plan_chunks
from rayrec.raw.rows import MAX_TEXT, ParsedLines, RawCells, Reason, Rejected, RowTypes
from rayrec.raw.table_reader import open_table
from tests.table_files import raw_columns, read_table

NUMERIC, CATEGORICAL = [f"I{i}" for i in range(1, 14)], [f"C{i}" for i in range(1, 27)]
NAMES = ("label", *NUMERIC, *CATEGORICAL)
COLUMNS = raw_columns(**dict.fromkeys(NUMERIC, "integer"), **dict.fromkeys(CATEGORICAL, "text"))
TYPES = RowTypes(tuple(COLUMNS), "label")
WITHOUT_HEADER = FileFormat(separator="\t", quote=False, header=NAMES)
INTEGERS = [str(i) for i in range(13)]
CATEGORIES = [f"{i:08x}" for i in range(26)]


def row(label: str = "1", integers: dict[int, str] | None = None, categories: dict[int, str] | None = None) -> bytes:
    """Return a good line, with some fields replaced (by index from 0)."""
    numbers = [(integers or {}).get(i, value) for i, value in enumerate(INTEGERS)]
    values = [(categories or {}).get(i, value) for i, value in enumerate(CATEGORIES)]
    return "\t".join([label, *numbers, *values]).encode("utf-8", "surrogateescape")


def parse(data: bytes) -> ParsedLines:
    layout = DelimitedLayout(NAMES, "\t", quote=None, header=None)
    return TYPES.parse(layout.split(data, TYPES.wanted))


GOOD = {
    "plain": row(),
    "label 0": row("0"),
    "label 1.0": row("1.0"),
    "negative": row(integers={0: "-1"}),
    "64 bits": row(integers={0: str(2**63 - 1), 1: str(-(2**63))}),
    "leading zeros": row(integers={0: "007", 1: "0" * 30 + "5", 2: "-" + "0" * 30 + "5"}),
    "space": row(integers={3: " 1"}),
    "all missing": b"1" + b"\t" * 39,
    "quotes": row(categories={0: '"a', 1: 'b"', 2: '"'}),
    "text": row(categories={0: "h\u00e9llo w\u00f6rld", 1: "x y", 2: "NULL", 3: "a\\tb", 4: "\x00"}),
}

BAD: dict[str, tuple[bytes, Reason, str | None]] = {
    "a column less": (row()[: row().rindex(b"\t")], Reason.COLUMNS, None),
    "a column more": (row() + b"\t", Reason.COLUMNS, None),
    "one word": (b"hello", Reason.COLUMNS, None),
    "label 2": (row("2"), Reason.LABEL, "label"),
    "label -1": (row("-1"), Reason.LABEL, "label"),
    "label 10": (row("10"), Reason.LABEL, "label"),
    "label missing": (row(""), Reason.NO_LABEL, "label"),
    "label with byte order mark": (b"\xef\xbb\xbf" + row(), Reason.LABEL, "label"),
    "word": (row(integers={3: "x"}), Reason.INTEGER, "I4"),
    "decimal": (row(integers={3: "1.5"}), Reason.INTEGER, "I4"),
    "exponent": (row(integers={3: "1e3"}), Reason.INTEGER, "I4"),
    "hexadecimal": (row(integers={3: "0x1F"}), Reason.INTEGER, "I4"),
    "two signs": (row(integers={3: "+-1"}), Reason.INTEGER, "I4"),
    "minus alone": (row(integers={3: "-"}), Reason.INTEGER, "I4"),
    "other digits": (row(integers={3: "\u0661"}), Reason.INTEGER, "I4"),
    "overflow": (row(integers={12: str(2**63)}), Reason.INTEGER, "I13"),
    "negative overflow": (row(integers={12: str(-(2**63) - 1)}), Reason.INTEGER, "I13"),
    "large overflow": (row(integers={12: "9" * 100}), Reason.INTEGER, "I13"),
    "the first of two wrong values": (row(integers={3: "x", 12: "y"}), Reason.INTEGER, "I4"),
    "label before all other values": (row("x", integers={3: "x"}), Reason.LABEL, "label"),
    "latin-1": (row(categories={0: "h\udce9llo"}), Reason.UTF8, None),
    "latin-1 in an integer": (row(integers={0: "\udce9"}), Reason.UTF8, None),
    "carriage return": (row(categories={0: "a\rb"}), Reason.CARRIAGE_RETURN, None),
    "columns before all else": (b"\xff\t7\r\t", Reason.COLUMNS, None),
}


def expected_row(line: bytes) -> dict[str, object]:
    """Return a good line read by plain Python."""
    label, *fields = line.decode().split("\t")
    numbers = [int(f) if f else None for f in fields[:13]]
    values = [f or None for f in fields[13:]]
    return dict(zip(NAMES, [float(label), *numbers, *values], strict=True))


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("name", GOOD)
def test_good_row(name: str, ending: bytes) -> None:
    parsed = parse(GOOD[name] + ending)
    assert parsed.rows.schema == TYPES.schema
    assert parsed.rows.to_pylist() == [expected_row(GOOD[name])]
    assert not parsed.rejected


@pytest.mark.parametrize("name", BAD)
def test_bad_row_is_set_aside_among_good_ones(name: str) -> None:
    line, reason, column = BAD[name]
    first, last = row("0", {0: "10"}), row("1", {0: "30"})
    parsed = parse(b"\n".join([first, line, last, b""]))
    cell = None if column is None else (column, line.split(b"\t")[NAMES.index(column)].decode())
    assert parsed.rejected == {1: Rejected(reason, line, cell)}
    assert parsed.rows.to_pylist() == [expected_row(first), expected_row(last)]
    assert parsed.positions.tolist() == [0, 2]
    assert parsed.num_lines == 3


def test_empty_lines_are_no_rows() -> None:
    parsed = parse(b"\n\n".join([row("0", {0: "10"}), row("1", {0: "30"}), b""]))
    assert parsed.rejected == {}
    assert (parsed.positions.tolist(), parsed.num_lines) == ([0, 2], 4)


def test_many_rows_of_every_kind_keep_their_lines() -> None:
    rng = np.random.default_rng(0)
    lines = list(GOOD.values()) + [line for line, *_ in BAD.values()]
    is_good = np.repeat([True, False], [len(GOOD), len(BAD)])
    order = rng.integers(0, len(lines), 5_000)
    parsed = parse(b"".join(lines[i] + b"\n" for i in order))
    assert parsed.positions.tolist() == np.flatnonzero(is_good[order]).tolist()
    assert list(parsed.rejected) == np.flatnonzero(~is_good[order]).tolist()
    assert parsed.rows.to_pylist() == [expected_row(lines[i]) for i in order if is_good[i]]


@pytest.mark.parametrize("line", [line for line, *_ in BAD.values()], ids=list(BAD))
def test_only_bad_rows(line: bytes) -> None:
    parsed = parse(line + b"\n")
    assert parsed.rows.num_rows == 0 and parsed.rows.schema == TYPES.schema
    assert len(parsed.rejected) == parsed.num_lines == 1


def test_blocks_of_a_chunk_count_lines_and_set_bad_rows_aside(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    long = b"x" * (MAX_TEXT + 5)
    path.write_bytes(b"\n".join([row(), row("9" * (MAX_TEXT + 5)), row("0"), long, row(categories={1: "\udcff"})]))
    # The last line has no newline and comes as a block of its own.
    found = read_table(path, COLUMNS, "label", table_format=WITHOUT_HEADER)
    assert found.places == [(str(path), 1), (str(path), 3)]
    assert found.reasons == [
        (2, "label other than 0 or 1", "label", "9" * MAX_TEXT),
        (4, "wrong column count", None, None),
        (5, "invalid UTF-8", None, None),
    ]
    texts = [rejected["text"] for rejected in found.rejected]
    assert {rejected["file"] for rejected in found.rejected} == {str(path)}
    assert texts[0] == "9" * MAX_TEXT and texts[1] == "x" * MAX_TEXT and "\\xff" in texts[2]


QUOTED: dict[str, tuple[bytes, list[str | None] | Reason]] = {
    "separator": (b'a,"b,c",d', ["a", "b,c", "d"]),
    "doubled": (b'"a ""b"" c",,""""', ['a "b" c', None, '"']),
    "doubled at both ends": (b'"""a""","""",b', ['"a"', '"', "b"]),
    "empty": (b'"","a",""', [None, "a", None]),
    "all quoted": (b'"a","b","c"', ["a", "b", "c"]),
    "inside an unquoted field": (b'a "b" c,d,e""', ['a "b" c', "d", 'e""']),
    "separator between quotes in an unquoted field": (b'a "b,c" d,e', ['a "b', 'c" d', "e"]),
    "not UTF-8 beside odd quotes": (b'x"\xff"x,a,b', Reason.UTF8),
    "not closed": (b'a,"b,c', Reason.QUOTE),
    "one alone": (b'5" wide,b,c', Reason.QUOTE),
    "text after the closing quote": (b'"a"b,c,d', Reason.QUOTE),
    "too few columns": (b'a,"b,c"', Reason.COLUMNS),
    "too many columns": (b'"a",b,"c",d', Reason.COLUMNS),
    "carriage return": (b'"a\rb",c,d', Reason.CARRIAGE_RETURN),
}


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("name", QUOTED)
def test_quotes(name: str, ending: bytes, tmp_path: Path) -> None:
    line, expected = QUOTED[name]
    path = tmp_path / "file.csv"
    path.write_bytes(ending.join([b'x,"y z",w', b'"1",2,3', line, b"4,5,6"]))
    found = read_table(path, raw_columns(**{"x": "text", "y z": "text", "w": "text"}))
    rows = [list(row.values()) for row in found.rows]
    if isinstance(expected, Reason):
        assert rows == [["1", "2", "3"], ["4", "5", "6"]]
        assert found.reasons == [(3, str(expected), None, None)]
        assert found.rejected[0]["text"] == line.decode("utf-8", "backslashreplace")
    else:
        assert rows == [["1", "2", "3"], expected, ["4", "5", "6"]]


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
@pytest.mark.parametrize("chunk_bytes", [20, 2**20])
def test_a_header_between_rows_is_no_row(ending: bytes, chunk_bytes: int, tmp_path: Path) -> None:
    (tmp_path / "file.csv").write_bytes(
        ending.join([b'id,"name"', b"1,ab", b'id,"name"', b'22,"name"', b"id,name", b""])
    )
    found = read_table(tmp_path / "file.csv", raw_columns(id="text", name="text"), chunk_bytes=chunk_bytes)
    assert [tuple(row.values()) for row in found.rows] == [("1", "ab"), ("22", "name"), ("id", "name")]
    assert found.reasons == [(3, str(Reason.HEADER), None, None)]


def texts_of(cells: RawCells) -> list[tuple[str, ...]]:
    """Return the rows, as they stand."""
    return list(zip(*(pa.array(column).fill_null("").to_pylist() for column in cells.columns.values()), strict=True))


@given(st.lists(st.lists(st.text('a",\t 0é', max_size=6), min_size=2, max_size=2), min_size=1), st.booleans())
def test_quoted_fields_as_python_writes_them(rows: list[list[str]], is_quoted: bool) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if is_quoted:
        writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerows(rows)
    layout = DelimitedLayout(("x", "y"), ",", quote='"', header=None)
    cells = layout.split(text.getvalue().encode(), ["x", "y"])
    assert cells.bad_lines == {}
    assert list(map(list, texts_of(cells))) == rows


def expected_rows(lines: list[str], columns: int) -> dict[int, list[str] | None]:
    """Return each row by its first line, None for a bad one: the rule of `DelimitedLayout`, line after line."""

    def fields(text: str) -> list[str] | None:
        try:
            found = next(csv.reader([text], strict=True), [""])
        except csv.Error:
            return None
        return found if len(found) == columns else None

    rows: dict[int, list[str] | None] = {}
    number = 0
    while number < len(lines):
        last = number
        if lines[number].count('"') % 2:
            rows[number] = None
            closing = next((n for n in range(number + 1, len(lines)) if lines[n].count('"') % 2), None)
            if closing is not None and (found := fields("\n".join(lines[number : closing + 1]))) is not None:
                rows[number], last = found, closing
        elif lines[number]:  # an empty line is no row
            rows[number] = fields(lines[number])
        number = last + 1
    return rows


@given(st.lists(st.text('a",', max_size=8), min_size=1), st.booleans())
def test_lines_of_any_quotes(lines: list[str], is_crlf: bool) -> None:
    layout = DelimitedLayout(("x", "y"), ",", quote='"', header=None)
    cells = layout.split("".join(f"{line}{is_crlf * chr(13)}\n" for line in lines).encode(), ["x", "y"])
    found: dict[int, Any] = dict.fromkeys(cells.bad_lines)
    found |= dict(zip(cells.positions.tolist(), map(list, texts_of(cells)), strict=True))
    assert found == expected_rows(lines, 2)
    assert all(cells.text(number).decode() == lines[number] for number in cells.bad_lines)
    assert cells.num_lines == len(lines)


LINES = st.one_of(
    st.lists(st.text('a",', max_size=6), max_size=12),
    st.lists(st.lists(st.text('a",\n', max_size=5), min_size=2, max_size=2), max_size=5).map(
        lambda rows: written(rows).split("\n")[:-1]
    ),
)
"""Lines of any quotes, and rows with newlines in quotes."""


def written(rows: list[list[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


@pytest.mark.parametrize("block_bytes", [5, 2**23])
@given(LINES, st.integers(1, 30))
def test_every_border_between_chunks_gives_the_rows_of_the_whole(
    block_bytes: int, lines: list[str], chunk_bytes: int
) -> None:
    text = "".join(f"{line}\n" for line in lines) + "end,end\n"
    layout = DelimitedLayout(("x", "y"), ",", quote='"', header=None)
    found: dict[int, Any] = {}
    before = 0
    with tempfile.NamedTemporaryFile() as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr("rayrec.raw.text.BLOCK_BYTES", block_bytes)
        Path(file.name).write_text(text)
        for chunk in plan_chunks(list_inputs([file.name]), chunk_bytes):
            lines_read = 0
            for _, cells in layout.read(chunk, ["x", "y"]):
                rows = zip(cells.positions.tolist(), map(list, texts_of(cells)), strict=True)
                new = {before + lines_read + n: row for n, row in [*rows, *dict.fromkeys(cells.bad_lines).items()]}
                assert not new.keys() & found.keys()
                found |= new
                lines_read += cells.num_lines
            assert lines_read == layout.count_lines(chunk)
            before += lines_read
    assert found == expected_rows([*lines, "end,end"], 2)


def test_rows_of_several_lines_lie_in_the_chunk_where_they_begin(tmp_path: Path) -> None:
    """Chunks of a large file, whose rows are read with a margin on either side."""
    rng = np.random.default_rng(0)
    notes = ["ok", 'say ""hi""', "two\nlines", "# three\n\nlines", "x" * 300]
    rows = [[str(n), notes[kind]] for n, kind in enumerate(rng.integers(0, len(notes), 20_000))]
    stray = '20000,"never closed\n'
    text = "id,note\n" + "".join(f'{n},"{note}"\n' for n, note in rows[:10_000]) + stray
    text += "".join(f'{n},"{note}"\n' for n, note in rows[10_000:])
    (tmp_path / "a.csv").write_text(text)
    expected = [{"id": n, "note": note.replace('""', '"')} for n, note in rows]
    for chunk_bytes in (len(text) // 7, len(text) + 1):
        found = read_table(tmp_path / "a.csv", raw_columns(id="text", note="text"), chunk_bytes=chunk_bytes)
        assert found.rows == expected
        line = text[: text.index(stray)].count("\n") + 1
        assert found.reasons == [(line, str(Reason.QUOTE), None, None)]
        assert found.places[-1][1] == text[: text.rindex(f"{rows[-1][0]},")].count("\n") + 1


HEADERS: dict[str, tuple[bytes, dict[str, Any], list[dict[str, Any]]]] = {
    # content; format; rows
    "commas": (b"x,y\n1,a\n", {}, [{"x": "1", "y": "a"}]),
    "tabs": (b"x\ty,z\n1\ta,b\n", {}, [{"x": "1", "y,z": "a,b"}]),
    "semicolons": (b"x;y\n1,5;a\n", {"separator": ";"}, [{"x": "1,5", "y": "a"}]),
    "byte order mark, CRLF, blank lines at the end": (
        b"\xef\xbb\xbfx,y\r\n1,a\r\n\r\n\r\n",
        {},
        [{"x": "1", "y": "a"}],
    ),
    "no newline at the end": (b"x,y\n1,a", {}, [{"x": "1", "y": "a"}]),
    "blanks around names, and a column without one": (b" x , y,\n0,a,1\n", {}, [{"x": "0", "y": "a", "column_3": "1"}]),
    "one column": (b"x\na\n\nb\n\n", {}, [{"x": "a"}, {"x": None}, {"x": "b"}]),
    "missing values": (
        b'x,y\nNA,"\\N"\n,N\n',
        {"null_values": ("NA", "\\N", "")},
        [{"x": None, "y": None}, {"x": None, "y": "N"}],
    ),
    "names given": (b"1,a\n", {"header": ("x", "y")}, [{"x": "1", "y": "a"}]),
    "names given, and in the file in another order": (b"y,x\na,1\n", {"header": ("x", "y")}, [{"x": "1", "y": "a"}]),
    "names given, as two in the file are equal": (
        b"x,y,y\n1,a,b\n",
        {"header": ("x", "y", "z")},
        [{"x": "1", "y": "a", "z": "b"}],
    ),
    "names given, one of which is a value": (b"x,a\n", {"header": ("x", "y")}, [{"x": "x", "y": "a"}]),
    "only a header": (b"x,y\n", {}, []),
    "quotes are characters": (b'x,"y"\n"1,a\n', {"quote": False}, [{"x": '"1', '"y"': "a"}]),
    "a line that tells the separator": (b"\xef\xbb\xbfsep=;\r\nx;y\r\n1;a\r\n", {}, [{"x": "1", "y": "a"}]),
    "such a line in quotes": (b'"sep=|"\nx|y\n1|a\n', {}, [{"x": "1", "y": "a"}]),
    "such a line before rows": (b"sep=\t\n1\ta\n", {"header": ("x", "y")}, [{"x": "1", "y": "a"}]),
    "blank lines before the header": (b"\n \nx,y\n1,a\n", {}, [{"x": "1", "y": "a"}]),
    "comments": (
        b'# by "x\n#\nx,y\n1,a\n# it\'s, "\n2,"b\n# no comment"\n#end',
        {"comment": "#"},
        [{"x": "1", "y": "a"}, {"x": "2", "y": "b\n# no comment"}],
    ),
    "comments of two characters": (b"--\nx,y\n-1,a\n-- 2,b\n", {"comment": "--"}, [{"x": "-1", "y": "a"}]),
    "rows end with a separator": (b'x,y\n1,a,\n2,"b\nc",\n', {}, [{"x": "1", "y": "a"}, {"x": "2", "y": "b\nc"}]),
    "rows without a header end with one": (b"1|a|\n", {"separator": "|", "header": ("x", "y")}, [{"x": "1", "y": "a"}]),
    "escaped quotes": (
        b'x,y\n1,"{\\"a\\":\\"b\\\\\\"c\\\\\\\\\\"}"\n2,"C:\\tmp\\\\"\n3,"say ""hi"""\n4,"a\n\\"b"\n',
        {"escape": "\\"},
        [
            {"x": "1", "y": '{"a":"b\\"c\\\\"}'},
            {"x": "2", "y": "C:\\tmp\\"},
            {"x": "3", "y": 'say "hi"'},
            {"x": "4", "y": 'a\n"b'},
        ],
    ),
    "a separator of two characters": (b'x::y\n1::"a:b\n', {"separator": "::"}, [{"x": "1", "y": '"a:b'}]),
    "single quotes": (b"x,'y'\n1,'a,\n''b'\n", {"quote": "'"}, [{"x": "1", "y": "a,\n'b"}]),
    "carriage returns alone": (b'x,y\r1,a\r2,"b\rc"\r', {}, [{"x": "1", "y": "a"}, {"x": "2", "y": "b\nc"}]),
    "a header of two lines": (b'x,"y\nz"\n1,a\n', {}, [{"x": "1", "y\nz": "a"}]),
    "latin-1": ("é,ÿ\n1,ü\n".encode("latin-1"), {"encoding": "latin-1"}, [{"é": "1", "ÿ": "ü"}]),
    "shift_jis": ("名,ソ\n1,表\n".encode("shift_jis"), {"encoding": "shift_jis"}, [{"名": "1", "ソ": "表"}]),
    "UTF-16": ("x,é\r\n1,Ċ\r\n".encode("utf-16"), {}, [{"x": "1", "é": "Ċ"}]),
    "UTF-16 without a mark": ("x,y\n1,a\n".encode("utf-16-be"), {}, [{"x": "1", "y": "a"}]),
    "UTF-32": ("x,y\n1,a\n".encode("utf-32"), {}, [{"x": "1", "y": "a"}]),
    "EBCDIC": ("x,y\n1,a\n".encode("cp037"), {"encoding": "cp037"}, [{"x": "1", "y": "a"}]),
    "a byte order mark counts more": (
        "x,é\n1,a\n".encode("utf-8-sig"),
        {"encoding": "latin-1"},
        [{"x": "1", "é": "a"}],
    ),
}


@pytest.mark.parametrize("name", HEADERS)
def test_headers_and_formats(name: str, tmp_path: Path) -> None:
    text, given_format, expected = HEADERS[name]
    path = tmp_path / "file"
    path.write_bytes(text)
    table_format = FileFormat(**given_format)
    names = open_table(list_inputs([str(path)]), table_format).columns.names
    for chunk_bytes in range(1, len(text) + 2):
        found = read_table(
            path, raw_columns(**dict.fromkeys(names, "text")), table_format=table_format, chunk_bytes=chunk_bytes
        )
        assert found.reasons == []
        assert found.rows == expected


ERRORS: dict[str, tuple[dict[str, bytes], dict[str, Any], str]] = {
    # files; format; message
    "repeated by blanks": ({"a": b"x,y, x\n"}, {}, "two columns 'x' in its first line"),
    "unclosed": ({"a": b'x,"y\nz\n'}, {}, "first line has double quotes that are not closed"),
    "cut UTF-16": ({"a": "x,y\n1,2\n".encode("utf-16")[:-1]}, {}, "not utf-16-le text"),
    "a spreadsheet of before": ({"a.xls": b"\xd0\xcf\x11\xe0\xa1"}, {}, "a spreadsheet; save it as CSV"),
    "an Arrow file": ({"a.feather": b"ARROW1\0\0"}, {}, "an Arrow file; write it as Parquet"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_unclear_columns(name: str, tmp_path: Path) -> None:
    files, given_format, message = ERRORS[name]
    for file, text in files.items():
        (tmp_path / file).write_bytes(text)
    with pytest.raises(UserError, match=message) as error:
        read_table(tmp_path, [], table_format=FileFormat(**given_format))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("encoding", ["no-such", "rot13", "base64"])
def test_encodings_that_are_unknown(encoding: str) -> None:
    with pytest.raises(ValueError, match="is no encoding that is known"):
        FileFormat(encoding=encoding)


@pytest.mark.parametrize("separator", ["\n", '"', "é", ':"', "", "     "])
def test_separators_that_cannot_be(separator: str) -> None:
    with pytest.raises(ValueError, match="separator"):
        FileFormat(separator=separator)


REAL: dict[str, tuple[str, dict[str, Any], str | None, int]] = {
    # file; format; label; rows
    "avazu": ("avazu-9k/train.csv.gz", {}, "click", 8_087),
    "criteo": ("criteo-kaggle-8k/train.tsv.gz", {"quote": False, "header": NAMES}, "label", 7_200),
    "criteo dev": ("criteo-kaggle-8k/dev.tsv", {"quote": False, "header": NAMES}, "label", 409),
    "criteo with a header": ("criteo-kaggle-200/criteo_sample.txt", {}, "label", 200),
    "users": ("ml-100k/ml-100k.user", {}, None, 943),
    "movies": ("ml-100k/ml-100k.item", {}, None, 1_682),
    "ratings without a header": (
        "ml-100k/u.data.gz",
        {"header": ("user_id", "item_id", "rating", "timestamp")},
        None,
        100_000,
    ),
    "ratings": ("ml-latest-small/ratings.csv.gz", {}, None, 100_836),
    "displays": ("outbrain-10k/sample_train_dat.csv", {}, "clicked", 9_999),
}


@pytest.mark.parametrize("name", REAL)
def test_real_files_as_pandas_reads_them(name: str, shared_data: Path) -> None:
    path, given_format, label, rows = REAL[name]
    table_format = FileFormat(**given_format)
    table = open_table(list_inputs([str(shared_data / path)]), table_format)
    names = [column for column in table.columns.names if column != label]
    found = read_table(
        shared_data / path,
        raw_columns(**dict.fromkeys(names, "text")),
        label,
        table_format=table_format,
        chunk_bytes=100_000,
    )
    assert found.rejected == [] and len(found.rows) == rows
    header = given_format.get("header")
    expected = pd.read_csv(
        shared_data / path,
        sep=table.layouts[0].separator,  # type: ignore[union-attr]
        names=header,
        header=None if header else 0,
        dtype=str,
        keep_default_na=False,
        na_values=[""],
    )
    if label is not None:
        expected[label] = expected[label].astype("float32")
    in_order = ([] if label is None else [label]) + names
    expected = expected[in_order].astype(object)
    columns = [expected[name].where(expected[name].notna(), None).tolist() for name in in_order]
    assert found.rows == [dict(zip(in_order, row, strict=True)) for row in zip(*columns, strict=True)]


def test_real_files_with_and_without_a_header(shared_data: Path) -> None:
    train, dev = shared_data / "avazu-9k" / "train.csv.gz", shared_data / "avazu-9k" / "dev.csv"
    names = tuple(open_table(list_inputs([str(train)]), FileFormat()).columns.names)
    columns = raw_columns(C14="integer", id="text", device_model="text")
    found = read_table([train, dev], columns, "click", table_format=FileFormat(header=names), chunk_bytes=10_000)
    assert len(found.rows) == 8_087 + 480 and found.rejected == []
    assert found.places[0] == (str(train), 2) and found.places[8_087] == (str(dev), 1)
    values = dict(zip(names, dev.read_text().partition("\n")[0].split(","), strict=True))
    expected = {"C14": int(values["C14"]), "id": values["id"], "device_model": values["device_model"]}
    assert found.rows[8_087] == {"click": float(values["click"]), **expected}
