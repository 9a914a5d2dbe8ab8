"""A table with the rows that a delta changes and appends, against an array."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from rayrec.inference.folder.table_files import (
    ChangedTable,
    MappedTable,
    TablePrecision,
    mapped_bytes,
    new_changed_rows,
    new_table,
    stored_blocks,
)
from rayrec.inference.folder.tensor_files import MappedTensors
from rayrec.models.common.embedding_tables import EmbeddingTable, Zeros

COLUMNS, DIM = 4, 3
PRECISIONS: tuple[TablePrecision, ...] = ("fp32", "fp16", "int8")


def random_rows(rng: np.random.Generator, rows: int, precision: TablePrecision) -> dict[str, np.ndarray]:
    """Stored rows by tensor."""
    if precision == "int8":
        weight = rng.integers(-127, 128, (rows, COLUMNS)).astype(np.int8)
        return {"weight": weight, "scale": rng.random(rows).astype(np.float32)}
    return {"weight": rng.normal(size=(rows, COLUMNS)).astype(np.float32 if precision == "fp32" else np.float16)}


def make(
    folder: Path, precision: TablePrecision, base_rows: int, ids: Sequence[int]
) -> tuple[ChangedTable, dict[str, np.ndarray]]:
    """A table of `base_rows` rows of which some are changed or follow them; and what it holds then."""
    rng = np.random.default_rng(len(ids))
    held = random_rows(rng, base_rows, precision)
    with new_table(folder / "base", EmbeddingTable("t", ("t",), base_rows, COLUMNS, Zeros()), precision) as tensors:
        for name, values in held.items():
            tensors[name][:] = values
    rows = random_rows(rng, len(ids), precision)
    changed = {"other": np.arange(3), "t": np.array(ids)}
    with new_changed_rows(folder / "changed", changed, {"other": 8, "t": COLUMNS}, precision) as tensors:
        for name, values in rows.items():
            tensors["t"][name][:] = values
            grown = np.zeros((max(len(held[name]), max(ids) + 1), *values.shape[1:]), values.dtype)
            grown[: len(held[name])] = held[name]
            grown[list(ids)] = values
            held[name] = grown
    return ChangedTable(MappedTable.open(folder / "base", DIM), MappedTensors(folder / "changed"), "t"), held


CASES: dict[str, tuple[int, list[int]]] = {
    "one row changed": (5, [2]),
    "the first and the last": (5, [0, 4]),
    "all rows changed": (3, [0, 1, 2]),
    "appended alone": (2, [2, 3, 4]),
    "changed and appended": (4, [1, 3, 4, 5]),
    "a base of one row": (1, [0, 1, 2]),
    "many": (10, [*range(0, 10, 3), *range(10, 50)]),
}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("case", CASES)
def test_rows_are_those_of_the_changes_or_the_base(tmp_path: Path, case: str, precision: TablePrecision) -> None:
    table, held = make(tmp_path, precision, *CASES[case])
    expected = held["weight"][:, :DIM].astype(np.float32)
    if precision == "int8":
        expected *= held["scale"][:, None]
    rows = len(table)
    assert rows == len(expected)
    rng = np.random.default_rng(0)
    asked = [np.array([row]) for row in range(rows)]
    asked += [np.arange(rows), rng.integers(0, rows, 3 * rows), np.repeat(rng.integers(0, rows, 2), 2), np.arange(0)]
    for ids in asked:
        for dtype in (np.int32, np.int64):
            out = np.full((len(ids), DIM), np.nan, np.float32)
            table.read(ids.astype(dtype), out)
            np.testing.assert_array_equal(out, expected[ids])
    for start in range(rows):
        for stop in range(start, rows + 1):
            for name, values in table.stored_rows(start, stop).items():
                np.testing.assert_array_equal(values, held[name][start:stop])


def test_a_pass_over_a_table_holds_a_block_of_it(tmp_path: Path) -> None:
    rows = 1_000_000
    with new_table(tmp_path / "base", EmbeddingTable("t", ("t",), rows, 16, Zeros()), "fp32") as tensors:
        tensors["weight"][:] = np.arange(rows)[:, None]
    before, most, seen = mapped_bytes(), 0, 0
    for start, block in stored_blocks(MappedTable.open(tmp_path / "base", 16)):
        assert block["weight"][0, 0] == start
        seen += int(block["weight"].sum(axis=0, dtype=np.float64)[0])
        most = max(most, mapped_bytes() - before)
    assert seen == rows * (rows - 1) // 2
    assert most < 16 * 2**20, "the table has 64 MB, a block 4"
