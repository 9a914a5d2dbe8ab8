"""How rows are cut into segments and parts."""

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayrec.config.preprocess import ShardLayoutConfig
from rayrec.preprocessing import segments
from rayrec.preprocessing.parts import rows_of_a_part, write_part
from rayrec.preprocessing.segments import Piece, cut_pieces, make_segments, read_piece, segments_by_part

SCHEMA = pa.schema(
    [pa.field("label", pa.float32(), False), pa.field("x", pa.int64(), False), pa.field("c", pa.int32(), False)]
)


def rows(start: int, count: int) -> pa.RecordBatch:
    numbers = np.arange(start, start + count)
    columns = [pa.array((numbers % 2).astype(np.float32)), pa.array(numbers), pa.array((numbers * 3).astype(np.int32))]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


@pytest.mark.parametrize("sizes", [[1], [10], [7, 0, 1, 25, 3], [100], [10, 10, 10], [4, 4, 4]], ids=str)
def test_part_has_exact_row_groups(tmp_path: Path, sizes: list[int]) -> None:
    starts = np.cumsum([0, *sizes])
    batches = [rows(int(start), size) for start, size in zip(starts[:-1], sizes, strict=True)]
    layout = ShardLayoutConfig(rows_per_row_group=10)
    info, positives = write_part(tmp_path, "train", 3, "label", layout, batches)

    total = sum(sizes)
    assert info.path == "train/part-00003.parquet"
    assert info.rows == total
    assert info.row_groups == tuple([10] * (total // 10) + ([total % 10] if total % 10 else []))
    file = pq.ParquetFile(tmp_path / info.path)
    assert tuple(file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)) == info.row_groups
    assert file.read().combine_chunks().to_batches()[0].equals(rows(0, total))
    content = (tmp_path / info.path).read_bytes()
    assert info.bytes == len(content) and info.sha256 == hashlib.sha256(content).hexdigest()
    assert positives == total // 2
    assert [p.name for p in (tmp_path / "train").iterdir()] == ["part-00003.parquet"]


@pytest.mark.parametrize("cut", [1, 4, 7, 100])
def test_row_groups_end_with_groups(tmp_path: Path, cut: int) -> None:
    lengths = [3, 1, 9, 2, 2, 1, 30, 1, 1]
    group = np.repeat([5, -7, 2**40, 0, 9, 3, 1, 8, 4], lengths)
    schema = pa.schema([pa.field("label", pa.float32(), False), pa.field("g", pa.int64(), False)])
    whole = pa.RecordBatch.from_arrays([pa.array(np.ones(len(group), np.float32)), pa.array(group)], schema=schema)
    batches = [whole.slice(start, cut) for start in range(0, len(group), cut)]
    layout = ShardLayoutConfig(rows_per_row_group=4)
    info, _ = write_part(tmp_path, "train", 0, "label", layout, batches, "g")
    assert info.row_groups == (4, 9, 4, 31, 2)
    assert (info.rows, info.longest_group) == (50, 30)
    assert pq.read_table(tmp_path / info.path)["g"].to_numpy().tolist() == group.tolist()


PART_SIZES = {
    # rows of the split -> rows of a part, for the default layout
    1: 262_144,
    1_000_000: 262_144,
    10_000_000: 622_592,
    1_000_000_000: 4_194_304,
}


@pytest.mark.parametrize("total", PART_SIZES)
def test_rows_of_a_part(total: int) -> None:
    layout = ShardLayoutConfig(rows_per_row_group=32_768, rows_per_part=4_194_304)
    assert rows_of_a_part(total, layout) == PART_SIZES[total]


def test_part_smaller_than_a_row_group_holds_one() -> None:
    assert rows_of_a_part(10**6, ShardLayoutConfig(rows_per_row_group=1_000, rows_per_part=10)) == 1_000


PIECES = [Piece(Path("a"), 2, 5), Piece(Path("b"), 0, 1), Piece(Path("c"), 10, 4)]


def expand(pieces: list[Piece]) -> list[tuple[str, int]]:
    return [(piece.path.name, piece.start + i) for piece in pieces for i in range(piece.rows)]


def test_pieces_are_cut_at_any_row() -> None:
    everything = expand(PIECES)
    for start in range(11):
        for stop in range(start, 12):
            assert expand(cut_pieces(PIECES, start, stop)) == everything[start:stop]


def test_segments_cover_a_split_and_are_cut_to_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEGMENT_ROWS", 2)
    made = make_segments(PIECES, first_index=7)
    assert [s.index for s in made] == list(range(7, 13))
    assert [s.first for s in made] == [0, 2, 4, 5, 6, 8]
    assert expand([s.piece for s in made]) == expand(PIECES)
    for size in range(1, 12):
        parts = segments_by_part(made, size)
        everything = expand(PIECES)
        assert [expand([s.piece for s in part]) for part in parts] == [
            everything[start : start + size] for start in range(0, len(everything), size)
        ]
        assert all(s.piece.path == made[s.index - 7].piece.path for part in parts for s in part)
        assert [part[0].first for part in parts] == list(range(0, len(everything), size))


@pytest.mark.parametrize(
    ("rows_at_once", "bytes_at_once", "read_together"),
    [(5, 2**23, [6, 6, 6, 2]), (13, 2**23, [12, 8]), (2**16, 1, [6, 6, 6, 2]), (2**16, 2**23, [20])],
    ids=["larger row groups", "some of them together", "row groups of many bytes", "small row groups"],
)
def test_pieces_are_read_across_row_groups(
    rows_at_once: int, bytes_at_once: int, read_together: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayrec.preprocessing.segments._ROWS_AT_ONCE", rows_at_once)
    monkeypatch.setattr("rayrec.preprocessing.segments._BYTES_AT_ONCE", bytes_at_once)
    values = pa.array([f"v{i % 3}" if i % 4 else None for i in range(20)])
    pq.write_table(pa.table({"n": range(20), "v": values}), tmp_path / "rows.parquet", row_group_size=6)
    whole = read_piece(Piece(tmp_path / "rows.parquet", 0, 20), ["n"], [])
    assert [batch.num_rows for batch in whole] == read_together
    for start in range(20):
        for count in range(1, 21 - start):
            batches = list(read_piece(Piece(tmp_path / "rows.parquet", start, count), ["v", "n"], ["v"]))
            assert all(batch.schema.names == ["v", "n"] for batch in batches)
            assert all(pa.types.is_dictionary(batch["v"].type) for batch in batches)
            assert [n for batch in batches for n in batch["n"].to_pylist()] == list(range(start, start + count))
            assert [v for b in batches for v in b["v"].to_pylist()] == values.to_pylist()[start : start + count]
