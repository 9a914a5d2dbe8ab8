"""Datasets compared cell by cell: with each other, and with what another program computed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from rayrec.features.raw_columns import STATISTICS_FOLDER
from rayrec.ingest.dataset import VOCABULARY_FOLDER, Dataset

_NEARLY_0 = 1e-12
"""What is left of a difference of two numbers of float64 that are equal but for the last bit, such as two means."""


def read_rows(dataset: Dataset, split: str, columns: list[str] | None = None, *, parts: int | None = None) -> pa.Table:
    """Return the rows of a split, or of its first parts."""
    paths = [dataset.folder / part.path for part in dataset.manifest.splits[split].parts[:parts]]
    return pa.concat_tables([pq.read_table(path, columns=columns) for path in paths])


def compare_datasets(one: Dataset, other: Dataset) -> int:
    """Compare two datasets but for what names their inputs: schema, vocabularies, statistics, rows in their order.

    Returns the number of cells of all rows. Raises AssertionError naming what differs.
    """
    assert one.schema == other.schema, "schema"
    for folder in (VOCABULARY_FOLDER, STATISTICS_FOLDER):
        files, others = (_files(dataset.folder / folder) for dataset in (one, other))
        assert list(files) == list(others), f"files in {folder}"
        for name, path in files.items():
            assert _read(path).equals(_read(others[name])), f"{folder}/{name}"
    assert list(one.manifest.splits) == list(other.manifest.splits), "splits"
    cells = 0
    for split, info in one.manifest.splits.items():
        pairs = zip(info.parts, other.manifest.splits[split].parts, strict=True)
        for part, its_other in pairs:
            rows, others_rows = pq.read_table(one.folder / part.path), pq.read_table(other.folder / its_other.path)
            for name in rows.column_names:
                assert rows[name].equals(others_rows[name]), f"column {name} of {part.path}"
            assert rows.column_names == others_rows.column_names, f"columns of {part.path}"
            cells += rows.num_rows * rows.num_columns
        assert info == other.manifest.splits[split], split  # with the sums of the parts
    return cells


def _files(folder: Path) -> dict[str, Path]:
    return {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}


def _read(path: Path) -> pa.Table:
    if path.suffix == ".parquet":
        return pq.read_table(path)
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_file(file).read_all()


def compare_features(rows: pa.Table, features: Mapping[str, Any]) -> dict[str, int]:
    """Compare features of rows with those that were computed otherwise: arrays (n,) or (n, size), or lists of lists.

    Ids must be equal. Numbers may differ in the last bit of a float32, or by 1e-12; returns how many do, for the
    features that have some. Raises AssertionError naming a feature that differs.
    """
    off: dict[str, int] = {}
    for name, expected in features.items():
        column = rows[name].combine_chunks()
        if pa.types.is_floating(column.type) or pa.types.is_fixed_size_list(column.type):
            values = column.to_numpy() if pa.types.is_floating(column.type) else column.flatten().to_numpy()
            wanted = np.nan_to_num(np.asarray(expected, np.float64), nan=0.0).astype(np.float32).reshape(-1)
            unit = np.maximum(np.spacing(np.maximum(np.abs(values), np.abs(wanted))), _NEARLY_0)
            wrong = np.abs(values - wanted) > unit
            assert not wrong.any(), _shown(name, wrong, values, wanted)
            if number := int((values != wanted).sum()):
                off[name] = number
        elif pa.types.is_list(column.type):
            assert column.equals(pa.array(expected, column.type)), name
        else:
            values, wanted = column.to_numpy(), np.asarray(expected)
            assert np.array_equal(values, wanted), _shown(name, values != wanted, values, wanted)
    return off


def _shown(name: str, wrong: Any, values: Any, wanted: Any) -> str:
    first = int(np.flatnonzero(wrong)[0])
    return f"{name}: {wrong.sum()} values differ, in row {first} {values[first]} from {wanted[first]}"


def compare_identifiers(found: pa.Array, texts: "pd.Series[str]") -> None:
    """Compare int64 identifiers with texts: an integer is itself, other texts have a number each."""
    pairs = pd.DataFrame({"found": found.to_pandas().to_numpy(), "text": texts.to_numpy()})
    distinct = pairs.drop_duplicates()
    assert len(distinct) == distinct["found"].nunique() == distinct["text"].nunique()
    is_integer = distinct["text"].map(lambda text: text.isdigit() and str(int(text)) == text)
    integers = distinct[is_integer]
    assert (integers["found"] == integers["text"].astype(int)).all()
