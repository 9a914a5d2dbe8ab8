"""Any table -> dataset folder: CSV and Parquet give the same parts, equal to a computation in pandas."""

import json
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayrec.common.errors import UserError
from rayrec.features.keyed_table import hash_key
from rayrec.features.string_hash import hash_string
from rayrec.ingest.dataset import Dataset
from rayrec.preprocessing import extract, segments
from rayrec.sources.registry import preprocessing
from rayrec.sources.table.config import TableConfig
from tests.builders import make_recipe

ROWS = 3_000
ZONE = "Europe/Vienna"
LOG = {"op": "log", "offset": 1}
SOURCE: dict[str, Any] = {
    "label": {"column": "rating", "at_least": 4},
    "weight": "weight",
    "group": "session",
    "candidate": "item",
    "time": {"column": "now"},
    "ignore": ["debug_*"],
    "features": [
        {"columns": "row", "kind": "numeric"},
        {"columns": "price", "kind": "numeric", "transforms": [{"op": "fill", "value": "median"}, "standardize"]},
        {"columns": "price", "kind": "numeric", "name": "price_rank", "transforms": [{"op": "quantile", "count": 10}]},
        {"columns": "price", "kind": "buckets", "name": "price_quarter", "quantiles": 4},
        {"columns": "views", "kind": "buckets", "name": "views_range", "boundaries": [10, 20]},
        {
            "columns": "views",
            "kind": "numeric",
            "transforms": [{"op": "clip", "max": 40}, LOG, {"op": "fill", "value": "mean"}, "min_max"],
        },
        {"columns": "user", "kind": "categorical", "min_count": 12, "unlisted_buckets": 5},
        {"columns": "C1", "kind": "categorical", "max_size": 20},
        {"columns": "C2", "kind": "categorical", "share": "C1"},
        {"columns": "site", "kind": "categorical", "hash_buckets": 50},
        {"columns": "device", "kind": "categorical", "values": ["phone", "desk", "watch"]},
        {"columns": "code", "kind": "categorical", "cardinality": "auto"},
        {"columns": "tags", "kind": "list", "separator": "|", "max_length": 3, "min_count": 1},
        {"columns": "seen", "kind": "timestamp", "derive": ["hour", "weekday", "month", "age"], "zone": ZONE},
        {"columns": "vector", "kind": "vector", "size": 3, "separator": ";"},
        {"kind": "cross", "of": ["device", "code"], "buckets": 97},
        {"columns": "people_age", "kind": "numeric"},
        {"columns": "people_city", "kind": "categorical", "min_count": 1},
    ],
    "rates": [{"keys": "user", "transforms": []}],
}
SPLIT = {"kind": "column", "column": "debug_fold", "values": {"validation": ["v"], "test": ["t"]}}
Run = Callable[..., Dataset]


def missing(rng: np.random.Generator, values: Any, share: float = 0.1) -> pd.Series:
    return pd.Series(values).where(rng.random(len(values)) >= share, None)


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    """Rows of all kinds; a tenth of most columns is missing."""
    rng = np.random.default_rng(3)
    seen = pd.Timestamp("2024-03-30 20:00", tz="UTC") + pd.to_timedelta(rng.integers(0, 10**6, ROWS), "s")
    return pd.DataFrame({
        "row": np.arange(ROWS),
        "rating": rng.integers(1, 6, ROWS),
        "weight": rng.choice([0.0, 0.5, 1.25], ROWS),
        "session": [f"s{n}" if n % 2 else str(n) for n in rng.integers(0, 400, ROWS)],
        "item": [f"{n:03d}" for n in rng.integers(0, 60, ROWS)],
        "now": pd.Timestamp("2024-04-20", tz="UTC") + pd.to_timedelta(rng.integers(0, 10**6, ROWS), "s"),
        "debug_fold": rng.choice(["x", "v", "t"], ROWS, p=[0.8, 0.1, 0.1]),
        "price": missing(rng, np.round(rng.lognormal(2.0, 1.0, ROWS), 6)).astype(float),
        "views": missing(rng, rng.integers(0, 60, ROWS)).astype("Int64"),
        "user": missing(rng, [f"{n:03d}" for n in (200 * rng.random(ROWS) ** 2).astype(int)]),
        "C1": missing(rng, [f"v{n}" for n in (90 * rng.random(ROWS) ** 3).astype(int)]),
        "C2": missing(rng, [f"v{n}" for n in (90 * rng.random(ROWS) ** 2).astype(int)]),
        "site": missing(rng, [f"zw\u00f6lf, {n}" for n in rng.integers(0, 200, ROWS)]),
        "device": missing(rng, rng.choice(["desk", "phone", 'tv "4k"'], ROWS)),
        "code": missing(rng, rng.integers(0, 30, ROWS)).astype("Int64"),
        "tags": [[f"t{n}" for n in rng.integers(0, 25, rng.integers(1, 6))] for _ in range(ROWS)],
        "seen": missing(rng, seen).astype("datetime64[us, UTC]"),
        "vector": [list(np.round(rng.normal(size=3), 3)) for _ in range(ROWS)],
    })  # fmt: skip


@pytest.fixture(scope="module")
def files(table: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The table as log.csv.gz and in two Parquet files, and the side table people.csv."""
    folder = tmp_path_factory.mktemp("files")
    text = table.copy()
    text["tags"] = [" | ".join(tags).replace(" ", "") for tags in table["tags"]]
    text["vector"] = [";".join(map(str, values)) for values in table["vector"]]
    text.sample(frac=1.0, axis=1, random_state=0).to_csv(folder / "log.csv.gz", index=False)
    (folder / "parquet").mkdir()
    for number, part in enumerate((table[:1_100], table[1_100:])):
        pq.write_table(pa.Table.from_pandas(part, preserve_index=False), folder / f"parquet/{number}.parquet", 700)
    people = pd.DataFrame({"id": [f"{n:03d}" for n in range(150)], "age": range(150), "city": list("abc") * 50})
    people.to_csv(folder / "people.csv", index=False)
    return folder


@pytest.fixture
def run(spark: Any, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Preprocess into a new folder, in many small tasks."""
    monkeypatch.setattr(segments, "SEGMENT_ROWS", 500)
    monkeypatch.setattr(extract, "_LEAST_CHUNK_BYTES", 30_000)

    def call(paths: Sequence[str], name: str, source: dict[str, Any], **preprocess: Any) -> Dataset:
        tables = {"people": {"path": str(files / "people.csv"), "key": "id", "on": "user"}}
        config = TableConfig.model_validate({"tables": tables, **source})
        recipe = make_recipe(source=config, preprocess={"kind": "rows", "frequency_limit": 5, **preprocess})
        inputs = {None: [str(files / path) for path in paths]}
        preprocessing(recipe, inputs, tmp_path / name).run(spark)
        return Dataset.open(tmp_path / name)

    return call


def read_split(dataset: Dataset, split: str) -> pd.DataFrame:
    parts = dataset.manifest.splits[split].parts
    return pa.concat_tables([pq.read_table(dataset.folder / part.path) for part in parts]).to_pandas()


# --- an independent computation, in pandas


def listed(values: pd.Series, least: int, most: int | None = None) -> dict[str, int]:
    counts = values.dropna().value_counts()
    ranked = sorted(counts[counts >= least].items(), key=lambda item: (-item[1], str(item[0]).encode()))
    return {str(value): place for place, (value, _) in enumerate(ranked[:most], start=1)}


def ids(values: pd.Series, vocabulary: dict[str, int], buckets: int = 0) -> pd.Series:
    def one(value: Any) -> int:
        if not isinstance(value, str):
            return 0
        unlisted = len(vocabulary) + 1 + hash_string(value) % buckets if buckets else 0
        return vocabulary.get(value, unlisted)

    return values.map(one, na_action=None).astype(np.int32)


def expected(table: pd.DataFrame, train: pd.DataFrame) -> pd.DataFrame:
    """The features of all rows of a table, but for the rate of rows of train."""
    result = pd.DataFrame({"rating": (table["rating"] >= 4).astype(np.float32)})
    result["weight"] = table["weight"].astype(np.float32)
    result["row"] = table["row"].astype(np.float32)
    filled, of_train = (frame["price"].fillna(train["price"].median()) for frame in (table, train))
    result["price"] = (filled - of_train.mean()) / of_train.std(ddof=0)
    present = train["price"].dropna()
    result["price_rank"] = np.interp(table["price"], np.quantile(present, np.linspace(0, 1, 11)), np.linspace(0, 1, 11))
    quarters = np.searchsorted(np.quantile(present, [0.25, 0.5, 0.75]), table["price"], side="right")
    result["price_quarter"] = np.where(table["price"].isna(), 0, 1 + quarters)
    views = table["views"].astype(float)
    result["views_range"] = np.where(views.isna(), 0, 1 + (views >= 10) + (views >= 20))
    logs, of_train = (np.log(frame["views"].astype(float).clip(upper=40) + 1) for frame in (table, train))
    filled = logs.fillna(of_train.mean())
    result["views"] = (filled - of_train.min()) / (of_train.max() - of_train.min())
    result["user"] = ids(table["user"], listed(train["user"], 12), 5)
    shared = listed(pd.concat([train["C1"], train["C2"]]), 5, 20)
    result["C1"], result["C2"] = ids(table["C1"], shared), ids(table["C2"], shared)
    result["site"] = [1 + hash_string(v) % 49 if isinstance(v, str) else 0 for v in table["site"]]
    result["device"] = ids(table["device"], {"phone": 1, "desk": 2, "watch": 3})
    result["code"] = table["code"].fillna(0).astype(int)
    tags = listed(train["tags"].explode(), 1)
    result["tags"] = [[tags.get(tag, 0) for tag in row[:3]] for row in table["tags"]]
    local = table["seen"].dt.tz_convert(ZONE)
    for part, values in {"hour": local.dt.hour, "weekday": local.dt.weekday, "month": local.dt.month - 1}.items():
        result[f"seen_{part}"] = (values + 1).fillna(0)
    ages, of_train = ((frame["now"] - frame["seen"]).dt.total_seconds() / 86_400 for frame in (table, train))
    result["seen_age"] = (ages - of_train.mean()) / of_train.std(ddof=0)
    result["vector"] = table["vector"]
    crossed = hash_key(result["device"].to_numpy(np.int64), result["code"].to_numpy(np.int64)).view(np.uint64)
    is_there = (result["device"] > 0) | (result["code"] > 0)
    result["device_x_code"] = np.where(is_there, 1 + (crossed % np.uint64(96)).astype(np.int64), 0)
    number = pd.to_numeric(table["user"]).where(lambda n: n < 150)
    result["people_age"] = number.fillna(0.0)
    cities = number.map({n: "abc"[n % 3] for n in range(150)})
    of_train = cities[train.index]
    result["people_city"] = ids(cities, listed(of_train, 1))
    clicks = (train["rating"] >= 4).groupby(train["user"]).agg(["sum", "count"])
    mean = (train["rating"] >= 4).mean()
    rates = (clicks["sum"] + 20 * mean) / (clicks["count"] + 20)
    result["rate_user"] = table["user"].map(rates).fillna(mean)
    return result


def test_csv_and_parquet_give_the_same_parts_and_those_of_pandas(run: Run, table: pd.DataFrame) -> None:
    layout = {"rows_per_row_group": 64}
    csv = run(["log.csv.gz"], "csv", SOURCE, split=SPLIT, layout=layout)
    parquet = run(["parquet"], "parquet", SOURCE, split=SPLIT, layout=layout)
    joined = run(["log.csv.gz"], "joined", SOURCE, split=SPLIT, layout=layout, broadcast_limit=3)
    assert csv.schema == parquet.schema == joined.schema
    assert csv.manifest.splits == parquet.manifest.splits == joined.manifest.splits  # with the sums of the parts
    assert csv.manifest.rejected == {}

    folds = {"train": "x", "validation": "v", "test": "t"}
    wanted = expected(table, table[table["debug_fold"] == "x"])
    for split, fold in folds.items():
        found = read_split(csv, split)
        assert sorted(found["row"]) == list(np.flatnonzero(table["debug_fold"] == fold))
        raw = table.loc[found["row"].astype(int)].reset_index(drop=True)
        for kind, column in {"group": "session", "candidate": "item"}.items():
            name = getattr(csv.schema, kind)
            pairs = pd.Series(list(zip(found[name], raw[column], strict=True)))
            assert pairs.nunique() == raw[column].nunique() == found[name].nunique()
            integers = raw[column][[text.isdigit() and str(int(text)) == text for text in raw[column]]].astype(int)
            assert (found.loc[integers.index, name] == integers).all()
        changes = (found[csv.schema.group] != found[csv.schema.group].shift()).sum()
        assert changes == found[csv.schema.group].nunique()
        assert found.columns[:4].tolist() == ["rating", "weight", "session", "item"]
        right = wanted.loc[found["row"].astype(int)].reset_index(drop=True)
        for name in right.columns:
            if name == "rate_user" and split == "train":
                continue  # out of fold
            if name in ("tags", "vector"):
                assert np.array_equal(np.concatenate(found[name]), np.concatenate(right[name]).astype(np.float32)), name
                continue
            difference = np.abs(found[name] - right[name].fillna(0.0).astype(np.float64))
            assert difference.max() <= 1e-6 * max(1.0, np.abs(right[name]).max()), name
    info = csv.manifest.splits["train"]
    assert info.longest_group == table[table["debug_fold"] == "x"]["session"].value_counts().max()
    schema = {feature.name: feature for feature in csv.schema.features}
    assert schema["C2"].table == "C1" and schema["code"].cardinality == 30
    json.loads((csv.folder / "schema.json").read_text())


SMALL: dict[str, Any] = {
    "label": {"column": "rating", "at_least": 4},
    "time": {"column": "now"},
    "tables": {},
    "features": [{"columns": "row", "kind": "numeric"}, {"columns": ["user", "C1"], "kind": "categorical"}],
    "ignore": ["*"],
}
SPLITS: dict[str, dict[str, Any]] = {
    "durations": {"kind": "time", "validation": "12h", "test": "1d"},
    "shares": {"kind": "time", "validation": 0.1, "test": 0.25},
    "users": {"kind": "hash", "column": "user", "validation": 0.2, "test": 0.3},
}


def small(*features: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A table of few columns; patterns of `ignore` do not take those that are named."""
    columns = [{"name": name, **rule} for rule in features for name in [rule["columns"]]]
    return {**SMALL, "features": columns, **changes}


@pytest.mark.parametrize("kind", SPLITS)
def test_splits(run: Run, table: pd.DataFrame, kind: str) -> None:
    source = small({"columns": "row", "kind": "numeric"}, {"columns": "C1", "kind": "categorical"})
    csv = run(["log.csv.gz"], "csv", source, split=SPLITS[kind], order="input")
    rows = {split: read_split(csv, split)["row"].astype(int).tolist() for split in ("train", "validation", "test")}
    assert sorted(chain.from_iterable(rows.values())) == list(range(ROWS))
    assert all(of_split == sorted(of_split) for of_split in rows.values())
    if kind == "users":
        parquet = run(["parquet"], "parquet", source, split=SPLITS[kind], order="input")
        assert parquet.manifest.splits == csv.manifest.splits
        of_user = pd.Series({row: split for split, of_split in rows.items() for row in of_split})
        assert of_user.groupby(table["user"]).nunique().max() == 1
        assert abs(len(rows["test"]) / ROWS - 0.3) < 0.1
        return
    now = table["now"]
    if kind == "durations":
        is_test = now > now.max() - pd.Timedelta("1d")
        is_held_out = now > now.max() - pd.Timedelta("36h")
    else:
        ranked = np.sort(now.to_numpy())
        is_test, is_held_out = now >= ranked[ROWS - 750], now >= ranked[ROWS - 1_050]
    assert rows["test"] == np.flatnonzero(is_test).tolist()
    assert rows["validation"] == np.flatnonzero(is_held_out & ~is_test).tolist()


ROW = {"columns": "row", "kind": "numeric"}
WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "constant label": (
        small(ROW, label={"column": "rating", "at_least": 0}),
        {},
        "source.label: column 'rating' is 1 in all 3,000 rows of train, so there is nothing to learn; give",
    ),
    "cardinality too small": (
        small({"columns": "code", "kind": "categorical", "cardinality": 7}),
        {},
        "source.features.0.cardinality: ids of 'code' go up to 29 in train, so 7 is too small; give 30 or more",
    ),
    "nothing listed": (
        small({"columns": "user", "kind": "categorical"}),
        {"frequency_limit": 1_000},
        "preprocess.frequency_limit: no value of a categorical column occurs 1000 times in train, so that",
    ),
    "empty split": (
        small(ROW),
        {"split": {"kind": "column", "column": "debug_fold", "values": {"test": ["T"]}}},
        "preprocess.split.test: of 3,000 good rows none falls into test; change it",
    ),
    "words as numbers": (
        small(ROW, {"columns": "device", "kind": "numeric"}),
        {},
        ": not a number (column 'device': '",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_only_the_rows_show_is_one_line(run: Run, case: str, tmp_path: Path) -> None:
    source, preprocess, message = WRONG[case]
    with pytest.raises(UserError) as caught:
        run(["log.csv.gz"], "wrong", source, **{"split": {"kind": "fraction", "test": 0.0}, **preprocess})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())
