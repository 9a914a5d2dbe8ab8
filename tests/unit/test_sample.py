"""Samples of tables: rows of all files as they stand, estimates of what was not read."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayrec.config.table import FileFormat
from rayrec.raw import sample
from rayrec.raw.input_files import list_inputs
from rayrec.raw.sample import sample_rows

ROWS = 60_000


def write_csv(folder: Path, frame: pd.DataFrame, number: int) -> None:
    frame.to_csv(folder / f"{number}.csv", index=False)


def write_gzip(folder: Path, frame: pd.DataFrame, number: int) -> None:
    (folder / f"{number}.csv.gz").write_bytes(gzip.compress(frame.to_csv(index=False).encode(), compresslevel=1))


def write_json(folder: Path, frame: pd.DataFrame, number: int) -> None:
    frame.to_json(folder / f"{number}.jsonl", orient="records", lines=True)


def write_parquet(folder: Path, frame: pd.DataFrame, number: int) -> None:
    pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), folder / f"{number}.parquet", row_group_size=500)


WRITERS: dict[str, Callable[[Path, pd.DataFrame, int], None]] = {
    "csv": write_csv,
    "gzip": write_gzip,
    "json": write_json,
    "parquet": write_parquet,
}


Written = tuple[str, Path, pd.DataFrame]
"""The kind of files, their folder, their rows."""


@pytest.fixture(scope="module", params=WRITERS)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Three files of very different sizes; `row` counts all rows. Those to be packed have 100 characters more a row."""
    kind, folder, rng = request.param, tmp_path_factory.mktemp("rows"), np.random.default_rng(0)
    frame = pd.DataFrame(
        {"row": np.arange(ROWS), "number": rng.random(ROWS), "text": "t" + pd.Series(range(ROWS)).astype(str)}
    )
    if kind == "gzip":
        text = rng.bytes(50 * ROWS).hex()
        frame["random"] = [text[start : start + 100] for start in range(0, len(text), 100)]
    for number, (start, stop) in enumerate([(0, 100), (100, 40_000), (40_000, ROWS)]):
        WRITERS[kind](folder, frame[start:stop], number)
    return kind, folder, frame


def test_small_files_are_read_whole(written: Written) -> None:
    kind, folder, frame = written
    files = list_inputs([str(folder)])
    found = sample_rows(files, FileFormat(), rows=2_000, seed=0)
    assert found.is_whole and found.total_rows == ROWS
    assert abs(found.bytes_read - sum(file.bytes for file in files)) < 0.1 * found.bytes_read
    assert found.rows.num_rows == 2_000
    position = found.rows["row"].cast(pa.int64()).to_numpy()
    assert (np.diff(position) > 0).all()
    assert 0.45 < position.mean() / ROWS < 0.55
    shown = frame.astype(str) if kind in ("csv", "gzip") else frame
    assert found.rows["text"].to_pylist() == frame["text"][position].tolist()
    if kind not in ("csv", "gzip"):
        assert found.rows["row"].type == pa.int64()
        assert found.rows["number"].to_pylist() == pytest.approx(shown["number"][position].tolist(), abs=1e-9)
    every = sample_rows(files, FileFormat(), rows=ROWS, seed=0)
    assert every.rows["row"].cast(pa.int64()).to_pylist() == list(range(ROWS))
    assert sample_rows(files, FileFormat(), rows=2_000, seed=0).rows.equals(found.rows)
    assert not sample_rows(files, FileFormat(), rows=2_000, seed=1).rows.equals(found.rows)


def test_large_files_are_read_at_places_all_over(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, folder, _ = written
    # Of a gzip file, tens of thousands of bytes are read ahead.
    monkeypatch.setattr(sample, "_WHOLE_BYTES", 2**21 if kind == "gzip" else 2**16)
    monkeypatch.setattr("rayrec.raw.text.BLOCK_BYTES", 2**12)
    monkeypatch.setattr("rayrec.raw.text._LEAST_BLOCK", 2**12)
    files = list_inputs([str(folder)])
    total_bytes = sum(file.bytes for file in files)
    found = sample_rows(files, FileFormat(), rows=500, seed=3)
    assert not found.is_whole and found.bytes_read < total_bytes
    assert found.rows.num_rows == 500
    assert found.total_rows == pytest.approx(ROWS, rel=0.1)
    position = found.rows["row"].cast(pa.int64()).to_numpy()
    assert (np.diff(position) > 0).all()
    assert position.min() < 10_000 and position.max() > 40_000
    if kind != "gzip":  # of a packed file only the beginning
        assert 0.4 < position.mean() / ROWS < 0.6 and np.diff(position).max() < 6_000


def test_values_of_several_types_are_text(tmp_path: Path) -> None:
    rows = [{"x": 1, "y": 1, "z": [1]}, {"x": "a", "y": 2.5}, {"x": {"b": True}, "z": [], "new": None}]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows) + "no row\n")
    pq.write_table(pa.table({"x": pa.array(["d"]).dictionary_encode(), "y": ["e"], "z": [[2]]}), tmp_path / "b.parquet")
    found = sample_rows(list_inputs([str(tmp_path / "a.jsonl")]), FileFormat(), rows=10, seed=0)
    assert found.rows.to_pydict() == {
        "x": ["1", "a", '{"b": true}'],
        "y": [1.0, 2.5, None],
        "z": [[1], None, []],
        "new": [None, None, None],
    }
    assert found.total_rows == 3
    dictionary = sample_rows(list_inputs([str(tmp_path / "b.parquet")]), FileFormat(), rows=10, seed=0)
    assert dictionary.rows.to_pylist() == [{"x": "d", "y": "e", "z": [2]}]
    assert dictionary.rows.schema.field("x").type == pa.string()


def test_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n")
    found = sample_rows(list_inputs([str(tmp_path)]), FileFormat(), rows=10, seed=0)
    assert found.rows.schema == pa.schema([("x", pa.string()), ("y", pa.string())])
    assert (found.rows.num_rows, found.total_rows, found.is_whole) == (0, 0, True)
