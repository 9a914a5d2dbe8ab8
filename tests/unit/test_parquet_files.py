"""Files of a bounded number of rows."""

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayrec.store.parquet import WrittenFile, new_parquet_files

SCHEMA = pa.schema([("n", pa.int64())])


@given(batches=st.lists(st.integers(0, 12), max_size=6), most=st.integers(1, 10))
def test_rows_keep_their_order_in_files_of_at_most_so_many(batches: list[int], most: int) -> None:
    rows = list(range(sum(batches)))
    with tempfile.TemporaryDirectory() as folder:
        with new_parquet_files(Path(folder) / "rows", SCHEMA, most, compression="lz4") as (write, files):
            start = 0
            for count in batches:
                write(pa.RecordBatch.from_arrays([pa.array(rows[start : start + count], pa.int64())], schema=SCHEMA))
                start += count
        assert sorted(Path(folder).iterdir()) == [file.path for file in files]
        assert [file.rows for file in files] == [len(rows[at : at + most]) for at in range(0, len(rows), most)]
        assert [n for file in files for n in pq.ParquetFile(file.path).read()["n"].to_pylist()] == rows


def test_an_error_leaves_no_part_of_a_file(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1, 2, 3])], schema=SCHEMA)
    with pytest.raises(ZeroDivisionError), new_parquet_files(tmp_path / "rows", SCHEMA, 2) as (write, files):
        write(batch)
        _ = 1 / 0
    assert files == [WrittenFile(tmp_path / "rows-00000.parquet", 2), WrittenFile(tmp_path / "rows-00001.parquet", 1)]
    assert [path.name for path in tmp_path.iterdir()] == ["rows-00000.parquet"]
