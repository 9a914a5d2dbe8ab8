"""Columns that begin behind the rows that a file's columns are told from are found, or said with counts."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.preprocess import result_of
from rayrec.common.errors import UserError
from rayrec.config.table import FileFormat
from rayrec.ingest.dataset import DatasetManifest
from rayrec.preprocessing.engine import EmbeddedEngine
from rayrec.raw.input_files import list_inputs
from rayrec.raw.sample import sample_rows
from rayrec.raw.table_reader import open_table
from rayrec.sources.registry import preprocessing
from tests.builders import make_recipe

ROWS = 20_000
PAD = "x" * 110
LATE: dict[str, Any] = {'sh"op': 7, "geo": {"city": ":é", "gone": None}, "caf\u00e9": [{"inner": 1}]}
"""Values of one row of four in the second half of the file."""


def _lines(late: dict[int, dict[str, Any]], **style: Any) -> list[str]:
    """Return rows of 3 MB, some of which have more values than the others."""
    plain = {"click": 0, "text": PAD, "geo": {"land": "nz"}, "say": '":"\\'}
    return [json.dumps({**plain, "click": n % 2, **late.get(n, {})}, **style) for n in range(ROWS)]


def _preprocess(path: Path, **source: Any) -> DatasetManifest:
    rule = {"kind": "categorical", "columns": ["text", "say"]}
    land = {"kind": "categorical", "columns": "geo.land", "name": "land"}
    recipe = make_recipe(source={"kind": "table", "label": "click", "features": [rule, land], **source})
    job = preprocessing(recipe, {None: [str(path)]}, path.parent / "dataset")
    return job.run(EmbeddedEngine(1))


def test_keys_that_begin_late_are_columns(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(_lines(dict.fromkeys(range(ROWS // 2 + 7000, ROWS, 4), LATE))))
    found = sample_rows(list_inputs([str(path)]), FileFormat(), 1_000, 0).table.columns
    assert {'sh"op', "geo.city", "café"} <= set(found.names)


@pytest.mark.parametrize("style", [{}, {"separators": (",", ":")}, {"ensure_ascii": False}])
@pytest.mark.parametrize("form", ["lines", "packed", "array"])
def test_rare_keys_are_said_with_counts(tmp_path: Path, style: dict[str, Any], form: str) -> None:
    places = {17_003: LATE, 17_010: {'sh"op': None}, 17_011: {'sh"op': 0}}
    lines = _lines(places, **style)
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(lines) if form == "lines" else f"[{','.join(lines)}]")
    if form == "packed":
        path = path.with_suffix(".jsonl.gz")
        path.write_bytes(gzip.compress("\n".join(lines).encode()))
    manifest = _preprocess(path)
    (warning,) = manifest.warnings
    assert "'sh\"op' (2 rows)" in warning and "'geo.city' (1 row)" in warning and "'café' (1 row)" in warning
    assert "inner" not in warning and "gone" not in warning
    assert warning in result_of(manifest, tmp_path).details["warnings"]
    assert sample_rows(list_inputs([str(path)]), FileFormat(), 1_000, 0).others == {
        'sh"op': 2,
        "geo.city": 1,
        "café": 1,
    }


def test_what_a_recipe_ignores_is_not_said(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(_lines({17_003: LATE})))
    assert _preprocess(path, ignore=["sh*", "geo.city", "caf*"]).warnings == ()


def test_files_may_differ_in_ignored_columns(tmp_path: Path) -> None:
    rows = {"click": [0, 1] * 50, "text": ["a", "b"] * 50}
    for name, more in {"a": {}, "b": {"late": [1.5] * 100}}.items():
        pq.write_table(pa.table({**rows, **more}), tmp_path / f"{name}.parquet")
    files = list_inputs([str(tmp_path)])
    with pytest.raises(UserError, match=r"no column 'late', which .*b.parquet has"):
        open_table(files, FileFormat())
    assert open_table(files, FileFormat(), is_ignored="late".__eq__).columns.names == ["click", "text", "late"]


def test_a_name_of_another_object_is_said(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(_lines({17_003: {"shop": {"land": "de", "size": 3}}, 17_009: {"shop": {"size": 4}}})))
    assert sample_rows(list_inputs([str(path)]), FileFormat(), 1_000, 0).others == {"shop.land": 1, "shop.size": 2}
    path.write_text("\n".join(_lines({17_003: {"geo": {"land": "de", "text": "z"}}})))
    assert sample_rows(list_inputs([str(path)]), FileFormat(), 1_000, 0).others == {"geo.text": 1}
