"""Names of folders, files, columns and objects as people and programs give them, on a disk and in a bucket."""

import csv
import random
from collections.abc import Iterator
from pathlib import Path

import boto3  # type: ignore[import-untyped]
import pyarrow.parquet as pq
import pytest

import rayrec
from rayrec.common.errors import UserError
from rayrec.store.node_copy import on_this_node
from rayrec.store.paths import to_path
from tests.faulty_store import BUCKET, Endpoint, faulty_store

FOLDER = "tägliche 90% +#1;&=x"
COLUMNS = ["price/€", "50%2F #?", "é +;", "C\\..\\x", "n" * 190]


@pytest.fixture
def endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    """A real S3 server with an empty bucket."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("RAYREC_CACHE", str(tmp_path / "staging"))
    with faulty_store() as store, store.endpoint() as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint.url)
        yield endpoint


def test_the_whole_way_with_such_names_on_a_disk_and_in_a_bucket(tmp_path: Path, endpoint: Endpoint) -> None:
    here = tmp_path / FOLDER
    here.mkdir()
    raw, recipe = here / "clicks %41 #ü;.csv", here / "recipe?.yaml"
    draw = random.Random(7)
    with raw.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["label", *COLUMNS])
        for _ in range(2_000):
            values = [draw.randrange(6) for _ in COLUMNS]
            rows.writerow([int(draw.random() < 0.2 + 0.1 * values[0]), *(f"value {value}" for value in values)])
    rayrec.inspect(raw, label="label", output=recipe, progress=False)

    scores = []
    for around in (str(here), f"s3://bucket/{FOLDER}".replace("#", "%23")):
        data, run, model, out = (f"{around}/{name}" for name in ("data 1+1%20", "run;é", "model%2F", "scores &"))
        rayrec.preprocess(recipe, raw, data, progress=False)
        rayrec.train(recipe, data, run, workers=1, set={"train.epochs": 1}, progress=False)
        rayrec.export(run, model, progress=False)
        rayrec.predict(model, out, input=raw, raw=True, progress=False)
        folder = on_this_node(to_path(out))
        scores.append(pq.read_table(folder / "scores")["score"].to_pylist())
        row = dict.fromkeys(COLUMNS, "value 3")
        assert 0 < rayrec.load_model(model).predict([row])[0] < 1
    assert len(scores[0]) == 2_000 and scores[0] == scores[1]
    assert not (tmp_path / FOLDER / "data 1+1%20" / "vocabulary" / "price").exists()


OBJECTS = {
    "above": (["data/../../out.json"], r"'\.\./\.\./out\.json' lies outside the folder"),
    "in the middle": (["data/a/../../out.json"], r"'a/\.\./\.\./out\.json' lies outside the folder"),
    "absolute": (["data//out.json"], "'/out.json' lies outside the folder"),
    "an empty part": (["data/a//out.json"], "'a//out.json' lies outside the folder, or names no file"),
    "a file and a folder": (["data/a.json", "data/a.json/b.json"], "'a.json' is both a file and a folder; remove one"),
    "too long for a disk": ([f"data/{'o' * 251}.json"], r"o{251}\.json: file name too long"),
}


@pytest.mark.parametrize("case", OBJECTS)
def test_an_object_that_no_folder_could_hold_is_named(case: str, endpoint: Endpoint, tmp_path: Path) -> None:
    keys, message = OBJECTS[case]
    _put(endpoint, [*keys, "data/manifest.json"])
    with pytest.raises(UserError, match=message):
        on_this_node(to_path("s3://bucket/data"))
    assert not [path for path in tmp_path.rglob("*") if "out" in path.name]


def test_other_objects_are_fetched_by_their_names(endpoint: Endpoint) -> None:
    """Consoles make a folder as an empty object whose key ends in a slash."""
    names = ["a\\..\\b.json", "é +%2e%2e #?;.json", "..a/b...json", "folder/c.json"]
    _put(endpoint, [f"data/{name}" for name in names])
    _put(endpoint, ["data/folder/", "data/empty/"], b"")
    folder = on_this_node(to_path("s3://bucket/data"))
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert found == {name for name in names if not name.startswith(".")}


def _put(endpoint: Endpoint, keys: list[str], content: bytes = b"{}") -> None:
    """Write objects of any keys, some of which pyarrow would refuse."""
    client = boto3.client("s3", endpoint_url=endpoint.url, region_name="us-east-1")
    for key in keys:
        client.put_object(Bucket=BUCKET, Key=key, Body=content)
