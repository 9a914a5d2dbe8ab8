"""A table makes the same dataset whatever wrote its file, and its rows are encoded alike whatever way they come in."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayrec.common.errors import UserError
from rayrec.features.encoder import FeatureEncoder
from rayrec.features.schema import Schema
from rayrec.inference.raw_rows import RawRows
from rayrec.ingest.dataset import Dataset
from rayrec.preprocessing.engine import EmbeddedEngine
from rayrec.raw.input_files import Chunk, list_inputs
from rayrec.raw.table_reader import open_table
from rayrec.recipes import Recipe
from rayrec.sources.registry import preprocessing
from tests.builders import make_recipe

SOURCE = {
    "kind": "table",
    "label": "click",
    "group": "visit",
    "null_values": ["", "n/a"],
    "features": [
        {"kind": "categorical", "columns": ["item", "mobile", "stars", "site"]},
        {"kind": "categorical", "columns": "item", "name": "hashed", "hash_buckets": 1_000},
        {"kind": "categorical", "columns": "level", "values": ["1.0", "2", "3"]},
        {"kind": "categorical", "columns": "slot", "cardinality": "auto"},
        {"kind": "numeric", "columns": ["price", "items_price"], "transforms": ["standardize"]},
        {"kind": "categorical", "columns": "items_brand"},
        {"kind": "list", "columns": "seen", "separator": "|", "share": "item"},
        {"kind": "list", "columns": "tags", "separator": "[ ]"},
        {"kind": "timestamp", "columns": "day", "format": "%Y%m%d", "derive": ["weekday", "day"]},
    ],
    "tables": {"items": {"path": "", "key": "id", "on": "item"}},
    "rates": [{"keys": ["item"]}, {"keys": ["mobile", "site"]}],
}


def make_table(rows: int = 300) -> pd.DataFrame:
    """Return rows with gaps: ids, booleans, halves, words and times."""
    rng = np.random.default_rng(3)

    def some(values: Any, share: float = 0.1) -> pd.Series:
        return pd.Series(values, dtype=object).mask(rng.random(rows) < share)

    items = rng.integers(500, 540, rows)
    return pd.DataFrame(
        {
            "click": pd.Series(rng.integers(0, 2, rows), dtype=object),
            "visit": pd.Series(np.arange(rows) // 3, dtype=object),
            "item": some([int(item) for item in items]),
            "mobile": some([bool(flag) for flag in rng.integers(0, 2, rows)]),
            "stars": some([float(stars) / 2 for stars in rng.integers(1, 11, rows)]),
            "site": some([["news", "New York", "007", "1e5", "mail"][i] for i in rng.integers(0, 5, rows)]),
            "level": some([int(level) for level in rng.integers(1, 5, rows)]),
            "slot": some([int(slot) for slot in rng.integers(0, 9, rows)]),
            "price": some([float(price) for price in rng.normal(size=rows).round(3)]),
            "seen": some([[int(item), int(item) + 1] for item in items]),
            "day": some([20260100 + int(day) for day in rng.integers(1, 29, rows)]),
            "tags": [f"[{item} '{item + 1}']" if item % 3 else "[]" for item in items],
        }
    )


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if value is not None and value == value}
            for row in table.to_dict("records")]  # fmt: skip


def _typed(table: pd.DataFrame) -> pa.Table:
    return pa.table({name: pa.array(table[name].tolist(), from_pandas=True) for name in table})


def _csv(path: Path, table: pd.DataFrame, spell: Callable[[Any], str]) -> Path:
    def cell(value: Any) -> str:
        is_missing = not isinstance(value, list) and (value is None or value != value)
        return "" if is_missing else "|".join(map(spell, value)) if isinstance(value, list) else spell(value)

    lines = [",".join(table), *(",".join(cell(value) for value in row) for row in table.itertuples(index=False))]
    path.write_text("\n".join(lines) + "\n")
    return path


def _plainly(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _as_pandas(value: Any) -> str:
    """Spell a value of a column with gaps, as pandas writes it."""
    return str(float(value)) if type(value) is int else str(value)


def _parquet(path: Path, table: pa.Table) -> Path:
    pq.write_table(table, path)
    return path


def _as_floats(table: pa.Table) -> pa.Table:
    """Make floats of integers, and bytes of texts."""
    kinds = {pa.int64(): pa.float64(), pa.string(): pa.binary(), pa.list_(pa.int64()): pa.list_(pa.float64())}
    return pa.table(
        {name: table[name].cast(kinds.get(table[name].type, table[name].type)) for name in table.schema.names}
    )


FILES: dict[str, Callable[[Path, pd.DataFrame], Path]] = {
    "plain CSV": lambda folder, table: _csv(folder / "plain.csv", table, _plainly),
    "pandas' CSV": lambda folder, table: _csv(folder / "pandas.csv", table, _as_pandas),
    "CSV with blanks": lambda folder, table: _csv(folder / "blanks.csv", table, lambda value: f" {value} "),
    "JSON lines": lambda folder, table: _lines(folder / "rows.jsonl", _records(table)),
    "Parquet": lambda folder, table: _parquet(folder / "typed.parquet", _typed(table)),
    "Parquet of floats": lambda folder, table: _parquet(folder / "floats.parquet", _as_floats(_typed(table))),
}  # fmt: skip


def _lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _recipe(items: Path) -> Recipe:
    source = {**SOURCE, "tables": {"items": {**SOURCE["tables"]["items"], "path": str(items)}}}  # type: ignore[index]
    preprocess = {"split": {"kind": "files"}, "frequency_limit": 2, "layout": {"rows_per_row_group": 128}}
    return make_recipe(source=source, preprocess=preprocess)


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dataset]:
    """Return a dataset from each kind of file."""
    folder, table = tmp_path_factory.mktemp("ways"), make_table()
    items = folder / "items.csv"
    # The side table has other spellings of the key than the log.
    items.write_text(
        "id,brand,price\n" + "".join(f"{i}{'.0' if i % 2 else ''},{i % 7}.0,{i / 4}\n" for i in range(500, 540))
    )
    found = {}
    for number, (name, write) in enumerate(FILES.items()):
        output = folder / f"dataset-{number}"
        preprocessing(_recipe(items), {"train": [str(write(folder, table))]}, output).run(EmbeddedEngine(2))
        found[name] = Dataset.open(output)
    return found


def _rows(dataset: Dataset) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in sorted((dataset.folder / "train").glob("*.parquet"))])


def test_every_kind_of_file_makes_the_same_dataset(datasets: dict[str, Dataset]) -> None:
    first = datasets["plain CSV"]
    assert {f.name: f.form for f in first.schema.columns if f.type in ("text", "texts")} == {
        "item": "number", "mobile": "boolean", "stars": "number", "site": "number", "level": "number",
        "items_brand": "number", "seen": "number", "tags": "number",
    }  # fmt: skip
    assert first.schema.features[0].cardinality > 30  # type: ignore[union-attr]
    for name, dataset in datasets.items():
        assert dataset.schema.model_dump(exclude={"columns"}) == first.schema.model_dump(exclude={"columns"}), name
        assert _rows(dataset).equals(_rows(first)), name


def test_rows_are_encoded_alike_in_every_way(datasets: dict[str, Dataset], tmp_path: Path) -> None:
    table = make_table().drop(columns=["click", "visit"])
    dataset = datasets["pandas' CSV"]
    schema: Schema = dataset.schema
    encoder, raw_rows = FeatureEncoder(schema, dataset.folder), RawRows(schema)
    ways = {
        "objects": raw_rows.from_rows(_records(table)),
        "JSON": raw_rows.from_rows(json.loads(json.dumps(_records(table)))),
        "texts": raw_rows.from_rows([
            {name: value if isinstance(value, list) else _as_pandas(value) for name, value in row.items()}
            for row in _records(table)
        ]),
        "columns of Python": raw_rows.from_columns({name: table[name].tolist() for name in table}, len(table)),
        "Arrow": raw_rows.from_batch(_typed(table).combine_chunks().to_batches()[0]),
        "Arrow of floats": raw_rows.from_batch(_as_floats(_typed(table)).combine_chunks().to_batches()[0]),
        "names with blanks": raw_rows.from_rows(_records(table.rename(columns=lambda name: f" {name} "))),
        "one by one": pa.concat_batches([raw_rows.from_rows([row]) for row in _records(table)]),
    }  # fmt: skip
    for name, write in FILES.items():
        files = list_inputs([str(write(tmp_path, table))])
        reader = open_table(files, _recipe(tmp_path).source).reader(schema.given_columns)  # type: ignore[arg-type]
        (block,) = reader.read(Chunk(files[0], 0, 0, None))
        ways[f"file: {name}"] = raw_rows.from_batch(block.rows)
    encoded = {name: encoder.encode(rows) for name, rows in ways.items()}
    first = encoded["objects"]
    known = {f.name: np.count_nonzero(first[f.name]) for f in schema.categorical if f.name not in ("seen", "tags")}
    assert min(known.values()) > 200, "most values are listed"
    for name, rows in encoded.items():
        assert rows.equals(first), name


def test_texts_that_stand_for_nothing_do_so_in_every_way(datasets: dict[str, Dataset]) -> None:
    raw_rows = RawRows(datasets["plain CSV"].schema)
    own = [name for name in raw_rows.columns.names if name != "seen"]
    columns = [name for name in own if not name.startswith(("items_", "rate_"))]  # side tables have words of their own
    nothing = raw_rows.from_rows([{}])
    for word in (None, "", "  ", "n/a", " n/a ", float("nan")):
        assert raw_rows.from_rows([dict.fromkeys(columns, word)]).equals(nothing)
    assert raw_rows.from_batch(pa.record_batch({name: ["n/a"] for name in columns})).equals(nothing)


def test_blanks_around_names_say_nothing(datasets: dict[str, Dataset]) -> None:
    raw_rows = RawRows(datasets["plain CSV"].schema)
    expected = raw_rows.from_rows([{"item": 517, "site": "news"}])
    assert raw_rows.from_batch(pa.record_batch({" item": [517], "site\t": ["news"]})).equals(expected)
    with pytest.raises(UserError, match="'item': given 2 times"):
        raw_rows.from_rows([{"item": 517, " item": 518}])


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_long_ids_that_one_of_two_files_holds_as_floats_are_refused(tmp_path: Path, ending: str) -> None:
    write: dict[str, Callable[[pd.DataFrame, Path], Any]] = {
        "csv": lambda table, path: table.to_csv(path, index=False),
        "jsonl": lambda table, path: _lines(path, table.to_dict("records")),
        "parquet": lambda table, path: table.to_parquet(path),
    }
    table = pd.DataFrame({"click": [0, 1] * 100, "user": 1234567890123456789 + np.arange(200)})
    write[ending](table, tmp_path / f"a.{ending}")
    write[ending](table.astype({"user": float}), tmp_path / f"b.{ending}")
    files = [str(tmp_path / f"{name}.{ending}") for name in "ab"]
    source = {"kind": "table", "label": "click", "features": [{"kind": "categorical", "columns": "user"}]}
    recipe = make_recipe(source=source, preprocess={"split": {"kind": "files"}, "frequency_limit": 1})
    with pytest.raises(UserError, match=r"'user': has integers such as 123456789\d+ and floats such as 1\.23\d+e\+18,"):
        preprocessing(recipe, {"train": files}, tmp_path / "dataset").run(EmbeddedEngine(2))
    for number, file in enumerate(files):
        preprocessing(recipe, {"train": [file]}, tmp_path / f"dataset-{number}").run(EmbeddedEngine(2))


def test_a_day_is_one_value_as_text_date_and_timestamp(tmp_path: Path) -> None:
    days = pd.date_range("2024-05-01", periods=4)[np.arange(200) % 4]
    clicks = {"click": [0, 1] * 100}
    pq.write_table(pa.table({**clicks, "since": pa.array(days.date)}), tmp_path / "dates.parquet")
    pq.write_table(pa.table({**clicks, "since": pa.array(days)}), tmp_path / "times.parquet")
    texts = pd.DataFrame({**clicks, "since": days.map(pd.Timestamp.isoformat)})
    _lines(tmp_path / "texts.jsonl", texts.to_dict("records"))
    texts.to_csv(tmp_path / "texts.csv", index=False)
    source = {"kind": "table", "label": "click", "features": [{"kind": "categorical", "columns": "since"}]}
    recipe = make_recipe(source=source, preprocess={"split": {"kind": "files"}, "frequency_limit": 1})
    found = []
    for number, path in enumerate(sorted(tmp_path.iterdir())):
        preprocessing(recipe, {"train": [str(path)]}, tmp_path / f"dataset-{number}").run(EmbeddedEngine(2))
        found.append(Dataset.open(tmp_path / f"dataset-{number}"))
    day = days[1]
    for dataset in found:
        assert _rows(dataset).equals(_rows(found[0]))
        encoder, raw_rows = FeatureEncoder(dataset.schema, dataset.folder), RawRows(dataset.schema)
        ways = [str(day), day.isoformat(), day.date(), day.to_pydatetime(), "2024-05-02"]
        ids = {encoder.encode(raw_rows.from_rows([{"since": value}]))["since"][0].as_py() for value in ways}
        assert len(ids) == 1 and ids != {0}
