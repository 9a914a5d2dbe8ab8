"""The rows that a model folder keeps of a held-out split are rows of the raw file, and get the scores of these."""

import csv
import json
import random
import shutil
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import rayrec
from rayrec.common.errors import UserError
from rayrec.inference.examples import example_row, load_held_out_rows
from rayrec.inference.folder.model_folder import ModelFolder
from rayrec.ingest.dataset import Dataset
from rayrec.ingest.held_out_rows import HELD_OUT_ROWS_FILE, read_held_out_rows

COLUMNS = ["clicked", "when", "price", "city", "tags"]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """shop.csv and what is made of it, up to a model; times, decimals, lists, and values that are missing."""
    folder = tmp_path_factory.mktemp("shop")
    draw = random.Random(3)
    began = datetime(2024, 5, 1, 7)
    with (folder / "shop.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(COLUMNS)
        for number in range(3_000):
            price = round(draw.lognormvariate(3, 1), 2)
            tags = "|".join(draw.sample(["new", "sale", "big", "red"], draw.randrange(1, 4)))
            city = draw.choice(["Graz", "Linz", "Wien", ""])
            clicked = int(draw.random() < (0.5 if "sale" in tags else 0.2))
            when = (began + timedelta(minutes=7 * number)).strftime("%Y-%m-%d %H:%M:%S")
            rows.writerow([clicked, when, "" if draw.random() < 0.1 else price, city, tags])
    recipe = folder / "shop.yaml"
    rayrec.inspect(folder / "shop.csv", label="clicked", output=recipe, progress=False)
    rayrec.preprocess(recipe, folder / "shop.csv", folder / "data", on="process", progress=False)
    rayrec.train(recipe, folder / "data", folder / "run", workers=1, set={"train.epochs": 1}, progress=False)
    rayrec.export(folder / "run", folder / "model", progress=False)
    return folder


def test_they_are_rows_of_the_file_with_its_scores(shop: Path, tmp_path: Path) -> None:
    rayrec.predict(shop / "model", tmp_path / "scores", input=shop / "shop.csv", raw=True, progress=False)
    scores = pq.read_table(tmp_path / "scores" / "scores")["score"].to_numpy()
    lines = list(csv.DictReader((shop / "shop.csv").open()))
    held_out = load_held_out_rows(shop / "model")
    assert held_out is not None and len(held_out.rows) == 8
    assert {name for row in held_out.rows for name in row} == {*COLUMNS} - {"clicked"}
    assert json.loads(json.dumps(held_out.rows)) == list(held_out.rows), "they are what a request sends"
    found = rayrec.load_model(shop / "model").predict(list(held_out.rows))
    for row, label, score in zip(held_out.rows, held_out.labels, found, strict=True):
        places = [number for number, line in enumerate(lines) if _is(row, line) and float(line["clicked"]) == label]
        assert len(places) == 1, row
        assert score == pytest.approx(scores[places[0]], abs=1e-6)
    prices = [float(line["price"]) for line in lines if line["price"]]
    least, largest = held_out.ranges["price"]
    assert min(prices) <= least < largest <= max(prices)
    assert example_row(shop / "model").items() <= held_out.rows[0].items()


def test_every_split_but_train_has_some(shop: Path) -> None:
    kept = read_held_out_rows(shop / "data")
    assert kept.keys() == Dataset.open(shop / "data").manifest.splits.keys() - {"train"}
    assert all(len(of.rows) == len(of.labels) == 8 for of in kept.values())


def test_without_the_file_a_model_is_served_all_the_same(shop: Path, tmp_path: Path) -> None:
    shutil.copytree(shop / "model", tmp_path / "model")
    (tmp_path / "model" / HELD_OUT_ROWS_FILE).write_text("{")
    with pytest.raises(UserError, match=r"held_out_rows\.json: damaged \(.*\); remove it"):
        load_held_out_rows(tmp_path / "model")
    (tmp_path / "model" / HELD_OUT_ROWS_FILE).unlink()
    assert load_held_out_rows(tmp_path / "model") is None
    assert example_row(tmp_path / "model")
    whole, without = (ModelFolder.open(folder / "model").manifest.id for folder in (shop, tmp_path))
    assert whole == without, "the file does not identify the model"


def test_pairs_of_users_and_items(tmp_path: Path) -> None:
    rayrec.generate("interactions", rows=10_000, output=tmp_path / "raw", progress=False)
    rayrec.preprocess(
        "neumf-ml-1m-debug", tmp_path / "raw" / "ratings.csv", tmp_path / "data", on="process", progress=False
    )
    rayrec.train("neumf-ml-1m-debug", tmp_path / "data", tmp_path / "run", workers=1, progress=False)
    rayrec.export(tmp_path / "run", tmp_path / "model", progress=False)
    held_out = load_held_out_rows(tmp_path / "model")
    assert held_out is not None and set(held_out.labels) == {1.0}
    recommender = rayrec.load_recommender(tmp_path / "model")
    for row in held_out.rows:
        assert row["item"] not in recommender.recommend(row["user"], 5).items, "a known item"


def _is(row: dict, line: dict[str, str]) -> bool:
    """Whether a stored row is this line: what the line leaves empty is not in the row."""
    values = {name: value for name, value in line.items() if value and name != "clicked"}
    return row.keys() <= values.keys() and all(
        "|".join(value) == values[name]
        if isinstance(value, list)
        else float(values[name]) == value
        if name == "price"
        else _same(value, values[name])
        for name, value in row.items()
    )


def _same(value: str, text: str) -> bool:
    return value == text or value.replace("T", " ").removesuffix("+00:00") == text
