"""`rayrec sql`: its answers are what Arrow finds in the files; it reads nothing else, and writes nothing."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from obstore.store import LocalStore

import rayrec
from rayrec.common.errors import UserError
from rayrec.ingest.dataset import Dataset
from rayrec.store import objects

RECIPE = {
    "source": {
        "kind": "table",
        "label": "click",
        "features": [
            {"columns": "price", "kind": "numeric"},
            {"columns": "shop", "kind": "categorical", "min_count": 1},
            {"columns": "tags", "kind": "list", "separator": "|", "min_count": 1},
        ],
    },
    "preprocess": {"split": {"kind": "hash", "test": 0.25, "validation": 0.25}, "max_rejected_fraction": 0.5},
    "model": {"kind": "dcnv2"},
}
SHOPS, ROWS = ("oak", "elm", "fir"), 400
BY_SHOP = """
    select value as shop, count(*) as n, sum(click)::int as clicks
    from train join vocabulary on feature = 'shop' and id = train.shop group by value order by value
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with numbers, texts, lists and a bad row."""
    folder = tmp_path_factory.mktemp("sql")
    rows = [f"{n % 3 == 0:d},{n / 4},{SHOPS[n * n % 7 % 3]},a|b{n % 7}" for n in range(ROWS)]
    (folder / "raw.csv").write_text("\n".join(["click,price,shop,tags", *rows, "maybe,1,oak,a"]) + "\n")
    (folder / "recipe.yaml").write_text(json.dumps(RECIPE))
    rayrec.preprocess(folder / "recipe.yaml", folder / "raw.csv", folder / "dataset", progress=False)
    return folder / "dataset"


def ask(folder: Path | str, query: str, **options: Any) -> Any:
    return rayrec.sql(folder, query, progress=False, **options)


def tree(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def expected_by_shop(folder: Path) -> list[dict[str, Any]]:
    dataset = Dataset.open(folder)
    train = pa.concat_tables(pq.read_table(folder / part.path) for part in dataset.split("train").parts)
    values = pq.read_table(folder / "vocabulary" / "shop.parquet").to_pylist()
    names = {row["id"]: row["value"] for row in values}
    rows = Counter(names[i] for i in train["shop"].to_pylist())
    clicks = Counter(
        names[i] for i, click in zip(*(train[c].to_pylist() for c in ("shop", "click")), strict=True) if click
    )
    return [{"shop": shop, "n": rows[shop], "clicks": clicks[shop]} for shop in sorted(rows)]


def test_rows_and_values_by_id(folder: Path) -> None:
    result = ask(folder, BY_SHOP)
    assert result.details["rows"] == expected_by_shop(folder) and not result.details["more"]
    assert result.rows == len(SHOPS)


def test_every_folder_is_a_table(folder: Path) -> None:
    (row,) = ask(
        folder,
        "select (select count(*) from train) + (select count(*) from test) + (select count(*) from validation) as n",
    ).details["rows"]
    assert row == {"n": ROWS}
    (row,) = ask(folder, "select line, reason, value from rejected").details["rows"]
    assert row == {"line": ROWS + 2, "reason": "label other than 0 or 1", "value": "maybe"}
    values = "select feature, count(*) as n from vocabulary group by feature order by feature"
    assert ask(folder, values).details["rows"] == [{"feature": "shop", "n": 3}, {"feature": "tags", "n": 8}]
    (row,) = ask(folder, "select max(len(tags)) as longest from train").details["rows"]
    assert row == {"longest": 2}


def test_more_rows_than_are_printed(folder: Path) -> None:
    result = ask(folder, "select id from vocabulary where feature = 'tags' order by id", rows=3)
    assert result.details["rows"] == [{"id": 1}, {"id": 2}, {"id": 3}] and result.details["more"]
    assert not ask(folder, "select id from vocabulary where feature = 'tags'", rows=8).details["more"]


@pytest.mark.parametrize("name", ["answer.parquet", "answer.csv"])
def test_all_rows_in_a_file(name: str, folder: Path, tmp_path: Path) -> None:
    result = ask(folder, BY_SHOP, output=tmp_path / name)
    read = pq.read_table if name.endswith("parquet") else pa.csv.read_csv
    assert read(tmp_path / name).to_pylist() == expected_by_shop(folder)
    assert (result.rows, result.output) == (len(SHOPS), tmp_path / name)
    with pytest.raises(UserError, match="already exists"):
        ask(folder, BY_SHOP, output=tmp_path / name)


def test_values_that_json_does_not_have(folder: Path) -> None:
    query = (
        "select sum(1) i, sum(0.5) d, 'nan'::float f, null n, date '2026-01-02' t, 'ab'::blob b, [1, 2] l, {'a': 1} s"
    )
    row = {"i": 1, "d": 0.5, "f": None, "n": None, "t": "2026-01-02", "b": "YWI=", "l": [1, 2], "s": {"a": 1}}
    assert json.loads(ask(folder, query).to_json())["details"]["rows"] == [row]


WRONG = {
    "a column": ("select nope from train", 'Binder Error: Referenced column "nope" not found'),
    "a table": (
        "from trian",
        'Did you mean "train"\\?; tables: counts, rejected, test, train, validation, vocabulary$',
    ),
    "a word": ("selec 1", 'Parser Error: syntax error at or near "selec"$'),
    "a value, late": ("select value::int from vocabulary", "Conversion Error: Could not convert string"),
    "nothing": ("", "not one SELECT"),
    "two": ("select 1; select 2", "not one SELECT"),
    "a change": ("create table a as select 1", "not one SELECT"),
    "names that are one": ("select 1 as a, 2 as a", "two columns 'a'"),
    "a file": ("select * from '/etc/passwd'", ""),
    "another file": ("from read_text('/etc/passwd')", "Permission Error: Cannot access file"),
    "a variable": ("select * from tables", "Table with name tables does not exist"),
    "an extension": ("load httpfs", "not one SELECT"),
}


@pytest.mark.parametrize(("query", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_query_is_told_in_a_line(query: str, message: str, folder: Path) -> None:
    with pytest.raises(UserError, match=rf"^query: .*{message}") as error:
        ask(folder, query)
    assert "\n" not in str(error.value)


def test_a_query_cannot_write(folder: Path, tmp_path: Path) -> None:
    before = tree(folder)
    part = folder / Dataset.open(folder).split("train").parts[0].path
    for target in (part, tmp_path / "new.csv"):
        for query in (f"copy (select 1) to '{target}'", f"with x as (copy (select 1) to '{target}') select * from x"):
            with pytest.raises(UserError, match=r"^query: "):
                ask(folder, query)
    assert tree(folder) == before and not list(tmp_path.iterdir())


def test_what_cannot_be_asked(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"ends in \.parquet or \.csv"):
        ask(folder, "select 1", output=tmp_path / "answer.txt")
    with pytest.raises(UserError, match=r"no manifest\.json"):
        ask(folder.parent, "select 1")
    with pytest.raises(UserError, match="Unsupported Type"):
        ask(folder, "select tags from train", output=tmp_path / "lists.csv")
    assert not list(tmp_path.iterdir())


def test_a_dataset_in_a_bucket_brings_the_tables_that_are_asked_for(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(folder.parent)
    monkeypatch.setattr(objects, "store_of", lambda _: store)
    monkeypatch.setenv("RAYREC_CACHE", str(tmp_path))
    assert ask("s3://bucket/dataset", BY_SHOP).details["rows"] == expected_by_shop(folder)
    copied = {path.relative_to(tmp_path / "copies").parts[-2] for path in tmp_path.rglob("*.parquet")}
    assert copied == {"train", "vocabulary"}
