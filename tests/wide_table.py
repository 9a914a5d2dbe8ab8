"""A log of 60 columns of every kind, made in blocks that never lie in memory together, and the recipe for it.

`write_log` writes the same rows as CSV and as Parquet. A tenth of most columns is missing. Some rows are bad in both
formats (`BAD_ROWS`); each CSV file ends with a line that is no row.
"""

import gzip
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

DAYS = 30
"""The time from the first row to the last."""
BAD_ROWS = {"weight": (997, 5), "session": (1_499, 7), "rating": (1_999, 9), "tag_weights": (1_201, 3)}
"""The column that makes a row bad, and which rows: those whose number leaves the second number modulo the first."""
USERS, ITEMS = 20_000, 4_000
_START = np.datetime64("2024-03-01", "us")
_ZONE, _OTHER_ZONE = "Europe/Vienna", "America/New_York"
_STANDARDIZED = ["log", "standardize"]

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
            "transforms": [
                {"op": "clip", "max": 40},
                {"op": "log", "offset": 1},
                {"op": "fill", "value": "mean"},
                "min_max",
            ],
        },
        {"columns": ["n1", "n2"], "kind": "numeric", "transforms": _STANDARDIZED},
        {"columns": "n3", "kind": "numeric", "transforms": [{"op": "log2", "scale": 0.5}, {"op": "fill", "value": -1}]},
        {"columns": "n4", "kind": "numeric", "transforms": [{"op": "clip", "min": 1, "max": 50}, "min_max"]},
        {"columns": "n5", "kind": "numeric", "transforms": [{"op": "quantile", "count": 100}]},
        {"columns": "n?", "kind": "numeric"},
        {"columns": "i1", "kind": "numeric", "transforms": [{"op": "fill", "value": "mean"}, "standardize"]},
        {"columns": "i2", "kind": "numeric", "transforms": [{"op": "quantile", "count": 20}]},
        {"columns": "i?", "kind": "numeric", "transforms": _STANDARDIZED},
        {"columns": "depth", "kind": "buckets", "quantiles": 16},
        {"columns": "user", "kind": "categorical", "min_count": 12, "unlisted_buckets": 50},
        {"columns": "item", "kind": "categorical", "min_count": 3},
        {"columns": "C1", "kind": "categorical", "max_size": 20},
        {"columns": "C2", "kind": "categorical", "share": "C1"},
        {"columns": "C3", "kind": "categorical", "min_count": 50, "unlisted_buckets": 7},
        {"columns": ["C4", "site", "page"], "kind": "categorical", "hash_buckets": 1_000},
        {"columns": "device", "kind": "categorical", "values": ["phone", "desk", "watch"]},
        {"columns": "code", "kind": "categorical", "cardinality": "auto"},
        {"columns": "slot", "kind": "categorical", "cardinality": 12},
        {
            "columns": "tags",
            "kind": "list",
            "separator": "|",
            "weights": "tag_weights",
            "max_length": 3,
            "min_count": 1,
        },
        {"columns": "topics", "kind": "list", "separator": "|", "share": "tags", "pooling": "sum"},
        {"columns": "words", "kind": "list", "separator": " ", "hash_buckets": 500},
        {"columns": "recent", "kind": "list", "separator": " ", "cardinality": 300, "max_length": 5},
        {"columns": "seen", "kind": "timestamp", "derive": ["hour", "weekday", "month", "age"], "zone": _ZONE},
        {"columns": "opened", "kind": "timestamp", "derive": ["day", "hour"], "format": "ms"},
        {
            "columns": "born",
            "kind": "timestamp",
            "derive": ["hour", "age"],
            "format": "%Y%m%d %H:%M",
            "zone": _OTHER_ZONE,
        },
        {"columns": "vector", "kind": "vector", "size": 3, "separator": ";"},
        {"columns": "direction", "kind": "vector", "size": 8, "separator": ";", "normalize": True},
        {"kind": "cross", "of": ["device", "code"], "buckets": 97},
        {"kind": "cross", "of": ["country", "price_quarter", "is_mobile"], "buckets": 1_009, "name": "offer"},
        {"columns": ["people_age", "people_joined"], "kind": "numeric", "transforms": ["standardize"]},
        {"columns": "goods_cost", "kind": "numeric", "transforms": _STANDARDIZED},
        {"columns": ["people_city", "goods_kind"], "kind": "categorical", "min_count": 1},
        {
            "columns": "goods_tags",
            "kind": "list",
            "separator": "|",
            "share": "tags",
            "weights": "goods_tag_weights",
            "pooling": "sum",
        },
        {"columns": ["C*", "country", "is_mobile", "zip"], "kind": "categorical"},
    ],
    "rates": [{"keys": "user", "transforms": []}, {"keys": "item"}, {"keys": ["country", "item"], "smoothing": 5}],
}
"""The section `source` without the paths of the side tables; see `side_tables`."""
SPLIT = {"kind": "time", "validation": "2d", "test": "3d"}


def side_tables(folder: Path) -> dict[str, Any]:
    """Return the key `tables` of the section `source`, for the files that `write_side_tables` wrote into a folder."""
    return {
        "people": {"path": str(folder / "people.csv"), "key": "id", "on": "user"},
        "goods": {"path": str(folder / "goods.parquet"), "key": "id", "on": "item"},
    }


def write_side_tables(folder: Path) -> dict[str, pa.Table]:
    """Write people.csv (a tenth of the users lacks) and goods.parquet; returns the tables by name, keyed by `id`."""
    rng = np.random.default_rng(1)
    people = pa.table({
        "id": _texts("u%05d", USERS)[: USERS * 9 // 10],
        "age": pa.array(rng.integers(18, 80, USERS * 9 // 10), mask=rng.random(USERS * 9 // 10) < 0.1),
        "city": _texts("Z\u00fcrich, %d", 300).take(pa.array(rng.integers(0, 300, USERS * 9 // 10))),
        "joined": rng.normal(0.0, 1e5, USERS * 9 // 10),
    })  # fmt: skip
    goods = pa.table({
        "id": _texts("%03d", ITEMS),
        "kind": _texts("kind %d", 40).take(pa.array(rng.integers(0, 40, ITEMS), mask=rng.random(ITEMS) < 0.1)),
        "cost": np.round(rng.lognormal(2.0, 1.0, ITEMS), 2),
        "tags": _lists(rng, "t%d", 40, 3, ITEMS),
    })  # fmt: skip
    goods = goods.append_column("tag_weights", _weights(rng, goods["tags"].combine_chunks()))
    csv.write_csv(people, folder / "people.csv")
    pq.write_table(goods, folder / "goods.parquet")
    return {"people": people, "goods": goods}


def write_log(folder: Path, rows: int, files: int, block_rows: int = 25_000) -> None:
    """Write `rows` rows as csv/N.csv, every second file packed (N.csv.gz), and the same rows as parquet/N.parquet.

    `block_rows`: the rows that are in memory at a time, and those of a row group of Parquet.
    """
    first = block(0, 1, rows)
    order = first.column_names[-18:] + first.column_names[:-18]  # columns of one pattern stay in their order
    texts = _as_text(first).select(order).schema
    for name in ("csv", "parquet"):
        (folder / name).mkdir(parents=True)
    for number, part in enumerate(np.array_split(np.arange(rows), files)):
        typed = pq.ParquetWriter(folder / f"parquet/{number:03d}.parquet", first.schema)
        with typed, _new_csv(folder / "csv", number) as file:
            with csv.CSVWriter(file, texts) as writer:
                for start in range(int(part[0]), int(part[-1]) + 1, block_rows):
                    table = block(start, min(block_rows, int(part[-1]) + 1 - start), rows)
                    writer.write_table(_as_text(table).select(order))
                    typed.write_table(table)
            file.write(b"not,a row\n")


def _new_csv(folder: Path, number: int) -> IO[bytes]:
    if number % 2:
        return open(folder / f"{number:03d}.csv", "wb")
    return cast(IO[bytes], gzip.open(folder / f"{number:03d}.csv.gz", "wb", compresslevel=1))


def block(first: int, rows: int, total: int) -> pa.Table:
    """`rows` rows of a log of `total` rows from row `first` on, which nothing else decides."""
    rng = np.random.default_rng([2, first])
    row = np.arange(first, first + rows)

    def missing(share: float = 0.1) -> NDArray[np.bool_]:
        return rng.random(rows) < share

    def numbers(values: NDArray[Any]) -> pa.Array:
        return pa.array(values, mask=missing())

    def texts(form: str, count: int, skew: float, share: float = 0.1) -> pa.Array:
        return _texts(form, count).take(pa.array((count * rng.random(rows) ** skew).astype(int), mask=missing(share)))

    def times(days: int) -> NDArray[Any]:
        return now - rng.integers(0, days * 86_400 * 10**6, rows).astype("timedelta64[us]")

    def without(column: str, values: pa.Array) -> pa.Array:
        every, rest = BAD_ROWS[column]
        return pc.if_else(pa.array(row % every == rest), None, values)

    users = (USERS * rng.random(rows) ** 2).astype(int)
    items = (ITEMS * rng.random(rows) ** 3).astype(int)
    price = np.round(rng.lognormal(2.0, 1.0, rows), 2)
    likes = 3.0 + 0.8 * np.sin(12.9 * users) + 0.8 * np.sin(78.2 * items) + 0.3 * np.log(price) - 0.6
    rating = np.clip(np.rint(likes + rng.normal(size=rows)), 1, 5).astype(int)
    session = row // 50 * 10 + rng.integers(0, 10, rows)
    micros = (row * (DAYS * 86_400 * 10**6 / total)).astype(np.int64) + rng.integers(0, 3_600 * 10**6, rows)
    now = _START + micros.astype("timedelta64[us]")
    every, rest = BAD_ROWS["weight"]
    weight = np.where(row % every == rest, -1.0, rng.choice([0.0, 0.5, 1.25], rows))
    utc = pa.timestamp("us", "UTC")
    tags = _lists(rng, "t%d", 40, 5, rows)
    every, rest = BAD_ROWS["tag_weights"]
    columns = {
        "row": pa.array(row),
        "rating": without("rating", pa.array(rating)),
        "weight": pa.array(weight),
        "session": without("session", pc.if_else(pa.array(session % 2 == 0), _digits(session), _digits(session, "s"))),
        "item": _texts("%03d", ITEMS).take(pa.array(items)),
        "now": pa.array(now, utc),
        "debug_note": texts("note %d", 1_000, 1.0),
        "debug_cost": numbers(rng.random(rows)),
        "price": numbers(price),
        "views": numbers(rng.integers(0, 60, rows)),
        **{f"n{n}": numbers(rng.lognormal(n / 4, 1.0, rows)) for n in range(1, 9)},
        "n9": numbers(rng.normal(0.0, 1e6, rows)),
        **{f"i{n}": numbers(rng.poisson(3.0**n, rows)) for n in range(1, 7)},
        "depth": numbers(rng.exponential(1.0, rows)),
        "user": _texts("u%05d", USERS).take(pa.array(users, mask=missing(0.02))),
        "C1": texts("v%d", 90, 3.0),
        "C2": texts("v%d", 90, 2.0),
        "C3": texts("%d", 30_000, 4.0),
        "C4": texts("name %d", 10_000, 1.0),
        **{f"C{n}": texts("%x", 2 ** (n - 3), 2.0) for n in range(5, 16)},
        "site": texts("zw\u00f6lf, %d", 200, 1.0),
        "page": texts("https://example.com/a/rather/long/path/%d?from=\u96ea", 50_000, 1.0),
        "country": texts("%02d", 60, 2.0),
        "zip": numbers(rng.integers(1_000, 1_900, rows)),
        "is_mobile": numbers(rng.random(rows) < 0.6),
        "device": _given("desk", "phone", 'tv "4k"').take(pa.array(rng.integers(0, 3, rows), mask=missing())),
        "code": numbers(rng.integers(0, 30, rows)),
        "slot": pa.array(rng.integers(0, 12, rows)),
        "tags": tags,
        "tag_weights": _weights(rng, tags, row % every == rest),
        "topics": _lists(rng, "t%d", 60, 4, rows),
        "words": _lists(rng, "w%d", 5_000, 8, rows),
        "recent": _list_array(rng, pa.array(rng.integers(0, 300, 9 * rows)), 8, rows),
        "seen": pa.array(times(60), utc, mask=missing()),
        "opened": numbers(times(400).astype("datetime64[ms]").astype(np.int64)),
        "born": pc.strftime(pa.array(times(500).astype("datetime64[us]"), mask=missing()), "%Y%m%d %H:%M"),
        "vector": _vectors(rng, 3, rows),
        "direction": _vectors(rng, 8, rows),
    }
    assert len(columns) == 60, len(columns)
    return pa.table(columns)


@lru_cache(maxsize=64)
def _texts(form: str, count: int) -> pa.Array:
    return pa.array([form % n for n in range(count)])


def _given(*values: str) -> pa.Array:
    return pa.array(values)


def _digits(values: NDArray[np.int64], prefix: str = "") -> pa.Array:
    texts = pa.array(values).cast(pa.string())
    return pc.binary_join_element_wise(pa.scalar(prefix), texts, "") if prefix else texts


def _lists(rng: np.random.Generator, form: str, count: int, most: int, rows: int) -> pa.Array:
    values = _texts(form, count).take(pa.array((count * rng.random((most + 1) * rows) ** 2).astype(int)))
    return _list_array(rng, values, most, rows)


def _list_array(rng: np.random.Generator, values: pa.Array, most: int, rows: int) -> pa.Array:
    """Lists of one value to `most`, some of them missing."""
    offsets = np.concatenate([[0], np.cumsum(rng.integers(1, most + 1, rows))]).astype(np.int32)
    mask = pa.array(rng.random(rows) < 0.1)
    return pa.ListArray.from_arrays(pa.array(offsets), values.slice(0, int(offsets[-1])), mask=mask)


def _weights(rng: np.random.Generator, lists: pa.ListArray, is_bad: NDArray[np.bool_] | None = None) -> pa.ListArray:
    """Return a weight for each value of lists, none at all in some rows; in bad rows a list of 9."""
    bad = np.zeros(len(lists), bool) if is_bad is None else is_bad
    lengths = np.where(bad, 9, pc.fill_null(pc.list_value_length(lists), 0).to_numpy())
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    values = np.round(rng.exponential(1.0, int(offsets[-1])), 2)
    is_missing = lists.is_null().to_numpy(zero_copy_only=False) | (rng.random(len(lists)) < 0.1)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values), mask=pa.array(is_missing & ~bad))


def _vectors(rng: np.random.Generator, size: int, rows: int) -> pa.Array:
    offsets = pa.array((np.arange(rows + 1) * size).astype(np.int32))
    values = pa.array(np.round(rng.normal(size=rows * size), 3))
    return pa.ListArray.from_arrays(offsets, values, mask=pa.array(rng.random(rows) < 0.1))


def _as_text(table: pa.Table) -> pa.Table:
    """Return the rows as delimited text holds them: lists with separators between."""
    rules = [rule for rule in SOURCE["features"] if "separator" in rule]
    separators = {name: rule["separator"] for rule in rules for name in (rule["columns"], rule.get("weights"))}
    columns = {}
    for name in table.column_names:
        column = table[name]
        if pa.types.is_list(column.type):
            column = pc.binary_join(column.cast(pa.list_(pa.string())), separators[name])
        columns[name] = column
    return pa.table(columns)
