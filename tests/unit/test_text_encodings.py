"""Texts that are not UTF-8 are read by the encoding that makes words of them, and a person is told which."""

import json
from pathlib import Path

import pytest

from rayrec.inspection.table.file_form import find_encoding
from rayrec.inspection.table.inspected_table import InspectedTable, inspect_table

TOWNS = {
    "shift_jis": ["横浜", "札幌", "名古屋", "さいたま"],
    "gb18030": ["杭州", "深圳", "武汉", "西安"],
    "euc_kr": ["대전", "광주", "인천", "수원"],
    "big5": ["臺中", "新竹", "基隆", "花蓮"],
    "koi8_r": ["Пермь", "Самара", "Тверь", "Омск"],
    "windows-1251": ["Пермь", "Самара", "Тверь", "Омск"],
    "mac_roman": ["Orléans", "Nîmes", "Besançon", "Crèvecœur"],
    "cp850": ["Orléans", "Nîmes", "Besançon", "Crèvecoeur"],
    "windows-1250": ["Łódź", "Wrocław", "Świdnica", "Żywiec"],
}


def _inspect(folder: Path, towns: list[str], encoding: str, form: str = "csv", ascii_rows: int = 0) -> InspectedTable:
    rows = [
        {"click": n // 5 % 2, "town": "x" if n < ascii_rows else towns[n % len(towns)]} for n in range(200 + ascii_rows)
    ]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    if form == "csv":
        lines = ["click,town", *(f"{row['click']},{row['town']}" for row in rows)]
    path = folder / f"towns.{form}"
    path.write_bytes("\n".join(lines).encode(encoding))
    return inspect_table([str(path)], "click", None, 10_000, "")


@pytest.mark.parametrize("form", ["csv", "jsonl"])
@pytest.mark.parametrize("encoding", TOWNS)
def test_encoding_is_found_and_said(tmp_path: Path, encoding: str, form: str) -> None:
    found = _inspect(tmp_path, TOWNS[encoding], encoding, form)
    assert f"encoding: {encoding}" in found.recipe.replace('"', "")
    assert set(found.sample.rows["town"].to_pylist()) == set(TOWNS[encoding])
    (warning,) = (warning for warning in found.warnings if "UTF-8" in warning)
    assert encoding in warning and TOWNS[encoding][0] in warning and f"towns.{form}" in warning


def test_texts_that_begin_late_are_found(tmp_path: Path) -> None:
    found = _inspect(tmp_path, TOWNS["shift_jis"], "shift_jis", ascii_rows=40_000)
    assert "encoding: shift_jis" in found.recipe and any("shift_jis" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    "towns", [["café", "thé", "été"], ["Müller", "ÖL", "Straße"], ["5 €", "10½", "“so”", "l\u2019œuf"]]
)
def test_western_texts_are_read_without_a_warning(tmp_path: Path, towns: list[str]) -> None:
    found = _inspect(tmp_path, towns, "windows-1252")
    assert "encoding: windows-1252" in found.recipe and not any("UTF-8" in warning for warning in found.warnings)


def test_a_few_bad_lines_do_not_change_the_encoding(tmp_path: Path) -> None:
    lines = [f"{n // 5 % 2},{'Zürich' if n % 3 else 'Genf'}".encode() for n in range(300)]
    lines[7] = b"1,Z\xfcrich"
    (tmp_path / "rows.csv").write_bytes(b"\n".join([b"click,town", *lines]))
    found = inspect_table([str(tmp_path / "rows.csv")], "click", None, 10_000, "")
    assert "encoding" not in found.recipe and "Zürich" in found.sample.rows["town"].to_pylist()


def test_what_no_encoding_explains_is_said() -> None:
    assert find_encoding(bytes(range(128, 256)) * 3).words is not None


def test_utf_16_without_a_mark_is_read(tmp_path: Path) -> None:
    found = _inspect(tmp_path, TOWNS["gb18030"], "utf-16-le")
    assert set(found.sample.rows["town"].to_pylist()) == set(TOWNS["gb18030"])
