"""What raw rows lack, looked up in tables written directly: against dictionaries, for batches and for single rows."""

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayrec.features import hashes
from rayrec.features.encoder import FeatureEncoder
from rayrec.features.lookups import Lookups, joined_keys
from rayrec.features.raw_columns import Rate, RawColumn, SideTable
from rayrec.features.schema import MultiHotFeature, Schema
from rayrec.inference.raw_rows import RawRows
from tests.lookup_tables import write_rate, write_side_table

GIVEN = {"user": "number", "age": "number", "size": "integer", "city": "text", "seen": "time"}
LISTS = {"scores": "numbers", "codes": "integers", "tags": "texts"}
MEAN, SMOOTHING = 0.3, 20.0
USERS = SideTable(
    name="users",
    key="user",
    columns=("users_age", "users_size", "users_city", "users_seen", *(f"users_{name}" for name in LISTS)),
)
CITIES = SideTable(name="cities", key="users_city", columns=("cities_country",))
SCHEMA = Schema(
    label="label",
    features=(),
    columns=(
        RawColumn(name="user", type="text"),
        RawColumn(name="item", type="text"),
        RawColumn(name="hour", type="integer"),
        RawColumn(name="users_age", type="number"),
        RawColumn(name="users_size", type="integer"),
        RawColumn(name="users_city", type="text"),
        RawColumn(name="users_seen", type="time"),
        *(RawColumn(name=f"users_{name}", type=kind) for name, kind in LISTS.items()),
        RawColumn(name="cities_country", type="text"),
        RawColumn(name="rate_user", type="number"),
        RawColumn(name="rate_user_item", type="number"),
        RawColumn(name="rate_country_hour", type="number"),
    ),
    lookups=(
        USERS,
        CITIES,
        Rate(name="rate_user", keys=("user",), smoothing=SMOOTHING, mean=MEAN),
        Rate(name="rate_user_item", keys=("user", "item"), smoothing=0.0, mean=MEAN),
        Rate(name="rate_country_hour", keys=("cities_country", "hour"), smoothing=1.5, mean=MEAN),
    ),
)
RAW = pa.schema([("user", pa.string()), ("item", pa.string()), ("hour", pa.int64())])
TYPES = {column.name: column.arrow for column in SCHEMA.columns}
TEXTS = ["", "7", "007", "é", "\U0001f9a5 sloth", "a\nb", "tab\t", "\x00", "x" * 2_000, "x" * 2_001, "null", "None"]


def make_users() -> dict[str, dict[str, Any]]:
    """A row for each of 300 users, some of whose names are odd; a fifth of the values is null."""
    rng = np.random.default_rng(3)

    def value(kind: str) -> Any:
        if rng.random() < 0.2:
            return None
        number = int(rng.integers(-(2**53), 2**53))
        time = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(microseconds=number % 10**15)
        return {"number": number / 7, "integer": number, "text": f"city {number % 9}", "time": time}[kind]

    names = [*TEXTS, *(f"user {n}" for n in range(300 - len(TEXTS)))]
    users = {}
    for name in names:
        row = {f"users_{column}": value(kind) for column, kind in GIVEN.items() if column != "user"}
        for column, kind in LISTS.items():
            values = [value(kind.removesuffix("s")) for _ in range(rng.integers(0, 5))]
            row[f"users_{column}"] = None if rng.random() < 0.2 else values
        users[name] = row
    return users


USER_ROWS = make_users()
CITY_ROWS = {f"city {n}": {"cities_country": None if n == 4 else f"country {n % 3}"} for n in range(8)}
"""Of a city that users have there is none."""
FOLDS = 3


def make_counts(keys: list[tuple[str, ...]], seed: int) -> dict[tuple[str, ...], list[int]]:
    """Rows and positive rows of each key, in all and by fold; some keys are in one fold alone."""
    rng = np.random.default_rng(seed)
    counts = {}
    for key in keys:
        rows = rng.integers(0, 9, FOLDS) * (rng.random(FOLDS) < 0.5)
        rows[rng.integers(FOLDS)] += 1
        positives = rng.binomial(rows, 0.4)
        counts[key] = [*map(int, (rows.sum(), positives.sum())), *map(int, np.stack([rows, positives], 1).ravel())]
    return counts


COUNTS = {
    "rate_user": make_counts([(name,) for name in list(USER_ROWS)[:200]], 0),
    "rate_user_item": make_counts([(u, i) for u in list(USER_ROWS)[:40] for i in TEXTS], 1),
    "rate_country_hour": make_counts([(f"country {n}", str(h)) for n in range(3) for h in range(-2, 12)], 2),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lookups")
    write_side_table(folder, SCHEMA, "users", USER_ROWS)
    write_side_table(folder, SCHEMA, "cities", CITY_ROWS)
    for name, counts in COUNTS.items():
        write_rate(folder, SCHEMA, name, counts, folder / "by_fold")
    return folder


def expected(row: Mapping[str, Any], fold: int = -1) -> dict[str, Any]:
    """The completed row, by dictionaries."""
    result = dict(row)

    def fill(found: Mapping[str, Any]) -> None:
        for name, value in found.items():
            if result.get(name) is None:
                result[name] = value

    fill(USER_ROWS.get(row["user"], dict.fromkeys(USERS.columns)))
    fill(CITY_ROWS.get(result["users_city"], {"cities_country": None}))
    for rate in SCHEMA.lookups[2:]:
        assert isinstance(rate, Rate)
        key = tuple(None if result[name] is None else str(result[name]) for name in rate.keys)
        counts = COUNTS[rate.name].get(key, [0] * 8)
        rows, positives = counts[:2]
        if fold >= 0:
            rows, positives = rows - counts[2 + 2 * fold], positives - counts[3 + 2 * fold]
        fill({rate.name: (positives + rate.smoothing * MEAN) / (rows + rate.smoothing) if rows else MEAN})
    return result


def batch_of(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """Raw rows with the columns that one of them has, of the types of the schema."""
    names = dict.fromkeys([*RAW.names, *(name for row in rows for name in row)])
    return pa.record_batch({name: pa.array([row.get(name) for row in rows], TYPES[name]) for name in names})


def make_rows(count: int, seed: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    users, items = [*USER_ROWS, "nobody", None], [*TEXTS, "else", None]
    return [
        {
            "user": users[rng.integers(len(users))],
            "item": items[rng.integers(len(items))],
            "hour": None if rng.random() < 0.1 else int(rng.integers(-3, 13)),
        }
        for _ in range(count)
    ]


@pytest.mark.parametrize("count", [0, 1, 50, 3_000])
def test_rows_equal_dictionaries(folder: Path, count: int) -> None:
    rows = make_rows(count, count)
    found = Lookups(SCHEMA, folder).complete(batch_of(rows))
    assert found.schema.names == [*RAW.names, *(name for lookup in SCHEMA.lookups for name in lookup.columns)]
    assert found.schema.types == [TYPES[name] for name in found.schema.names]
    assert found.to_pylist() == [expected(row) for row in rows]


def test_the_columns_that_rows_give_stay_but_for_their_nulls(folder: Path) -> None:
    rng = np.random.default_rng(0)
    rows = make_rows(500, 9)
    for row in rows:
        # Countries that are given decide what the rate is looked up by.
        others = {"cities_country": "country 1", "users_scores": [1.0, None], "users_age": 1.0, "rate_user": 0.5}
        row.update({name: value if rng.random() < 0.5 else None for name, value in others.items()})
    found = Lookups(SCHEMA, folder).complete(batch_of(rows)).to_pylist()
    assert found == [expected(row) for row in rows]
    assert {row["cities_country"] for row in found if row["users_city"] is None} == {None, "country 1"}


def test_rates_leave_out_the_fold_of_the_row(folder: Path) -> None:
    rows = make_rows(2_000, 5)
    folds = np.random.default_rng(1).integers(-1, FOLDS, len(rows))
    lookups = Lookups(SCHEMA, folder, folder / "by_fold")
    found = lookups.complete(batch_of(rows), folds).to_pylist()
    assert found == [expected(row, int(fold)) for row, fold in zip(rows, folds, strict=True)]
    outside = lookups.complete(batch_of(rows), np.full(len(rows), -1))
    assert outside.equals(Lookups(SCHEMA, folder).complete(batch_of(rows)))
    # Some keys are in the row's fold alone, so that they count as unseen.
    rates = [(one["rate_user_item"], expected(row)["rate_user_item"]) for row, one in zip(rows, found, strict=True)]
    assert any(rate == MEAN != whole for rate, whole in rates)


def test_absent_columns_and_tables_are_missing(folder: Path, tmp_path: Path) -> None:
    row = {"item": None, "hour": 3}
    raw = batch_of([row]).select(["hour", "item"])
    (found,) = Lookups(SCHEMA, folder).complete(raw).to_pylist()
    assert "user" not in found
    assert {found[name] for name in ("rate_user", "rate_user_item", "rate_country_hour")} == {MEAN}
    assert found["users_age"] is None and found["users_tags"] is None
    empty = Lookups(SCHEMA, tmp_path).complete(batch_of(make_rows(5, 1)))
    assert empty.schema.types == [TYPES[name] for name in empty.schema.names]
    assert empty["users_tags"].null_count == 5 and empty["rate_user"].to_pylist() == [MEAN] * 5
    assert batch_of(make_rows(5, 1)) == Lookups(SCHEMA.model_copy(update={"lookups": ()}), tmp_path).complete(
        batch_of(make_rows(5, 1))
    )


def test_values_and_weights_come_from_one_row(tmp_path: Path) -> None:
    schema = Schema(
        label="label",
        features=(MultiHotFeature(name="tags", inputs=("u_tags", "u_weights"), cardinality=9),),
        columns=(
            RawColumn(name="user", type="text"),
            RawColumn(name="u_tags", type="integers"),
            RawColumn(name="u_weights", type="numbers"),
        ),
        lookups=(SideTable(name="u", key="user", columns=("u_weights", "u_tags")),),
    )
    write_side_table(tmp_path, schema, "u", {"a": {"u_tags": [1, 2], "u_weights": [0.5, 3.0]}})
    looked_up, nothing = ([1, 2], [0.5, 3.0]), (None, None)
    rows: list[tuple[str, Any, Any, tuple[Any, Any]]] = [
        ("a", None, None, looked_up),
        ("a", [7], None, ([7], None)),
        ("a", [7], [2.0], ([7], [2.0])),
        ("a", [], None, ([], None)),
        ("a", None, [], looked_up),
        ("b", None, None, nothing),
        ("b", [7], [2.0], ([7], [2.0])),
    ]
    raw = RawRows(schema).from_rows([{"user": u, "u_tags": tags, "u_weights": weights} for u, tags, weights, _ in rows])
    lookups = Lookups(schema, tmp_path)
    FeatureEncoder(schema, tmp_path).encode(raw)
    completed = [(row["u_tags"], row["u_weights"]) for row in lookups.complete(raw).to_pylist()]
    assert completed == [expected for *_, expected in rows]
    alone = [lookups.complete(raw.slice(row, 1)).to_pylist()[0] for row in range(len(rows))]
    assert alone == lookups.complete(raw).to_pylist()
    assert lookups.complete(raw.select(["user"])).to_pylist()[1]["u_weights"] == [0.5, 3.0]


def test_only_what_is_wanted_is_looked_up(folder: Path) -> None:
    lookups = Lookups(SCHEMA, folder, columns=("rate_country_hour", "hour"))
    assert lookups.reads(["rate_country_hour", "hour"]) == ["hour", "user"]
    found = lookups.complete(batch_of(make_rows(3, 2)).select(["hour", "user"]))
    assert "rate_country_hour" in found.schema.names and "rate_user" not in found.schema.names
    assert Lookups(SCHEMA, folder, columns=("item",)).reads(["item"]) == ["item"]


OTHERS = [{"user": name, "item": name, "hour": 0} for name in list(USER_ROWS)[-100:]]
"""Rows of so many texts that they are looked up at once."""
TEXT = st.one_of(st.none(), st.sampled_from([*TEXTS, *list(USER_ROWS)[20:25]]), st.text(max_size=20))


@settings(max_examples=50)
@given(rows=st.lists(st.fixed_dictionaries({"user": TEXT, "item": TEXT, "hour": st.none() | st.integers(-3, 13)})))
def test_a_batch_and_its_rows_alone_give_the_same_bits(folder: Path, rows: list[dict[str, Any]]) -> None:
    lookups = Lookups.cached(SCHEMA, folder)
    together = lookups.complete(batch_of([*rows, *OTHERS]))
    alone = [lookups.complete(batch_of([row])) for row in rows]
    for row, one in enumerate(alone):
        assert one.equals(together.slice(row, 1))
        assert one.to_pylist() == [expected(rows[row])]


@pytest.mark.parametrize("encode", [lambda a: a.dictionary_encode(), lambda a: a.cast(pa.large_string())])
def test_texts_of_any_arrow_type_are_keys(folder: Path, encode: Any) -> None:
    raw = batch_of(make_rows(300, 4))
    other = pa.record_batch({"user": encode(raw["user"]), "item": encode(raw["item"]), "hour": raw["hour"]})
    found, plain = (Lookups(SCHEMA, folder).complete(batch).drop_columns(["user", "item"]) for batch in (other, raw))
    assert found == plain


@pytest.mark.parametrize("names", [["price"], ["price", "shop"]])
def test_a_number_is_one_key_in_a_request_and_in_a_dataset(names: list[str]) -> None:
    rng = np.random.default_rng(0)
    prices = np.concatenate([rng.normal(size=500), [0.1, 1e-7, 1e22, 3.0, 0.0, -0.0]])
    raw = {"price": pa.array([*prices, None]), "shop": pa.array(["x"] * (len(prices) + 1))}
    many = joined_keys([raw[name] for name in names])
    alone = [joined_keys([raw[name].slice(row, 1) for name in names])[0].as_py() for row in range(len(many))]
    assert many.to_pylist() == alone
    assert alone[-3] == alone[-2] and alone[-1] is None and len(set(alone)) == len(prices)


def test_keys_that_share_a_hash_stay_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hash_one, hash_all, shift = hashes.hash_string, hashes.hash_strings, np.uint64(62)
    monkeypatch.setattr(hashes, "hash_string", lambda text: hash_one(text) >> 62 << 62)
    monkeypatch.setattr(hashes, "hash_strings", lambda texts: hash_all(texts) >> shift << shift)
    write_side_table(tmp_path, SCHEMA, "users", USER_ROWS)
    write_side_table(tmp_path, SCHEMA, "cities", CITY_ROWS)
    lookups = Lookups(SCHEMA, tmp_path, columns=("cities_country", *USERS.columns))
    rows = make_rows(400, 6)
    wanted = [{name: expected(row)[name] for name in ("cities_country", *USERS.columns)} for row in rows]
    assert lookups.complete(batch_of(rows)).select(list(wanted[0])).to_pylist() == wanted
    for row, one in zip(rows[:30], wanted, strict=False):
        assert lookups.complete(batch_of([row])).select(list(one)).to_pylist() == [one]
