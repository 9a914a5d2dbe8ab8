"""Tables on disk looked up by key: against a dictionary, for any cut into files and batches, and colliding hashes."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rayrec.common.errors import UserError
from rayrec.features import lookup_table
from rayrec.features.hashes import hash_key, hash_texts
from rayrec.features.lookup_table import HASH, UNKNOWN, LookupTable, search_ranges, write_file
from rayrec.random.arrays import hash_integers, uniform

PAIR = pa.schema(
    [
        pa.field(HASH, pa.int64(), False),
        pa.field("first", pa.int64(), False),
        pa.field("second", pa.int64(), False),
        pa.field("number", pa.float64()),
        pa.field("flag", pa.bool_(), False),
        pa.field("list", pa.list_(pa.int64()), False),
        pa.field("pairs", pa.list_(pa.struct([("value", pa.int64()), ("weight", pa.float64())])), False),
    ]
)
ROWS = 1_000


def make_rows() -> dict[tuple[int, int], dict]:
    """Values by key; some are null, some lists are empty."""
    rng = np.random.default_rng(5)
    keys = {tuple(map(int, key)) for key in rng.integers(-(2**62), 2**62, (ROWS, 2))} | {(0, 0), (-1, 2**62)}
    return {
        key: {
            "number": None if rng.random() < 0.2 else rng.random(),
            "flag": bool(rng.random() < 0.5),
            "list": np.unique(rng.integers(0, 50, rng.integers(0, 6))).tolist(),
            "pairs": [{"value": int(v), "weight": float(v) / 7} for v in rng.integers(0, 9, rng.integers(0, 4))],
        }
        for key in sorted(keys)
    }


def write(folder: Path, rows: dict[tuple[int, int], dict], files: int, batches: int) -> LookupTable:
    """The rows in so many files of so many batches, none of which begins within equal hashes."""
    folder.mkdir()
    keys = np.array(list(rows), np.int64)
    hashed = lookup_table.hash_key(keys[:, 0], keys[:, 1])
    order = np.argsort(hashed, kind="stable")
    records = [
        {HASH: int(hashed[i]), "first": int(keys[i, 0]), "second": int(keys[i, 1]), **rows[tuple(map(int, keys[i]))]}
        for i in order
    ]
    table = pa.Table.from_pylist(records, schema=PAIR)
    bounds = sorted({int(np.searchsorted(hashed[order], hashed[order][b])) for b in
                     np.linspace(0, len(records) - 1, files * batches + 1).astype(int)[:-1]})  # fmt: skip
    pieces = [table.slice(a, b - a) for a, b in zip(bounds, [*bounds[1:], len(records)], strict=True)]
    for start in range(0, len(pieces), batches):
        parts = (b for piece in pieces[start : start + batches] for b in piece.combine_chunks().to_batches())
        write_file(folder, PAIR, parts)
    return LookupTable.open(folder)


def asked(rows: dict[tuple[int, int], dict], seed: int) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """Keys in any order, repeated, some that are not there."""
    rng = np.random.default_rng(seed)
    known = list(rows)
    keys = [known[i] for i in rng.integers(0, len(known), 500)] + [(7, 7), (known[0][0], 1), (1, known[0][1])]
    keys = [keys[i] for i in rng.permutation(len(keys))]
    return np.array(keys, np.int64), keys


@pytest.fixture(params=[(1, 1), (1, 5), (4, 3)], ids=["one batch", "batches", "files"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> LookupTable:
    return write(tmp_path / "table", make_rows(), *request.param)


@pytest.fixture
def colliding(monkeypatch: pytest.MonkeyPatch) -> None:
    """All keys share 16 hashes, so that only the keys themselves tell them apart."""
    true_hash = lookup_table.hash_key
    monkeypatch.setattr(lookup_table, "hash_key", lambda *parts: true_hash(*parts) >> np.int64(60))


def check(table: LookupTable, rows: dict[tuple[int, int], dict]) -> None:
    assert len(table) == len(rows)
    keys, wanted = asked(rows, 1)
    valid = np.arange(len(keys)) % 11 != 0
    found = table.find({"first": keys[:, 0], "second": keys[:, 1]}, valid)
    expected = [rows.get(key) if ok else None for key, ok in zip(wanted, valid, strict=True)]
    assert [row != UNKNOWN for row in found] == [row is not None for row in expected]

    numbers = table.numbers("number", found)
    assert [v if ok else None for v, ok in zip(numbers.values.tolist(), numbers.valid, strict=True)] == [
        row["number"] if row else None for row in expected
    ]
    flags = table.numbers("flag", found)
    assert flags.values[flags.valid].tolist() == [row["flag"] for row in expected if row]
    lists = table.lists("list", found)
    assert lists.lengths.tolist() == [len(row["list"]) if row else 0 for row in expected]
    assert lists.field().tolist() == [v for row in expected if row for v in row["list"]]
    assert lists.owner.tolist() == [i for i, row in enumerate(expected) if row for _ in row["list"]]
    pairs = table.lists("pairs", found)
    assert pairs.field("value").tolist() == [p["value"] for row in expected if row for p in row["pairs"]]
    assert pairs.field("weight", np.float64).tolist() == [p["weight"] for row in expected if row for p in row["pairs"]]
    sought = np.arange(len(found)) % 50
    assert table.contains("list", found, sought).tolist() == [
        bool(row) and int(value) in row["list"] for row, value in zip(expected, sought, strict=True)
    ]


def test_equals_a_dictionary(table: LookupTable) -> None:
    check(table, make_rows())


@pytest.mark.parametrize("cut", [(1, 1), (3, 2)])
def test_keys_that_share_a_hash_stay_apart(cut: tuple[int, int], colliding: None, tmp_path: Path) -> None:
    check(write(tmp_path / "table", make_rows(), *cut), make_rows())


def test_texts(tmp_path: Path) -> None:
    texts = sorted({f"user-{i * i}" for i in range(400)} | {"", "\u00e9", "a text longer than eight bytes"})
    hashes = hash_texts(pa.array(texts))
    order = np.argsort(hashes)
    schema = pa.schema([(HASH, pa.int64()), ("name", pa.string()), ("number", pa.int64())])
    ordered = pa.record_batch([hashes[order], pa.array(texts).take(pa.array(order)), order], schema=schema)
    write_file(tmp_path, schema, [ordered.slice(0, 100)])
    write_file(tmp_path, schema, [ordered.slice(100, 250), ordered.slice(350)])
    table = LookupTable.open(tmp_path)
    wanted = ["user-4", None, "nobody", "", "user-9801", "user-4", "\u00e9"]
    found = table.find_texts(pa.array(wanted))
    assert [row != UNKNOWN for row in found] == [text in texts if text is not None else False for text in wanted]
    known = found[found != UNKNOWN]
    assert table.column("name", known, pa.string()).to_pylist() == [text for text in wanted if text in texts]
    assert table.numbers("number", known).values.tolist() == [texts.index(text) for text in wanted if text in texts]


def test_without_files_nothing_is_known(tmp_path: Path) -> None:
    table = LookupTable.open(tmp_path)
    found = table.find({"first": np.arange(3)})
    assert len(table) == 0 and found.tolist() == [UNKNOWN] * 3
    assert table.find_texts(pa.array(["a", None])).tolist() == [UNKNOWN] * 2
    assert not table.numbers("number", found).valid.any()
    assert table.lists("list", found).lengths.tolist() == [0, 0, 0]
    assert not table.contains("list", found, np.arange(3)).any()
    assert write_file(tmp_path, PAIR, []) == 0 and not list(tmp_path.iterdir())


def test_a_damaged_file_is_named(table: LookupTable, tmp_path: Path) -> None:
    path = next((tmp_path / "table").glob("*.arrow"))
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(UserError, match=path.name):
        LookupTable.open(tmp_path / "table")


def test_ranges_are_searched_like_lists() -> None:
    rng = np.random.default_rng(0)
    lists = [np.unique(rng.integers(0, 40, size)) for size in (0, 1, 2, 3, 7, 8, 30, 0)]
    values = np.concatenate(lists)
    stops = np.cumsum([len(part) for part in lists])
    for wanted in range(-1, 41):
        place, is_there = search_ranges(values, stops - [len(p) for p in lists], stops, np.full(len(lists), wanted))
        assert is_there.tolist() == [wanted in part for part in lists]
        assert (values[place[is_there]] == wanted).all()


def test_hashes_are_those_of_splitmix64() -> None:
    """The generator's published numbers for seed 0 are the hashes of 0 and, seed by seed, the draws of 0."""
    first, second = 0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4
    assert hash_integers(np.array([0]))[0] == first
    assert uniform(np.array([0]), 0)[0] == first / 2**64
    assert uniform(np.array([0]), 1)[0] == second / 2**64
    assert hash_key(np.array([3])).view(np.uint64)[0] == hash_integers(np.array([3]))[0]
    assert len(set(hash_key(np.repeat(np.arange(40), 40), np.tile(np.arange(40), 40)).tolist())) == 1600


@pytest.mark.parametrize("kind", ["int8", "int64", "double", "float16", "timestamp[us, UTC]"])
def test_what_lies_under_nulls_is_not_in_the_file(kind: str, tmp_path: Path) -> None:
    """Queries leave anything there, and equal tables must have equal files."""
    kind_ = pa.timestamp("us", "UTC") if kind.startswith("timestamp") else pa.type_for_alias(kind)
    written = []
    for name, under in (("zero", 0), ("other", 77)):
        values = np.array([5, under, 7], f"i{kind_.bit_width // 8}")
        validity = pa.py_buffer(np.packbits([1, 0, 1], bitorder="little"))
        column = pa.Array.from_buffers(kind_, 3, [validity, pa.py_buffer(values)])
        schema = pa.schema([(HASH, pa.int64()), ("number", kind_)])
        folder = tmp_path / name
        folder.mkdir()
        write_file(folder, schema, [pa.record_batch([pa.array([1, 2, 3]), column], schema=schema)])
        assert (
            pa.ipc.open_file((folder / next(folder.iterdir())).read_bytes())
            .read_all()["number"]
            .combine_chunks()
            .equals(column)
        )
        written.append(next(folder.iterdir()).read_bytes())
    assert written[0] == written[1]
