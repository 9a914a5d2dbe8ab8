"""Which split a row falls into, if that follows from the row; what is kept of it."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from rayrec.config.preprocess import ColumnSplitConfig, HashSplitConfig, SplitConfig
from rayrec.config.table import FileFormat
from rayrec.features.string_hash import hash_string
from rayrec.preprocessing.rows.columns import KeptColumn
from rayrec.preprocessing.rows.kept_columns import KeptColumns, integers_of
from rayrec.preprocessing.rows.row_splits import RowDivision
from rayrec.raw.files import list_inputs, plan_chunks
from rayrec.raw.table import open_table
from tests.table_files import raw_columns

ROWS = 1_000
TABLE = pa.table({
    "click": [n % 2 for n in range(ROWS)],
    "n": list(range(ROWS)),
    "user": [None if n % 10 == 0 else f"u{n % 37}" for n in range(ROWS)],
    "fold": [("train", "test", None, "validation")[n % 4] for n in range(ROWS)],
    "weight": [0.5] * ROWS,
})  # fmt: skip


def divided(
    path: Path, split: SplitConfig, hashed: str | None = None, *, chunk_bytes: int = 2**30, seed: int = 0
) -> dict[str, list[int]]:
    """The numbers of the rows of each split."""
    files = list_inputs([str(path)])
    columns = raw_columns(n="integer", user="text", fold="text", weight="number")
    reader = open_table(files, FileFormat()).reader(columns, "click")
    kept = KeptColumns("click", (KeptColumn("weight", "weight", "w"),), (pa.field("n", pa.int64()),))
    division = RowDivision(split, seed, hashed, kept)
    found: dict[str, list[int]] = {name: [] for name in division.names}
    for chunk in plan_chunks(files, chunk_bytes):
        first = 1
        for block in reader.read(chunk):
            for name, rows in division.divide(block, chunk, first).items():
                assert rows.schema == division.schema
                found[name] += rows["n"].to_pylist()
            first += block.num_lines
    return found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("files")
    csv.write_csv(TABLE, folder / "log.csv")
    pq.write_table(TABLE, folder / "log.parquet", row_group_size=64)
    return {path.suffix[1:]: path for path in folder.iterdir()}


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("hashed", [None, "user"])
def test_hashed_splits_do_not_depend_on_the_chunks(files: dict[str, Path], kind: str, hashed: str | None) -> None:
    split = HashSplitConfig(validation=0.2, test=0.3)
    whole = divided(files[kind], split, hashed)
    assert sorted(n for rows in whole.values() for n in rows) == list(range(ROWS))
    for chunk_bytes in (500, 3_000):
        assert divided(files[kind], split, hashed, chunk_bytes=chunk_bytes) == whole
    assert divided(files[kind], split, hashed, seed=1) != whole
    if hashed is None:
        assert [len(rows) / ROWS for rows in whole.values()] == pytest.approx([0.5, 0.2, 0.3], abs=0.05)
    else:
        users = [{TABLE["user"][n].as_py() for n in rows} for rows in whole.values()]
        assert not users[0] & users[1] and not users[0] & users[2] and not users[1] & users[2]


def test_a_row_of_text_is_hashed_as_it_stands(files: dict[str, Path]) -> None:
    found = divided(files["csv"], HashSplitConfig(test=0.3), seed=7)
    lines = files["csv"].read_bytes().splitlines()[1:]
    assert found["test"] == [n for n, line in enumerate(lines) if xxhash.xxh64_intdigest(line, 7) / 2**64 >= 0.7]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_values_that_name_splits(files: dict[str, Path], kind: str) -> None:
    found = divided(files[kind], ColumnSplitConfig(column="fold"))
    assert found == {
        "train": [n for n in range(ROWS) if n % 4 in (0, 2)],
        "validation": list(range(3, ROWS, 4)),
        "test": list(range(1, ROWS, 4)),
    }
    both: dict[Any, Any] = {"test": ["validation", "train"]}
    others = divided(files[kind], ColumnSplitConfig(column="fold", values=both))
    assert others == {name: [n for n in range(ROWS) if (n % 4 in (0, 3)) == (name == "test")] for name in others}
    assert list(others) == ["train", "test"]


TEXTS = st.one_of(st.text(max_size=9), st.integers(-(2**70), 2**70).map(str), st.from_regex(r"\A0*[0-9]{1,3}\Z"))


@given(st.lists(TEXTS))
def test_numbers_of_groups(texts: list[str]) -> None:
    def number(text: str) -> int:
        is_integer = text.removeprefix("-").isascii() and text.removeprefix("-").isdigit() and str(int(text)) == text
        if is_integer and -(2**63) <= int(text) < 2**63:
            return int(text)
        hashed = hash_string(text)
        return hashed - 2**64 if hashed >= 2**63 else hashed

    expected = [number(text) for text in texts]
    for column in (pa.array(texts, pa.string()), pa.array(texts, pa.string()).dictionary_encode()):
        assert integers_of(column).tolist() == expected
    assert integers_of(pa.array([3, -5])).tolist() == [3, -5]
