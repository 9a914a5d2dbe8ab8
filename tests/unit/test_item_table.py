"""Recommendations filtered by columns of the items: from the files of a recipe to the answers of a model."""

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from rayrec.common.errors import UserError
from rayrec.features.item_table import ITEMS_FILE, ItemTable
from rayrec.features.raw_columns import STATISTICS_FOLDER
from rayrec.inference.recommender import load_recommender
from rayrec.ingest.dataset import Dataset
from rayrec.models.sasrec.config import SASRecConfig
from rayrec.preprocessing.engine import EmbeddedEngine
from rayrec.recipes import Recipe
from rayrec.sources.registry import preprocessing
from tests.model_folders import finish, make_recommender_folder

ITEMS = 20


def preprocessed(folder: Path, table: pd.DataFrame, parent: Dataset | None = None, **config: Any) -> Dataset:
    folder.mkdir()
    table.to_csv(folder / "items.csv", index=False)
    rows = [(user, (user * 7 + at) % ITEMS) for user in range(9) for at in range(6)]
    first = 0 if parent is None else 100
    shop = pd.DataFrame([(f"u{user}", first + item, at) for at, (user, item) in enumerate(rows)])
    shop.to_csv(folder / "shop.csv", index=False, header=["user", "item", "timestamp"])
    items = {"path": str(folder / "items.csv"), "key": "id", "columns": ["genre", "year"], **config}
    recipe = Recipe.model_validate(
        {
            "name": "shop",
            "source": {"kind": "interactions", "items": items},
            "preprocess": {"split": {"kind": "leave_one_out", "min_interactions": 3, "negatives": 4}},
            "model": {"kind": "neumf"},
        }
    )
    preprocessing(recipe, {None: [str(folder / "shop.csv")]}, folder / "data", parent).run(EmbeddedEngine(2))
    return Dataset.open(folder / "data")


def columns_of(dataset: Dataset) -> dict[str, tuple[Any, ...]]:
    """Return the columns of each item by its name."""
    (feature,) = (f for f in dataset.schema.categorical if f.name == "item")
    assert feature.vocabulary is not None
    found = ItemTable.load(dataset.folder / STATISTICS_FOLDER / ITEMS_FILE, feature.vocabulary.size)
    assert found is not None
    rows = zip(*(column.to_pylist() for column in found.columns.values()), strict=True)
    values = pd.read_parquet(dataset.folder / feature.vocabulary.file)["value"]
    return dict(zip(values, rows, strict=True))


def test_a_dataset_has_the_columns_of_its_items(tmp_path: Path) -> None:
    table = pd.DataFrame(
        {"id": [3.0, 4.0, 5.0, 999.0], "genre": ["drama", None, "comedy", "x"], "year": [1999, 2001, 7, 1]}
    )
    dataset = preprocessed(tmp_path / "1", table)
    expected: dict[str, tuple[Any, ...]] = {str(item): (None, None) for item in range(ITEMS)}
    expected |= {"3": ("drama", "1999"), "4": (None, "2001"), "5": ("comedy", "7")}
    assert columns_of(dataset) == expected
    # An extension has those of all items, as the files of its day have them.
    later = preprocessed(tmp_path / "2", pd.DataFrame({"id": [3, 103], "genre": ["a", "b"], "year": [1, 2]}), dataset)
    found = columns_of(later)
    assert (found["3"], found["4"], found["103"]) == (("a", "1"), (None, None), ("b", "2"))
    assert len(found) == 2 * ITEMS


@pytest.mark.parametrize(
    ("table", "config", "message"),
    [
        ({"id": [3, 3], "genre": ["a", "b"], "year": [1, 1]}, {}, "source.items .*: id '3' has several rows; keep one"),
        ({"id": [3], "genre": ["a"]}, {}, "items.csv: no column 'year'"),
        ({"id": [3], "genre": ["a"], "year": [1]}, {"path": "none.csv"}, "source.items.path: .*none.csv"),
    ],
)
def test_a_wrong_table_is_told(tmp_path: Path, table: dict[str, Any], config: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        preprocessed(tmp_path / "1", pd.DataFrame(table), **config)


def test_answers_have_the_values_that_are_asked_for(tmp_path: Path) -> None:
    make_recommender_folder(tmp_path / "model", items=ITEMS, config=SASRecConfig(embedding_dim=8, length=6))
    genres = [None if item % 5 == 0 else ("drama", "comedy")[item % 2] for item in range(ITEMS)]
    years = [str(1990 + item % 3) for item in range(ITEMS)]
    columns = {"genre": pa.array(genres).dictionary_encode(), "year": pa.array(years).dictionary_encode()}
    ItemTable(columns).save(tmp_path / "model" / STATISTICS_FOLDER / ITEMS_FILE)
    finish(tmp_path / "model")
    recommender = load_recommender(tmp_path / "model")
    for wanted in (
        {"genre": ["drama"]},
        {"genre": ["drama", "comedy", "none"], "year": ["1990", "1992.0"]},
        {"genre": []},
        {},
    ):
        allowed = {
            f"i-{item}"
            for item in range(ITEMS)
            if all(column[item] in [v.removesuffix(".0") for v in wanted[name]]
                   for name, column in (("genre", genres), ("year", years)) if name in wanted)
        }  # fmt: skip
        found = recommender.recommend("u-9", ITEMS, filter=wanted)
        assert set(found.items) == allowed - {"i-0", "i-3", "i-6"}
        assert set(recommender.similar("i-1", ITEMS, filter=wanted).items) == allowed - {"i-1"}
    with pytest.raises(UserError, match="filter: no column 'genr' of items; did you mean 'genre'"):
        recommender.recommend("u-9", 3, filter={"genr": ["drama"]})
    make_recommender_folder(tmp_path / "without")
    with pytest.raises(UserError, match=r"filter: the model has no table of items; set source.items"):
        load_recommender(tmp_path / "without").recommend("u-9", 3, filter={"genre": ["drama"]})
    ItemTable({"genre": columns["genre"][:3]}).save(tmp_path / "model" / STATISTICS_FOLDER / ITEMS_FILE)
    finish(tmp_path / "model")
    with pytest.raises(UserError, match="does not fit the 20 items"):
        load_recommender(tmp_path / "model")
