"""What a report says of a dataset, beside pandas on the raw rows that it was made from."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from rayrec.common.progress import SilentProgress
from rayrec.config.transforms import Clip, Fill, HashIds, Log, MinMax, NumericTransform, Quantile, Vocabulary
from rayrec.features.id_meanings import ValueNames
from rayrec.features.schema import CategoricalFeature
from rayrec.features.transforms import encode_numeric, untransformed
from rayrec.ingest.dataset import Dataset
from rayrec.ingest.packed_rows import SplitColumns
from rayrec.inspection import profiles
from rayrec.inspection.cells import cells_by_frequency, cells_of_rows, values_of_rows
from rayrec.inspection.drift import drift_between
from rayrec.inspection.profiles import dataset_figures
from rayrec.metrics.estimates import wilson
from rayrec.preprocessing.engine import EmbeddedEngine
from rayrec.recipes import Recipe
from rayrec.sources.registry import preprocessing
from tests.builders import make_dataset
from tests.table_schema import CHAINS
from tests.vocabularies import write_vocabulary

Figures = dict[str, Any]
ROWS = 3_000
LEAST = 16
"""How often a listed shop occurs in train."""
RECIPE: dict[str, Any] = {
    "name": "shops",
    "source": {
        "kind": "table",
        "label": "click",
        "time": "when",
        "ignore": ["part"],
        "features": [
            {"columns": "price", "kind": "numeric", "transforms": [{"op": "log", "offset": 1}, "standardize"]},
            {"columns": "stars", "kind": "numeric"},
            {"columns": "shop", "kind": "categorical", "min_count": LEAST, "unlisted_buckets": 3},
            {"columns": "city", "kind": "categorical", "min_count": 30},
            {"columns": "tags", "kind": "list", "separator": "|"},
            {"columns": "when", "kind": "timestamp", "derive": ["hour", "weekday"]},
            {"columns": "age", "kind": "buckets", "boundaries": [20, 40]},
            {"columns": "look", "kind": "vector", "size": 2, "separator": " "},
            {"of": ["shop", "city"], "kind": "cross", "buckets": 50, "name": "both"},
        ],
    },
    "preprocess": {
        "split": {"kind": "column", "column": "part", "values": {"test": ["test"]}},
        "order": "input",
        "max_rejected_fraction": 0.1,
        "layout": {"rows_per_row_group": 200},
    },
    "model": {"kind": "dcnv2"},
}


def raw_rows(seed: int, rows: int = ROWS, shops: int = 40) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    shares = 1 / np.arange(1, shops + 1)
    shop = rng.choice(shops, rows, p=shares / shares.sum())
    frame = pd.DataFrame({
        "click": (rng.random(rows) < 0.1 + 0.5 * (shop % 2)).astype(int).astype(str),
        "when": pd.date_range("2026-03-02", periods=rows, freq="7min").strftime("%Y-%m-%dT%H:%M:%S"),
        "part": np.where(np.arange(rows) < 0.8 * rows, "train", "test"),
        "price": rng.integers(0, 400, rows).astype(str),
        "stars": rng.integers(1, 6, rows).astype(str),
        "shop": [f"shop-{n}" for n in shop],
        "city": np.where(rng.random(rows) < 0.1, "", [f"<city>{n}" for n in rng.integers(0, 4, rows)]),
        "tags": ["|".join(rng.choice(["a", "b", "c"], rng.integers(0, 3))) for _ in range(rows)],
        "age": rng.integers(10, 60, rows).astype(str),
        "look": [f"{a:.2f} {b:.2f}" for a, b in rng.normal(size=(rows, 2))],
    })  # fmt: skip
    return frame


def make(folder: Path, frame: pd.DataFrame) -> Dataset:
    folder.mkdir(parents=True)
    frame.to_csv(folder / "rows.csv", index=False)
    recipe = Recipe.model_validate(RECIPE)
    preprocessing(recipe, {None: [str(folder / "rows.csv")]}, folder / "dataset").run(EmbeddedEngine(2))
    return Dataset.open(folder / "dataset")


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    frame = raw_rows(0)
    frame.loc[[5, 17, 40, 41], "click"] = "maybe"
    frame.loc[100, "price"] = "dear"
    return frame


@pytest.fixture(scope="module")
def dataset(frame: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return make(tmp_path_factory.mktemp("profile") / "one", frame)


@pytest.fixture(scope="module")
def found(dataset: Dataset) -> Figures:
    return dataset_figures(dataset, SilentProgress())


@pytest.fixture(scope="module")
def train(frame: pd.DataFrame) -> pd.DataFrame:
    good = frame[frame["click"].isin(["0", "1"]) & (frame["price"] != "dear") & (frame["part"] == "train")]
    return good.assign(click=good["click"].astype(float))


def feature(found: Figures, name: str) -> Figures:
    return next(one for one in found["features"] if one["name"] == name)


def expected(train: pd.DataFrame, by: Any) -> dict[Any, tuple[int, float]]:
    """Rows and label rate of each value."""
    groups = train.groupby(by)["click"].agg(["size", "mean"])
    return {value: (int(row["size"]), float(row["mean"])) for value, row in groups.iterrows()}


def rates(one: Figures) -> dict[str, tuple[int, float]]:
    return {cell["value"]: (cell["rows"], pytest.approx(cell["label_rate"])) for cell in one["cells"]}


def test_splits_and_rejected_rows(found: Figures, train: pd.DataFrame) -> None:
    split = found["splits"]["train"]
    assert split["rows"] == split["rows_read"] == len(train)
    assert split["label_rate"] == pytest.approx(train["click"].mean())
    assert [(one["reason"], one["rows"], len(one["examples"])) for one in found["rejected"]] == [
        ("label other than 0 or 1", 4, 3),
        ("not a number", 1, 1),
    ]
    example = found["rejected"][1]["examples"][0]
    assert (example["line"], example["column"], example["value"]) == (102, "price", "dear")


def test_the_label_rate_along_the_rows(found: Figures, train: pd.DataFrame) -> None:
    parts = found["splits"]["train"]["along"]
    assert sum(part["rows"] for part in parts) == len(train)
    first = parts[0]
    assert first["label_rate"] == pytest.approx(train["click"].iloc[: first["rows"]].mean())
    assert (first["low"], first["high"]) == wilson(first["label_rate"], first["rows"])


def test_values_that_are_listed_missing_and_not_listed(found: Figures, train: pd.DataFrame) -> None:
    shop = feature(found, "shop")
    counts = Counter(train["shop"])
    listed = train["shop"].map(counts) >= LEAST
    of_rows = expected(train, train["shop"].where(listed, "not listed"))
    frequent = sorted((n for n in of_rows if n != "not listed"), key=lambda name: -of_rows[name][0])[:20]
    shown = rates(shop)
    assert {name: shown[name] for name in (*frequent, "not listed")} == {
        name: of_rows[name] for name in (*frequent, "not listed")
    }
    assert shop["unlisted_share"] == pytest.approx(1 - listed.mean()) and shop["missing_share"] == 0
    assert sum(cell["share"] for cell in shop["cells"]) == pytest.approx(1)
    city = feature(found, "city")
    assert city["missing_share"] == pytest.approx((train["city"] == "").mean())
    assert rates(city) == expected(train, train["city"].where(train["city"] != "", "missing or not listed"))
    assert (city["table_rows"], city["distinct"]) == (5, 5)


def test_numbers_are_named_as_in_the_raw_rows(found: Figures, train: pd.DataFrame) -> None:
    price, stars = feature(found, "price"), feature(found, "stars")
    raw = train["price"].astype(float)
    assert price["range"] == pytest.approx({
        "min": raw.min(), "5%": raw.quantile(0.05), "median": raw.median(), "95%": raw.quantile(0.95),
        "max": raw.max(), "mean": raw.mean(),
    }, rel=1e-4)  # fmt: skip
    for cell in price["cells"]:
        low, _, high = cell["value"].partition(" to ")
        inside = raw.between(float(low), float(high or low))
        assert (cell["rows"], cell["label_rate"]) == (inside.sum(), pytest.approx(train["click"][inside].mean()))
    assert rates(stars) == expected(train, train["stars"])


def test_times_buckets_lists_and_vectors(found: Figures, train: pd.DataFrame) -> None:
    when = pd.to_datetime(train["when"])
    assert rates(feature(found, "when_weekday")) == expected(train, when.dt.day_name())
    assert rates(feature(found, "when_hour")) == expected(train, when.dt.hour.astype(str) + ":00")
    names = ["below 20", "20 to 40", "from 40"]
    age = pd.cut(train["age"].astype(int), [0, 19, 39, 99], labels=names).astype(str)
    assert rates(feature(found, "age")) == expected(train, age)
    tags = train["tags"].str.split("|").explode()
    of_tags = pd.DataFrame({"tags": tags, "click": train["click"].loc[tags.index]})
    lists = feature(found, "tags")
    assert rates(lists) == expected(of_tags[of_tags["tags"] != ""], "tags")
    assert lists["mean_length"] == pytest.approx((tags != "").sum() / len(train))
    length = np.linalg.norm(np.array([text.split() for text in train["look"]], float), axis=1)
    assert feature(found, "look")["range"]["max"] == pytest.approx(length.max(), rel=1e-5)
    crossed = {cell["value"] for cell in feature(found, "both")["cells"]} - {"other values"}
    assert all(value.startswith("bucket ") for value in crossed)


def test_every_row_is_in_one_cell(dataset: Dataset, train: pd.DataFrame) -> None:
    names = [one.name for one in dataset.schema.features]
    rows = pa.concat_batches(list(dataset.rows("train", names, 10_000)))
    for one in dataset.schema.features:
        values = values_of_rows(one, rows.column(one.name))
        cells = cells_of_rows(one, values, dataset.folder)
        assert cells.count(values).sum() == len(train), one.name
    tags = next(one for one in dataset.schema.categorical if one.name == "tags")
    values = values_of_rows(tags, rows.column("tags"))
    cells = cells_of_rows(tags, values, dataset.folder)
    shown = dict(zip(cells.names, cells.count(values).tolist(), strict=True))
    lengths = Counter(len([t for t in text.split("|") if t]) for text in train["tags"])
    assert shown == {f"{n} value{'' if n == 1 else 's'}": count for n, count in lengths.items()}


def test_rows_by_how_often_their_value_occurs(dataset: Dataset, train: pd.DataFrame) -> None:
    shop, city = (next(one for one in dataset.schema.categorical if one.name == name) for name in ("shop", "city"))
    assert cells_by_frequency(city, dataset.folder) is None  # too few values to tell anything
    cells = cells_by_frequency(shop, dataset.folder)
    assert cells is not None
    counts = train["shop"].map(Counter(train["shop"]))
    ids = pa.concat_batches(list(dataset.rows("train", ["shop"], 10_000)))["shop"].to_numpy()
    shown = dict(zip(cells.names, cells.count(ids).tolist(), strict=True))
    assert shown == {
        "missing or not listed": (counts < LEAST).sum(),
        "1 to 9 times": 0,
        "10 to 99 times": counts.between(LEAST, 99).sum(),
        "100 to 999 times": counts.between(100, 999).sum(),
    }


def test_other_splits_and_datasets_are_compared(
    dataset: Dataset, found: Figures, frame: pd.DataFrame, tmp_path: Path
) -> None:
    assert all(not one["drift"]["test"]["has_drifted"] for one in found["features"] if one["name"] != "when_weekday")
    same, unlike = drift_between(dataset, dataset)
    assert max(one.index for one in same) == 0 and unlike == {}
    changed = frame.assign(
        price=[str(10 * int(p)) if p.isdigit() else p for p in frame["price"]],
        shop=[f"shop-{int(s.removeprefix('shop-')) + 1}" for s in frame["shop"]],
    )
    other = make(tmp_path / "other", changed)
    drift, unlike = drift_between(other, dataset)
    assert {one.name for one in drift if one.has_drifted} == {"price", "shop", "both"}
    assert unlike == {}
    shop = next(one for one in drift if one.name == "shop")
    assert shop.unknown_share is not None


def test_features_that_cannot_be_compared_are_said(tmp_path: Path) -> None:
    before = make_dataset(tmp_path / "before", 500, numeric=1, categorical=2, multi_hot=1)
    capped, moved = before.schema.features[1], before.schema.features[2]
    features = (
        before.schema.features[0],
        capped.model_copy(update={"transforms": (HashIds(buckets=5),), "cardinality": 11}),
        before.schema.features[3].model_copy(update={"name": moved.name}),
    )
    now = replace(before, schema=before.schema.model_copy(update={"features": features}))
    _, unlike = drift_between(now, before)
    assert unlike == {
        "C1": "its values get ids by different rules there",
        "C2": "it is categorical there, multi_hot here",
    }


def test_a_large_split_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = make_dataset(tmp_path / "data", 4_000, rows_per_row_group=100)
    with SplitColumns(dataset, "train", 1_000) as columns:
        read = columns.read("I1").to_numpy()
    whole = np.concatenate([batch["I1"].to_numpy() for batch in dataset.rows("train", ["I1"], 10_000)])
    places = [int(np.flatnonzero(whole == value)[0]) for value in read[::100]]
    assert len(read) == 1_000 and places[0] == 0 and places[-1] == 3_900
    assert max(np.diff(places)) <= 500
    monkeypatch.setattr(profiles, "MOST_ROWS", 1_000)
    assert dataset_figures(dataset, SilentProgress())["splits"]["train"]["rows_read"] == 1_000


@pytest.mark.parametrize(
    "transforms", [*CHAINS, (Log(offset=1.0), MinMax(min=0.0, max=5.0, clip=False), Fill())], ids=str
)
def test_numbers_come_back(transforms: tuple[NumericTransform, ...]) -> None:
    """Encoding the raw numbers that encoded ones come from gives these again."""
    raw = pa.array([0.0, 1.0, 2.0, 3.25, 7.0, 17.0, 99.0])
    encoded = encode_numeric("number", raw, transforms).astype(np.float64)
    again = encode_numeric("number", pa.array(untransformed(encoded, transforms)), transforms)
    assert again == pytest.approx(encoded, rel=1e-4, abs=1e-4)
    if not any(isinstance(t, Clip | Quantile) or (isinstance(t, MinMax) and t.clip) for t in transforms):
        assert untransformed(encoded, transforms) == pytest.approx(raw.to_numpy(), rel=1e-4)


def test_ids_that_stand_for_several_values_say_so(tmp_path: Path) -> None:
    vocabulary = Vocabulary(file="vocabulary/x.parquet", size=5)
    write_vocabulary(tmp_path / vocabulary.file, list("abcde"), [5, 4, 3, 2, 1])
    capped = CategoricalFeature(name="x", transforms=(vocabulary, HashIds(buckets=4)), cardinality=4)
    assert ValueNames.load(capped, tmp_path)([0, 1, 2, 3]) == [
        "missing or not listed",
        "a and others",
        "b and others",
        "c",
    ]
