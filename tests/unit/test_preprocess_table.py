"""Any table -> dataset folder: CSV and Parquet give the same parts, equal to a computation in pandas."""

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from rayrec.ingest.dataset import Dataset
from rayrec.preprocessing import extract, segments
from rayrec.preprocessing.engine import EmbeddedEngine
from rayrec.sources.registry import preprocessing
from rayrec.sources.table.config import TableConfig
from tests.builders import make_recipe
from tests.dataset_cells import compare_datasets, read_rows
from tests.table_reference import TableReference
from tests.wide_table import SOURCE, SPLIT, side_tables, write_log, write_side_tables

ROWS = 3_000
Run = Callable[..., Dataset]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the log, as csv/ and parquet/, and of the side tables."""
    folder = tmp_path_factory.mktemp("files")
    write_log(folder, ROWS, files=3, block_rows=400)
    return folder


@pytest.fixture(scope="module")
def table(files: Path) -> pd.DataFrame:
    """Return the rows of the log that have a label."""
    rows = pq.read_table(files / "parquet").to_pandas()
    return rows[rows["rating"].notna()]


@pytest.fixture
def run(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Preprocess into a new folder, in many small tasks."""
    monkeypatch.setattr(segments, "SEGMENT_ROWS", 500)
    monkeypatch.setattr(extract, "_LEAST_CHUNK_BYTES", 30_000)

    def call(path: str, name: str, source: dict[str, Any], **preprocess: Any) -> Dataset:
        config = TableConfig.model_validate(source)
        recipe = make_recipe(source=config, preprocess={"kind": "rows", "frequency_limit": 5, **preprocess})
        preprocessing(recipe, {None: [str(files / path)]}, tmp_path / name).run(EmbeddedEngine(2))
        return Dataset.open(tmp_path / name)

    return call


def test_csv_and_parquet_give_the_same_parts_and_those_of_pandas(run: Run, files: Path) -> None:
    tables = write_side_tables(files)
    source = {**SOURCE, "tables": side_tables(files)}
    settings = {"split": SPLIT, "layout": {"rows_per_row_group": 64}}
    csv, parquet = (run(name, name, source, **settings) for name in ("csv", "parquet"))
    assert compare_datasets(csv, parquet) > 70 * 0.9 * ROWS

    compared = TableReference(source, SPLIT, 5, files / "parquet", tables, csv).compare({})
    bad = parquet.manifest.rejected
    assert compared.rows == ROWS - sum(bad.values()) and min(bad.values()) > 1
    assert csv.manifest.rejected == {**bad, "wrong column count": 3}
    schema = {feature.name: feature for feature in csv.schema.features}
    assert schema["C2"].table == "C1" and schema["code"].cardinality == 30


SMALL: dict[str, Any] = {
    "label": {"column": "rating", "at_least": 4},
    "time": {"column": "now"},
    "features": [{"columns": "row", "kind": "numeric"}, {"columns": ["user", "C1"], "kind": "categorical"}],
    "ignore": ["*"],
}
SPLITS: dict[str, dict[str, Any]] = {
    "durations": {"kind": "time", "validation": "12h", "test": "1d"},
    "shares": {"kind": "time", "validation": 0.1, "test": 0.25},
    "users": {"kind": "hash", "column": "user", "validation": 0.2, "test": 0.3},
}


def small(*features: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a table of few columns; patterns of `ignore` do not take those that are named."""
    columns = [{"name": name, **rule} for rule in features for name in [rule["columns"]]]
    return {**SMALL, "features": columns, **changes}


@pytest.mark.parametrize("kind", SPLITS)
def test_splits(run: Run, table: pd.DataFrame, kind: str) -> None:
    source = small({"columns": "row", "kind": "numeric"}, {"columns": "C1", "kind": "categorical"})
    csv = run("csv", "csv", source, split=SPLITS[kind], order="input")
    rows = {split: read_rows(csv, split)["row"].cast("int64").to_pylist() for split in ("train", "validation", "test")}
    assert sorted(chain.from_iterable(rows.values())) == table["row"].tolist()
    assert all(of_split == sorted(of_split) for of_split in rows.values())
    if kind == "users":
        parquet = run("parquet", "parquet", source, split=SPLITS[kind], order="input")
        assert parquet.manifest.splits == csv.manifest.splits
        of_user = pd.Series({row: split for split, of_split in rows.items() for row in of_split})
        assert of_user.groupby(table["user"]).nunique().max() == 1
        assert abs(len(rows["test"]) / len(table) - 0.3) < 0.1
        return
    now = table["now"]
    if kind == "durations":
        is_test = now > now.max() - pd.Timedelta("1d")
        is_held_out = now > now.max() - pd.Timedelta("36h")
    else:
        ranked = np.sort(now.to_numpy())
        is_test, is_held_out = now >= ranked[-round(0.25 * len(now))], now >= ranked[-round(0.35 * len(now))]
    assert rows["test"] == table["row"][is_test].tolist()
    assert rows["validation"] == table["row"][is_held_out & ~is_test].tolist()
