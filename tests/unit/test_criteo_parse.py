"""Criteo's text -> columns, and what is set aside: the preset of a table reads the published layout."""

from pathlib import Path

import pyarrow as pa
import pytest

from rayrec.config.preprocess import HashSplitConfig
from rayrec.preprocessing.rows.column_plan import plan_columns
from rayrec.raw.blocks import RawBlock, Reason
from rayrec.raw.input_files import list_inputs, plan_chunks
from rayrec.raw.table_reader import open_table
from rayrec.sources.criteo.config import CATEGORICAL, LABEL, NUMERIC, CriteoSourceConfig

CONFIG = CriteoSourceConfig()
NUMBERS = [str(i) for i in range(13)]
CATEGORIES = [f"{i:08x}" for i in range(26)]


def row(label: str = "1", numbers: dict[int, str] | None = None, categories: dict[int, str] | None = None) -> bytes:
    """Return a good line, with some fields replaced (by index from 0)."""
    first = [(numbers or {}).get(i, value) for i, value in enumerate(NUMBERS)]
    values = [(categories or {}).get(i, value) for i, value in enumerate(CATEGORIES)]
    return "\t".join([label, *first, *values]).encode("utf-8", "surrogateescape")


GOOD = {
    "plain": row(),
    "label 0": row("0"),
    "negative": row(numbers={0: "-1"}),
    "all missing": b"1" + b"\t" * 39,
    "quotes": row(categories={0: '"a', 1: 'b"', 2: '"'}),
    "text": row(categories={0: "h\u00e9llo w\u00f6rld", 1: "x y", 2: "NULL", 3: "a\\tb"}),
}
BAD = {
    "a column less": (row()[: row().rindex(b"\t")], Reason.COLUMNS),
    "a column more": (row() + b"\t", Reason.COLUMNS),
    "empty line": (b"", Reason.COLUMNS),
    "label 2": (row("2"), Reason.LABEL),
    "label missing": (row(""), Reason.NO_LABEL),
    "word": (row(numbers={3: "x"}), Reason.NUMBER),
    "latin-1": (row(categories={0: "h\udce9llo"}), Reason.UTF8),
    "carriage return": (row(categories={0: "a\rb"}), Reason.CARRIAGE_RETURN),
}


def read(path: Path, text: bytes) -> RawBlock:
    """Return the rows of a file as the job reads them, with the label if there is one."""
    path.write_bytes(text)
    files = list_inputs([str(path)])
    table = open_table(files, CONFIG, (LABEL,))
    plan = plan_columns(CONFIG, HashSplitConfig(), (LABEL, *NUMERIC, *CATEGORICAL), {})
    (block,) = table.reader(plan.read, LABEL if LABEL in table.columns.names else None).read(*plan_chunks(files, 2**20))
    return block


def expected_row(line: bytes) -> dict[str, object]:
    """Return a good line read by plain Python."""
    label, *fields = line.decode().split("\t")
    values = [float(label), *(float(f) if f else None for f in fields[:13]), *(f or None for f in fields[13:])]
    return dict(zip((LABEL, *NUMERIC, *CATEGORICAL), values, strict=True))


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"], ids=["lf", "crlf"])
def test_good_rows(tmp_path: Path, ending: bytes) -> None:
    block = read(tmp_path / "day_0", ending.join([*GOOD.values(), b""]))
    assert block.rows.to_pylist() == [expected_row(line) for line in GOOD.values()]
    assert block.rows.schema.types == [pa.float32()] + [pa.float64()] * 13 + [pa.string()] * 26
    assert len(block.rejected) == 0


@pytest.mark.parametrize("case", BAD)
def test_bad_rows(tmp_path: Path, case: str) -> None:
    line, reason = BAD[case]
    first, last = row("0", {0: "10"}), row("1", {0: "30"})
    block = read(tmp_path / "day_0", b"\n".join([first, line, last, b""]))
    assert block.rows.to_pylist() == [expected_row(first), expected_row(last)]
    assert [(bad["line"], bad["reason"]) for bad in block.rejected.to_pylist()] == [(2, reason)]


def test_rows_without_label(tmp_path: Path) -> None:
    block = read(tmp_path / "day_0", row()[2:] + b"\n")
    assert block.rows.schema.names == [*NUMERIC, *CATEGORICAL]
    (found,) = block.rows.to_pylist()
    assert {LABEL: 1.0, **found} == expected_row(row())
