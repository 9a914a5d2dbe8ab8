"""Side tables and rates written from raw files, and rows completed from them, against pandas."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayrec.common.progress import SilentProgress
from rayrec.config.table import FileFormat, SideTableConfig
from rayrec.features.lookups import RATES_FOLDER, Lookups
from rayrec.features.raw_columns import STATISTICS_FOLDER, Rate, RawColumn, SideTable
from rayrec.features.schema import Schema
from rayrec.preprocessing import segments
from rayrec.preprocessing.engine import EmbeddedEngine
from rayrec.preprocessing.extract import extract, pieces_of
from rayrec.preprocessing.lookups import CompletedRows, Folds, write_rates, write_served_rates, write_side_table
from rayrec.preprocessing.segments import cut_pieces, make_segments
from rayrec.preprocessing.workspace import Workspace
from rayrec.raw.input_files import list_inputs
from rayrec.raw.table_reader import open_table

ROWS, TRAIN = 3_000, 2_400
FOLDS, SEED = 5, 7
LOG = (RawColumn(name="user", type="text"), RawColumn(name="item", type="text"), RawColumn(name="site", type="text"))
USERS = SideTable(
    name="users", key="user", columns=("users_age", "users_home city", "users_joined", "users_tags", "users_a.b")
)
ITEMS = SideTable(name="items", key="item", columns=("items_price", "items_brand", "items_codes"))
GIVEN = (
    RawColumn(name="users_age", type="number"),
    RawColumn(name="users_home city", type="text"),
    RawColumn(name="users_joined", type="time"),
    RawColumn(name="users_tags", type="texts", separator="|"),
    RawColumn(name="users_a.b", type="integer"),
    RawColumn(name="items_price", type="number"),
    RawColumn(name="items_brand", type="text"),
    RawColumn(name="items_codes", type="integers"),
)
RATES = (
    Rate(name="rate_user", keys=("user",), smoothing=20.0, mean=0.0),
    Rate(name="rate_item_site", keys=("item", "site"), smoothing=0.5, mean=0.0),
    Rate(name="rate_brand/1", keys=("items_brand",), smoothing=0.0, mean=0.0),
)
SCHEMA = Schema(
    label="click",
    features=(),
    columns=(*LOG, *GIVEN, *(RawColumn(name=rate.name, type="number") for rate in RATES)),
    lookups=(USERS, ITEMS),
)
COLUMNS = [column.name for column in SCHEMA.columns]
CONFIGS = {
    "users": SideTableConfig(path="users", key="user id", on="user"),
    "items": SideTableConfig(path="items", key="item"),
}


def make_log() -> pd.DataFrame:
    """Clicks of users and items, of whom some are in no side table; a tenth of the values is missing."""
    rng = np.random.default_rng(1)
    log = pd.DataFrame(
        {
            "click": (rng.random(ROWS) < 0.3).astype(int),
            "user": [f"{n:03d}" for n in (250 * rng.random(ROWS) ** 2).astype(int)],
            "item": [f"Gerät {n}" for n in rng.integers(0, 40, ROWS)],
            "site": [("a", "b", "Ω")[n] for n in rng.integers(0, 3, ROWS)],
        }
    )
    for name in ("user", "item", "site"):
        log.loc[rng.random(ROWS) < 0.1, name] = None
    return log


def make_tables() -> dict[str, pd.DataFrame]:
    rng = np.random.default_rng(2)

    def gaps(values: list[Any]) -> list[Any]:
        return [None if rng.random() < 0.2 else value for value in values]

    users = pd.DataFrame(
        {
            "user id": [f"{n:03d}" for n in rng.permutation(230)],
            "age": gaps([round(float(age), 2) for age in rng.random(230) * 80]),
            "home city": gaps([f"city, {n}" for n in rng.integers(0, 9, 230)]),
            "joined": gaps([f"20{n:02d}-03-0{n % 9 + 1}T05:06:07.000089" for n in rng.integers(0, 24, 230)]),
            "tags": gaps(["|".join(f"tag {t}" for t in range(n)) or None for n in rng.integers(0, 4, 230)]),
            "a.b": gaps([int(n) for n in rng.integers(-(2**60), 2**60, 230)]),
            "unused": ["x"] * 230,
        },
        dtype=object,
    )
    items = pd.DataFrame(
        {
            "item": [f"Gerät {n}" for n in rng.permutation(36)],
            "price": gaps([float(p) for p in rng.random(36)]),
            "brand": gaps([f"brand {n}" for n in rng.integers(0, 6, 36)]),
            "codes": gaps([[int(c) for c in rng.integers(0, 99, n)] for n in rng.integers(0, 4, 36)]),
        },
        dtype=object,
    )
    return {"users": users, "items": items}


def numbered_rows(rows: int) -> pa.RecordBatch:
    return pa.record_batch({"row": np.arange(rows)})


def by_pandas(log: pd.DataFrame, tables: dict[str, pd.DataFrame], mean: float) -> pd.DataFrame:
    """Return the completed rows: what side tables hold of them, and the rates, in train out of fold."""
    users = tables["users"].set_index("user id").add_prefix("users_")
    items = tables["items"].set_index("item").add_prefix("items_")
    done = log.join(users, on="user").join(items, on="item").astype(object)
    done = done.where(done.notna(), None)
    joined = done["users_joined"]
    times = [None if time is None else pd.Timestamp(time, tz="UTC").to_pydatetime() for time in joined]
    done["users_joined"] = pd.Series(times, dtype=object)
    done["users_tags"] = [None if tags is None else tags.split("|") for tags in done["users_tags"]]
    # These are lists because pandas takes six seconds to give the values one by one.
    clicks = log["click"].to_list()
    fold = [*Folds(FOLDS, SEED, Path()).of(numbered_rows(TRAIN), 0).tolist(), *[-1] * (ROWS - TRAIN)]
    for rate in RATES:
        keys = list(zip(*(done[name] for name in rate.keys), strict=True))
        rows_of = {key: [row for row in range(TRAIN) if keys[row] == key] for key in set(keys) if None not in key}
        values = []
        for row, key in enumerate(keys):
            counted = [clicks[other] for other in rows_of.get(key, []) if fold[other] != fold[row]]
            smoothed = (sum(counted) + rate.smoothing * mean) / (len(counted) + rate.smoothing) if counted else mean
            values.append(smoothed)
        done[rate.name] = values
    return done[COLUMNS]


def write_csv(frame: pd.DataFrame, folder: Path, files: int) -> list[str]:
    """Write the rows as so many files."""
    folder.mkdir()
    for number, part in enumerate(np.array_split(np.arange(len(frame)), files)):
        frame.iloc[part].to_csv(folder / f"{number}.csv", index=False)
    return [str(folder)]


def write_parquet(frame: pd.DataFrame, folder: Path, files: int) -> list[str]:
    folder.mkdir()
    for number, part in enumerate(np.array_split(np.arange(len(frame)), files)):
        pq.write_table(pa.Table.from_pandas(frame.iloc[part], preserve_index=False), folder / f"{number}.parquet")
    return [str(folder)]


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    folder = tmp_path / "dataset"
    scratch = folder / ".scratch"
    scratch.mkdir(parents=True)
    return Workspace(EmbeddedEngine(2), folder, scratch, SilentProgress())


WriteTable = Callable[[SideTable, list[str]], dict[str, int]]


@pytest.fixture
def write(workspace: Workspace) -> WriteTable:
    """Write a side table from its files."""

    def call(table: SideTable, paths: list[str], max_rejected: float = 0.0) -> dict[str, int]:
        config = CONFIGS[table.name]
        opened = open_table(list_inputs(paths), config)
        given = [column for column in GIVEN if column.name in table.columns]
        columns = [column.model_copy(update={"name": column.name.split("_")[1]}) for column in given]
        reader = opened.reader([RawColumn(name=config.key, type="text"), *columns], required=[config.key])
        return write_side_table(workspace, table, config, reader, opened.files, max_rejected, {}).rejected

    return call


@pytest.mark.parametrize("files", [1, 4])
def test_completed_rows_equal_pandas_row_by_row(
    files: int, workspace: Workspace, write: WriteTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_ROWS", 700)
    monkeypatch.setattr("rayrec.preprocessing.lookups.ROWS_PER_RANGE", 200)
    log, tables = make_log(), make_tables()
    opened = open_table(list_inputs(write_csv(log, tmp_path / "log", files)), FileFormat())
    chunks, _ = extract(workspace, opened.reader(LOG, "click"), opened.files, 0.0)
    pieces = pieces_of(chunks)
    train = make_segments(cut_pieces(pieces, 0, TRAIN))
    test = make_segments(cut_pieces(pieces, TRAIN, ROWS))

    assert write(USERS, write_csv(tables["users"], tmp_path / "users", files)) == {}
    assert write(ITEMS, write_parquet(tables["items"], tmp_path / "items", files)) == {}
    folds = Folds(FOLDS, SEED, workspace.scratch / "rates")
    rates = write_rates(workspace, CompletedRows(SCHEMA, workspace.folder), train, RATES, folds)
    served = workspace.folder / STATISTICS_FOLDER / RATES_FOLDER
    served.mkdir()
    write_served_rates(workspace, rates, folds, served)
    mean = float(log["click"][:TRAIN].sum()) / TRAIN
    assert [rate.mean for rate in rates] == [mean] * len(RATES)

    schema = SCHEMA.model_copy(update={"lookups": (USERS, ITEMS, *rates)})
    expected = by_pandas(log, tables, mean).to_dict("records")
    of_train, of_test = CompletedRows(schema, workspace.folder, folds), CompletedRows(schema, workspace.folder)
    batches = [batch for segment in train for batch in of_train.read(segment, COLUMNS)]
    batches += [batch for segment in test for batch in of_test.read(segment, COLUMNS)]
    found = [row for batch in batches for row in batch.to_pylist()]
    assert len(found) == ROWS
    for number, (row, wanted) in enumerate(zip(found, expected, strict=True)):
        assert row == wanted, number

    # A request looks up in the dataset what rows of other splits have.
    lookups = Lookups(schema, workspace.folder)
    for row in found[TRAIN : TRAIN + 100]:
        raw = pa.record_batch({column.name: pa.array([row[column.name]], column.arrow) for column in LOG})
        assert lookups.complete(raw).select(COLUMNS).to_pylist() == [row]
    served = {path.name for path in (workspace.folder / "statistics" / "rates").iterdir()}
    assert served == {"rate_user", "rate_item_site", "rate_brand%2F1"}
    (batch,) = of_train.read(train[0], ["items_brand", "user"], ["items_brand", "user"])
    assert all(pa.types.is_dictionary(kind) for kind in batch.schema.types)
    assert batch["items_brand"].to_pylist() == [row["items_brand"] for row in found[: len(batch)]]


def test_rows_without_a_key_are_set_aside(workspace: Workspace, write: WriteTable, tmp_path: Path) -> None:
    items = make_tables()["items"]
    items.loc[[3, 5], "item"] = None
    rejected = write(ITEMS, write_parquet(items, tmp_path / "items", 1), 0.1)
    assert rejected == {"no value in a required column": 2}
    rows = pq.read_table(workspace.folder / "rejected").to_pylist()
    assert [(row["line"], row["column"]) for row in rows] == [(4, "item"), (6, "item")]


def test_folds_are_of_about_equal_size_and_follow_from_the_position() -> None:
    folds, rows = Folds(FOLDS, SEED, Path()), numbered_rows(10_000)
    found = folds.of(rows, 0)
    assert (np.abs(np.bincount(found, minlength=FOLDS) - 2_000) < 200).all()
    assert np.array_equal(found[1_234:], folds.of(rows[1_234:], 1_234))
    assert not np.array_equal(found, Folds(FOLDS, -SEED, Path()).of(rows, 0))


@pytest.mark.parametrize("type_", [pa.string(), pa.int64(), pa.dictionary(pa.int32(), pa.string())], ids=str)
def test_rows_of_a_group_share_a_fold(type_: pa.DataType) -> None:
    groups = np.repeat(np.arange(1_000), 10)
    np.random.default_rng(SEED).shuffle(groups)
    column = pa.array(groups.astype(str)).cast(type_) if pa.types.is_dictionary(type_) else pa.array(groups).cast(type_)
    folds = Folds(FOLDS, SEED, Path(), "display")
    found = folds.of(pa.record_batch({"display": column}), 0)
    assert pd.Series(found).groupby(groups).nunique().max() == 1
    assert (np.abs(np.bincount(found, minlength=FOLDS) - 2_000) < 400).all()
    assert np.array_equal(found[7:], folds.of(pa.record_batch({"display": column[7:]}), 0))
