"""Criteo's text -> columns, and what is set aside."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rayrec.preprocessing.rows.text_reader import TextReader
from rayrec.raw.blocks import MAX_TEXT, Reason
from rayrec.raw.files import list_inputs, plan_chunks
from rayrec.sources.criteo.layout import FORMAT

LABELLED_SCHEMA, FEATURES_SCHEMA = FORMAT.raw_schema(True), FORMAT.raw_schema(False)
INTEGERS = [str(i) for i in range(13)]
CATEGORIES = [f"{i:08x}" for i in range(26)]


def row(label: str = "1", integers: dict[int, str] | None = None, categories: dict[int, str] | None = None) -> bytes:
    """A good line, with some fields replaced (by index from 0)."""
    numbers = [(integers or {}).get(i, value) for i, value in enumerate(INTEGERS)]
    values = [(categories or {}).get(i, value) for i, value in enumerate(CATEGORIES)]
    return "\t".join([label, *numbers, *values]).encode("utf-8", "surrogateescape")


GOOD = {
    "plain": row(),
    "label 0": row("0"),
    "negative": row(integers={0: "-1"}),
    "64 bits": row(integers={0: str(2**63 - 1), 1: str(-(2**63))}),
    "leading zeros": row(integers={0: "007", 1: "0" * 30 + "5", 2: "-" + "0" * 30 + "5"}),
    "all missing": b"1" + b"\t" * 39,
    "quotes": row(categories={0: '"a', 1: 'b"', 2: '"'}),
    "text": row(categories={0: "h\u00e9llo w\u00f6rld", 1: " x ", 2: "NULL", 3: "a\\tb", 4: "\x00"}),
}

BAD = {
    "a column less": (row()[: row().rindex(b"\t")], Reason.COLUMNS),
    "a column more": (row() + b"\t", Reason.COLUMNS),
    "empty line": (b"", Reason.COLUMNS),
    "one word": (b"hello", Reason.COLUMNS),
    "label 2": (row("2"), Reason.LABEL),
    "label -1": (row("-1"), Reason.LABEL),
    "label 10": (row("10"), Reason.LABEL),
    "label 1.0": (row("1.0"), Reason.LABEL),
    "label missing": (row(""), Reason.LABEL),
    "label with byte order mark": (b"\xef\xbb\xbf" + row(), Reason.LABEL),
    "word": (row(integers={3: "x"}), Reason.INTEGER),
    "decimal": (row(integers={3: "1.0"}), Reason.INTEGER),
    "exponent": (row(integers={3: "1e3"}), Reason.INTEGER),
    "hexadecimal": (row(integers={3: "0x1F"}), Reason.INTEGER),
    "plus": (row(integers={3: "+1"}), Reason.INTEGER),
    "minus alone": (row(integers={3: "-"}), Reason.INTEGER),
    "space": (row(integers={3: " 1"}), Reason.INTEGER),
    "other digits": (row(integers={3: "\u0661"}), Reason.INTEGER),
    "overflow": (row(integers={12: str(2**63)}), Reason.INTEGER),
    "negative overflow": (row(integers={12: str(-(2**63) - 1)}), Reason.INTEGER),
    "large overflow": (row(integers={12: "9" * 100}), Reason.INTEGER),
    "latin-1": (row(categories={0: "h\udce9llo"}), Reason.UTF8),
    "latin-1 in an integer": (row(integers={0: "\udce9"}), Reason.UTF8),
    "carriage return": (row(categories={0: "a\rb"}), Reason.CARRIAGE_RETURN),
    "columns before all else": (b"\xff\t7\r\t", Reason.COLUMNS),
}


def expected_row(line: bytes) -> dict[str, object]:
    """A good line read by plain Python."""
    label, *fields = line.decode().split("\t")
    numbers = [int(f) if f else None for f in fields[:13]]
    values = [f or None for f in fields[13:]]
    return dict(zip(LABELLED_SCHEMA.names, [float(label), *numbers, *values], strict=True))


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("name", GOOD)
def test_good_row(name: str, ending: bytes) -> None:
    parsed = FORMAT.parse_lines(GOOD[name] + ending)
    assert parsed.rows.schema == LABELLED_SCHEMA
    assert parsed.rows.to_pylist() == [expected_row(GOOD[name])]
    assert parsed.rejected_reasons == []


@pytest.mark.parametrize("name", BAD)
def test_bad_row_is_set_aside_among_good_ones(name: str) -> None:
    line, reason = BAD[name]
    first, last = row("0", {0: "10"}), row("1", {0: "30"})
    parsed = FORMAT.parse_lines(b"\n".join([first, line, last, b""]))
    assert parsed.rejected_reasons == [reason]
    assert parsed.rejected_positions.tolist() == [1]
    assert parsed.rejected_texts == [line]
    assert parsed.rows.to_pylist() == [expected_row(first), expected_row(last)]
    assert parsed.positions.tolist() == [0, 2]
    assert parsed.num_lines == 3


def test_many_rows_of_every_kind_keep_their_lines() -> None:
    rng = np.random.default_rng(0)
    lines = list(GOOD.values()) + [line for line, _ in BAD.values()]
    is_good = np.repeat([True, False], [len(GOOD), len(BAD)])
    order = rng.integers(0, len(lines), 5_000)
    parsed = FORMAT.parse_lines(b"".join(lines[i] + b"\n" for i in order))
    assert parsed.positions.tolist() == np.flatnonzero(is_good[order]).tolist()
    assert parsed.rejected_positions.tolist() == np.flatnonzero(~is_good[order]).tolist()
    assert parsed.rows.to_pylist() == [expected_row(lines[i]) for i in order if is_good[i]]


@pytest.mark.parametrize("line", [line for line, _ in BAD.values()], ids=list(BAD))
def test_only_bad_rows(line: bytes) -> None:
    parsed = FORMAT.parse_lines(line + b"\n")
    assert parsed.rows.num_rows == 0 and parsed.rows.schema == LABELLED_SCHEMA
    assert len(parsed.rejected_reasons) == parsed.num_lines == 1


def test_rows_without_label() -> None:
    line = row()[2:]
    assert not FORMAT.has_label(line) and FORMAT.has_label(row())
    parsed = FORMAT.parse_lines(line + b"\n", is_labelled=False)
    assert parsed.rows.schema == FEATURES_SCHEMA
    expected = expected_row(row())
    del expected["label"]
    assert parsed.rows.to_pylist() == [expected]


def test_blocks_of_a_chunk_count_lines_and_set_bad_rows_aside(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    long = b"x" * (MAX_TEXT + 5)
    path.write_bytes(b"\n".join([row(), row("9"), row("0"), long, row(categories={1: "\udcff"})]))
    (chunk,) = plan_chunks(list_inputs([str(path)]), 2**20)
    # The last line has no newline and comes as a block of its own.
    blocks = list(TextReader(FORMAT, labelled=(True,)).read(chunk))
    assert [line for block in blocks for line in block.lines] == [1, 3]
    assert [block.num_lines for block in blocks] == [4, 1]
    rejected = pa.concat_tables([block.rejected for block in blocks])
    assert rejected.select(["line", "reason"]).to_pylist() == [
        {"line": 2, "reason": "label other than 0 or 1"},
        {"line": 4, "reason": "wrong column count"},
        {"line": 5, "reason": "invalid UTF-8"},
    ]
    texts = rejected["text"].to_pylist()
    assert set(rejected["file"].to_pylist()) == {str(path)}
    assert texts[0] == row("9").decode() and texts[1] == "x" * MAX_TEXT and "\\xff" in texts[2]
