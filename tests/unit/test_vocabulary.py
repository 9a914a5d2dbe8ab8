"""The look-up of vocabularies against a dict, and what is said of files that are none."""

import re
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayrec.common.errors import UserError
from rayrec.features import hashes, lookup_table, vocabulary
from rayrec.features.hashes import hash_string, hash_strings
from rayrec.features.lookup_table import REQUEST_VALUES, SCALAR_LOOKUPS
from rayrec.features.vocabulary import VOCABULARY_SCHEMA, VocabularyLookup, content_hash, index_file, write_index
from tests.vocabularies import write_vocabulary

TEXTS = st.text(st.sampled_from("ab0\x00é漢😀"), max_size=20)


def lookup_of(values: list[str]) -> VocabularyLookup:
    with tempfile.TemporaryDirectory() as folder:  # mapped files may be removed
        path = Path(folder) / "v.parquet"
        write_vocabulary(path, values, range(len(values), 0, -1))
        return VocabularyLookup.load(path)


@given(st.lists(TEXTS, max_size=40))
def test_one_hash_for_one_string_and_for_arrays(texts: list[str]) -> None:
    array = pa.array(["before", *texts, "after"], pa.large_string())
    expected = [hash_string(t) for t in texts]
    assert hash_strings(array.slice(1, len(texts))).tolist() == expected


@given(
    listed=st.lists(TEXTS, unique=True, max_size=30),
    asked=st.lists(st.none() | TEXTS, max_size=20),
    repeats=st.sampled_from([1, REQUEST_VALUES]),
    kind=st.sampled_from([pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())]),
    weak_hash=st.booleans(),
)
def test_ids_are_those_of_a_dict(
    listed: list[str], asked: list[str | None], repeats: int, kind: pa.DataType, weak_hash: bool
) -> None:
    """Few values and many take different ways; a hash that tells nothing apart must not change a result."""
    asked = (listed[:5] + asked) * repeats
    ids = {value: i + 1 for i, value in enumerate(listed) if value}
    with pytest.MonkeyPatch.context() as patch:
        if weak_hash:
            patch.setattr(hashes, "hash_strings", lambda values: np.zeros(len(values), np.uint64))
            patch.setattr(hashes, "hash_string", lambda value: 0)
        # A slice, so that offsets into Arrow's buffers matter.
        column = pa.array(["x", *asked, "y"], pa.string()).cast(kind).slice(1, len(asked))
        lookup = lookup_of(listed)
        for _ in ("asked first", "remembered"):
            assert lookup.ids(column).tolist() == [ids.get(value, 0) for value in asked]


@pytest.mark.parametrize("size", [1, SCALAR_LOOKUPS + 1, REQUEST_VALUES])
def test_what_is_remembered_is_bounded_and_right(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of changing values, more of them than are remembered."""
    monkeypatch.setattr(lookup_table, "_REMEMBERED", 2 * REQUEST_VALUES)
    lookup = lookup_of([str(i) for i in range(500)])
    rng = np.random.default_rng(0)
    for _ in range(20):
        asked = rng.integers(0, 10_000, size)
        ids = lookup.ids(pa.array([str(i) for i in asked]))
        assert ids.tolist() == [i + 1 if i < 500 else 0 for i in asked]
        assert len(lookup._remembered) <= 2 * REQUEST_VALUES


def test_values_that_differ_in_trailing_zero_bytes_are_apart() -> None:
    values = ["a", "a\x00", "a\x00\x00", "\x00"]
    assert lookup_of(values).ids(pa.array(values * REQUEST_VALUES)).tolist() == [1, 2, 3, 4] * REQUEST_VALUES


def test_a_slice_of_a_column_with_a_long_dictionary() -> None:
    values = [str(i) for i in range(3_000)]
    for size in (SCALAR_LOOKUPS + 1, REQUEST_VALUES + 1):
        column = pa.array(values).dictionary_encode().slice(100, size)
        assert lookup_of(values[150:]).ids(column).tolist() == [max(0, i - 149) for i in range(100, 100 + size)]


def test_empty_vocabulary_lists_nothing(tmp_path: Path) -> None:
    write_vocabulary(tmp_path / "v.parquet", [], [])
    lookup = VocabularyLookup.load(tmp_path / "v.parquet")
    assert len(lookup) == 0
    for rows in (1, SCALAR_LOOKUPS + 1, REQUEST_VALUES + 1):
        assert lookup.ids(pa.array(["a"] * rows)).tolist() == [0] * rows


@pytest.mark.parametrize("parts", [1, 3])
def test_a_folder_of_parts_is_one_vocabulary(tmp_path: Path, parts: int) -> None:
    values = [f"{i * 2654435761 % 2**32:08x}" for i in range(1000)]
    folder = tmp_path / "C1"
    folder.mkdir()
    (folder / "_SUCCESS").touch()
    size = -(-len(values) // parts)
    for part in range(parts):
        rows = range(part * size, min((part + 1) * size, len(values)))
        table = pa.table([[values[i] for i in rows], [i + 1 for i in rows], [1] * len(rows)], schema=VOCABULARY_SCHEMA)
        pq.write_table(table, folder / f"part-{part:05d}.parquet", row_group_size=100)
    write_index(folder)
    lookup = VocabularyLookup.load(folder)
    assert len(lookup) == len(values)
    assert lookup.ids(pa.array(values)).tolist() == list(range(1, len(values) + 1))


def test_the_content_hash_of_parts_adds_up_and_knows_values_and_ids() -> None:
    values = [f"v{i}" for i in range(100)]
    whole = content_hash(pa.array(values), 1)
    for cut in (1, 37, 99):
        parts = content_hash(pa.array(values[:cut]), 1) + content_hash(pa.array(values[cut:]), cut + 1)
        assert parts % 2**64 == whole
    swapped = [values[1], values[0], *values[2:]]
    others = [content_hash(pa.array(v), 1) for v in (swapped, values[:-1], [*values[:-1], "other"], [*values, ""])]
    assert len({whole, content_hash(pa.array(values), 2), *others}) == 6
    assert content_hash(pa.array([], pa.string()), 1) == 0


def _wrong_ids(path: Path) -> None:
    pq.write_table(pa.table([["a", "b"], [2, 1], [1, 1]], schema=VOCABULARY_SCHEMA), path)


def _wrong_columns(path: Path) -> None:
    pq.write_table(pa.table({"word": ["a"]}), path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "missing"),
        (lambda path: path.write_bytes(b"not parquet at all"), "not a vocabulary"),
        (_wrong_columns, "not a vocabulary"),
        (_wrong_ids, "ids do not continue from 1"),
    ],
)
def test_what_is_no_vocabulary_is_named(tmp_path: Path, make, message: str) -> None:
    path = tmp_path / "C7.parquet"
    make(path)
    with pytest.raises(UserError, match=rf"^{re.escape(str(path))}: .*{message}.*$"):
        write_index(path)
    assert not index_file(path).exists()


def test_a_folder_without_parts_is_no_vocabulary(tmp_path: Path) -> None:
    path = tmp_path / "C7"
    path.mkdir()
    with pytest.raises(UserError, match=rf"^{re.escape(str(path))}: no Parquet parts of a vocabulary in it; "):
        write_index(path)
    assert not list(path.iterdir())


def _cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _of_other_columns(path: Path) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, VOCABULARY_SCHEMA) as writer:
        writer.write_batch(pa.RecordBatch.from_pylist([{"value": "a", "id": 1, "count": 1}], VOCABULARY_SCHEMA))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (Path.unlink, "missing"),
        (lambda path: path.write_bytes(b""), "damaged"),
        (lambda path: path.write_bytes(b"no Arrow file at all"), "damaged"),
        (_cut_short, "damaged"),
        (_of_other_columns, "not the index of a vocabulary"),
    ],
)
def test_a_damaged_index_is_named(tmp_path: Path, damage, message: str) -> None:
    path = tmp_path / "C7.parquet"
    write_vocabulary(path, ["a", "b"], [2, 1])
    damage(index_file(path))
    with pytest.raises(UserError, match=rf"^{re.escape(str(index_file(path)))}: {message}"):
        VocabularyLookup.load(path)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=200))
def test_hashes_sorted_range_by_range_are_those_sorted_at_once(numbers: list[int]) -> None:
    given_hashes = np.array(numbers, np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vocabulary, "_SORTED_AT_ONCE", 7)
        patch.setattr(vocabulary, "_LOOKED_AT_ONCE", 10)
        found = list(vocabulary._sorted(given_hashes))
    order = np.argsort(given_hashes, kind="stable")
    assert np.concatenate([np.empty(0, np.int64), *(part for part, _ in found)]).tolist() == sorted(numbers)
    assert np.concatenate([np.empty(0, np.int64), *(places for _, places in found)]).tolist() == order.tolist()


def test_an_index_that_was_released_is_read_again(tmp_path: Path) -> None:
    values = [f"v{i}" for i in range(10_000)]
    lookup = lookup_of(values)
    asked = pa.array(values)
    before = lookup.ids(asked)
    lookup.mapped[0].release()
    assert lookup.ids(asked).tolist() == before.tolist() == list(range(1, 10_001))
