"""Tables in every precision: what is read is what was stored, near to what was trained; and their memory is limited."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from rayrec.common.errors import UserError
from rayrec.features.vocabulary import VocabularyLookup
from rayrec.inference.folder.model_folder import ModelFolder
from rayrec.inference.folder.table_files import (
    MappedTable,
    TableMemory,
    TablePrecision,
    mapped_bytes,
    new_table,
    quantise_tables,
    table_file,
)
from rayrec.inference.folder.tensor_files import open_tensors, save_tensors
from rayrec.inference.predictor import load_model
from rayrec.models.common.embedding_tables import EmbeddingTable, Zeros
from tests.model_folders import finish, make_model_folder, make_raw_rows
from tests.vocabularies import write_vocabulary


def make_table(folder: Path, values: np.ndarray, dim: int | None = None) -> EmbeddingTable:
    """A float32 table in a folder of tables."""
    table = EmbeddingTable("t", ("t",), len(values), dim or values.shape[1], Zeros())
    path = folder / table_file("t")
    path.parent.mkdir(parents=True)
    with new_table(path, table, "fp32") as tensors:
        tensors["weight"][:, : table.dim] = values
    return table


def read(folder: Path, ids: np.ndarray, dim: int) -> np.ndarray:
    out = np.empty((len(ids), dim), np.float32)
    MappedTable.open(folder / table_file("t"), dim).read(ids, out)
    return out


# Rows of every magnitude, zeros, one value alone, and a number of rows beyond one block.
RNG = np.random.default_rng(0)
VALUES = (RNG.normal(size=(70_000, 6)) * 10.0 ** RNG.integers(-6, 3, (70_000, 1))).astype(np.float32)
VALUES[3] = 0
VALUES[4, 1:] = 0


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_a_stored_row_is_near_the_trained_one(tmp_path: Path, precision: TablePrecision) -> None:
    table = make_table(tmp_path, VALUES)
    quantise_tables(tmp_path, [table], precision)
    ids = np.concatenate([np.arange(70_000), [5, 5, 69_999]])
    found, expected = read(tmp_path, ids, 6), VALUES[ids]
    if precision == "fp16":
        np.testing.assert_array_equal(found, expected.astype(np.float16).astype(np.float32))
        return
    largest = np.abs(expected).max(axis=1)
    # Half a step of 127, and the rounding of the scale.
    assert (np.abs(found - expected).max(axis=1) <= largest / 127 * 0.5001).all()
    np.testing.assert_allclose(np.abs(found).max(axis=1), largest, rtol=1e-6)
    assert (found[3] == 0).all() and (found[4, 1:] == 0).all()


def test_columns_that_are_not_read(tmp_path: Path) -> None:
    make_table(tmp_path, VALUES[:10, :5], dim=5)
    assert MappedTable.open(tmp_path / table_file("t"), 5).dim == 5
    np.testing.assert_array_equal(read(tmp_path, np.array([9, 0]), 5), VALUES[[9, 0], :5])


@pytest.mark.parametrize(
    ("value", "precision", "message"),
    [
        (1e5, "fp16", "beyond 65504; use --tables"),
        (np.inf, "int8", "infinite or NaN"),
        (np.nan, "fp16", "infinite or NaN"),
    ],
)
def test_weights_that_do_not_fit(tmp_path: Path, value: float, precision: TablePrecision, message: str) -> None:
    values = VALUES[:10].copy()
    values[7, 2] = value
    table = make_table(tmp_path, values)
    before = (tmp_path / table_file("t")).read_bytes()
    with pytest.raises(UserError, match=message):
        quantise_tables(tmp_path, [table], precision)
    assert (tmp_path / table_file("t")).read_bytes() == before
    assert len(list((tmp_path / table_file("t")).parent.iterdir())) == 1


@pytest.mark.parametrize(("precision", "factor", "tolerance"), [("fp16", 2, 2e-3), ("int8", 4, 2e-2)])
def test_a_model_folder_of_smaller_tables(
    tmp_path: Path, precision: TablePrecision, factor: int, tolerance: float
) -> None:
    make_model_folder(tmp_path / "model", multi_hot=2)
    before = load_model(tmp_path / "model")
    rows = make_raw_rows(before.schema, 300)
    expected = before.predict(rows)
    folder = ModelFolder.open(tmp_path / "model")
    full = {table.name: folder.table(table).clone() for table in folder.tables}
    weights = sum(table.numel() * 4 for table in full.values())
    quantise_tables(folder.folder, folder.tables, precision)
    finish(folder.folder)
    opened = ModelFolder.open(tmp_path / "model")
    headers = 4096 * len(opened.tables)
    scales = 4 * sum(table.rows for table in opened.tables) if precision == "int8" else 0
    assert opened.table_bytes() == headers + weights // factor + scales
    for table in opened.tables:
        torch.testing.assert_close(opened.table(table), full[table.name], rtol=0, atol=tolerance)
    scores = load_model(tmp_path / "model").predict(rows)
    assert 0 < np.abs(scores - expected).max() < tolerance


def test_the_same_tensors_are_the_same_bytes(tmp_path: Path) -> None:
    tensors = {
        "a": np.float32([[1, 2, 3]]), "b": np.int64(7), "c": np.zeros((0, 4), np.float32), "d": np.array([True, False]),
        "e": np.int32([3]), "f": np.arange(4),
    }  # fmt: skip
    for number, names in enumerate(("abcdef", "fedcba", "c", "")):
        save_tensors(tmp_path / str(number), {name: np.asarray(tensors[name]) for name in names})
        with open_tensors(tmp_path / str(number)) as found:
            assert set(found.keys()) == set(names)
            for name in names:
                np.testing.assert_array_equal(found.get_tensor(name).numpy(), tensors[name])
    assert (tmp_path / "0").read_bytes() == (tmp_path / "1").read_bytes()


def test_memory_of_tables_is_limited(tmp_path: Path) -> None:
    """Ids all over a table of 32 MiB, all of which a process would hold."""
    rows, dim = 131_072, 64
    values = np.repeat(np.arange(rows, dtype=np.float32)[:, None], dim, axis=1)
    make_table(tmp_path, values)
    table = MappedTable.open(tmp_path / table_file("t"), dim)
    before, limit = mapped_bytes(), 8 * 2**20
    memory = TableMemory(limit)
    memory.add(table.mapped[0])
    everything = np.empty((rows, dim), np.float32)
    table.read(np.arange(rows), everything)
    assert mapped_bytes() - before > 30 * 2**20
    rng = np.random.default_rng(1)
    out = np.empty((64, dim), np.float32)
    for _ in range(100):
        # 64 rows bring at most 4 MiB, and the look that 1,024 rows are due comes after each of them.
        ids = rng.integers(0, rows, 64)
        memory.note(1024)
        assert mapped_bytes() - before <= limit
        table.read(ids, out)
        np.testing.assert_array_equal(out, values[ids])


def test_memory_of_vocabularies_is_limited(tmp_path: Path) -> None:
    """Values all over an index of 8 MiB, all of which a process would hold."""
    values = [f"value-{number:07d}" for number in range(250_000)]
    write_vocabulary(tmp_path / "v.parquet", values, range(len(values), 0, -1))
    before, limit = mapped_bytes(), 4 * 2**20
    lookup = VocabularyLookup.load(tmp_path / "v.parquet")
    asked = pa.array(values)
    for start in range(0, len(values), 2_000):
        assert lookup.ids(asked.slice(start, 2_000))[0] == start + 1
    assert mapped_bytes() - before > 6 * 2**20
    lookup.mapped[0].release()
    before, memory = mapped_bytes(), TableMemory(limit)
    memory.add(lookup.mapped[0])
    rng = np.random.default_rng(1)
    for _ in range(100):
        places = rng.integers(0, len(values), 64)
        memory.note(1024)
        assert mapped_bytes() - before <= limit
        assert lookup.ids(asked.take(pa.array(places))).tolist() == (places + 1).tolist()
