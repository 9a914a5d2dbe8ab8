"""The look-up in a vocabulary and what a delta adds and removes, against a dict; and what goes on from no other one."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayrec.common.errors import UserError
from rayrec.features import hashes, vocabulary
from rayrec.features.lookup_table import REQUEST_VALUES, SCALAR_LOOKUPS
from rayrec.features.vocabulary import (
    VocabularyChanges,
    VocabularyGrowth,
    VocabularyLookup,
    index_file,
    write_changes,
    write_whole_vocabulary,
)
from tests.vocabularies import write_vocabulary

TEXTS = st.text(st.sampled_from("ab0é漢"), min_size=1, max_size=6)


def states_of(base: Sequence[str], days: Sequence[tuple[Sequence[str], Sequence[int]]]) -> list[list[str]]:
    """The values by id of each day: those before, without those at some places, and new ones that are not listed."""
    states = [list(base)]
    for new, gone in days:
        values = [("" if place in gone else value) for place, value in enumerate(states[-1])]
        states.append([*values, *(value for value in dict.fromkeys(new) if value not in values)])
    return states


def grown(folder: Path, states: Sequence[Sequence[str]]) -> VocabularyLookup:
    """The look-up in the last of some states, made from the first one and a file of what has changed since."""
    for name, values in (("first", states[0]), ("last", states[-1])):
        write_vocabulary(folder / name / "v.parquet", values, range(len(values), 0, -1))
    before, changed = VocabularyLookup.load(folder / "first/v.parquet"), folder / "changes.arrow"
    changes_of(folder / "last/v.parquet", before, changed)
    return before.changed(VocabularyChanges(changed), "f") if changed.exists() else before


def changes_of(values: Path, before: VocabularyLookup, path: Path) -> VocabularyGrowth:
    """Write what one vocabulary changes beside another one that changes nothing."""
    other = path.parent / "other.parquet"
    write_vocabulary(other, ["x"], [1])
    vocabularies = {"other": (other, VocabularyLookup.load(other)), "f": (values, before)}
    return write_changes(path, vocabularies).get("f", VocabularyGrowth(added=0, removed=0))


@given(
    base=st.lists(TEXTS, unique=True, max_size=12),
    days=st.lists(st.tuples(st.lists(TEXTS, max_size=6), st.lists(st.integers(0, 20), max_size=4)), max_size=4),
    asked=st.lists(st.none() | TEXTS, max_size=20),
    repeats=st.sampled_from([1, REQUEST_VALUES]),
    weak_hash=st.booleans(),
    rows=st.sampled_from([2, 1_000]),
)
def test_ids_are_those_of_a_dict(
    base: list[str],
    days: list[tuple[list[str], list[int]]],
    asked: list[str | None],
    repeats: int,
    weak_hash: bool,
    rows: int,
) -> None:
    """Few values and many take different ways; a value that comes back has a new id."""
    states = states_of(base, days)
    last = states[-1]
    asked = [*base, *last, *asked] * repeats
    ids = {value: place + 1 for place, value in enumerate(last) if value}
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(vocabulary, "_SORTED_AT_ONCE", rows)
        if weak_hash:
            patch.setattr(hashes, "hash_strings", lambda values: np.zeros(len(values), np.uint64))
            patch.setattr(hashes, "hash_string", lambda value: 0)
        lookup = grown(Path(folder), states)
        assert len(lookup) == len(last)
        for _ in ("asked first", "remembered"):
            assert lookup.ids(pa.array(asked, pa.string())).tolist() == [ids.get(value, 0) for value in asked]
        for file in lookup.mapped:
            file.release()
        every = np.random.default_rng(0).permutation(len(last)) + 1
        assert lookup.values(every).to_pylist() == [last[place - 1] for place in every]
        assert lookup.removed().tolist() == [place + 1 for place, value in enumerate(last) if not value]


def test_a_few_and_many_values_of_many_parts(tmp_path: Path) -> None:
    base = [f"b{i}" for i in range(500)]
    days = [([f"d{day}-{i}" for i in range(200)], [day, 500 + day]) for day in range(5)]
    states = states_of(base, days)
    ids = {value: place + 1 for place, value in enumerate(states[-1]) if value}
    asked = [*base, *states[-1], *(value for new, _ in days for value in new), "never"]
    for size in (1, SCALAR_LOOKUPS + 1, len(asked)):
        lookup = grown(tmp_path / str(size), states)
        for start in range(0, len(asked), size):
            part = asked[start : start + size]
            assert lookup.ids(pa.array(part)).tolist() == [ids.get(value, 0) for value in part]


def test_what_changed_is_counted_and_nothing_is_no_file(tmp_path: Path) -> None:
    write_vocabulary(tmp_path / "1.parquet", ["a", "b", "c"], [3, 2, 1])
    before = VocabularyLookup.load(tmp_path / "1.parquet")
    assert changes_of(tmp_path / "1.parquet", before, tmp_path / "same.arrow") == VocabularyGrowth(added=0, removed=0)
    assert not (tmp_path / "same.arrow").exists()
    write_vocabulary(tmp_path / "2.parquet", ["a", "", "c", "d", "", "e"], [3, 2, 1, 1, 1, 1])
    assert changes_of(tmp_path / "2.parquet", before, tmp_path / "changes.arrow") == VocabularyGrowth(
        added=3, removed=1
    )


NOT_GROWN = {
    "another order": (["b", "a", "c"], "id 1 is 'b' and was 'a'"),
    "another value": (["a", "b", "x", "d"], "id 3 is 'x' and was 'c'"),
    "a removed one has its id again": (["a", "b", "c", "z"], "id 4 is 'z' and was ''"),
    "fewer values": (["a", "b"], "has 2 ids, but the previous version has 4"),
    "none": ([], "has 0 ids, but the previous version has 4"),
}


@pytest.mark.parametrize("case", NOT_GROWN)
def test_other_values_are_refused(tmp_path: Path, case: str) -> None:
    values, message = NOT_GROWN[case]
    write_vocabulary(tmp_path / "1.parquet", ["a", "b", "c", ""], [4, 3, 2, 1])
    write_vocabulary(tmp_path / "2.parquet", values, range(len(values), 0, -1))
    with pytest.raises(UserError, match=rf"2\.parquet: {message}.*; export in full$"):
        changes_of(tmp_path / "2.parquet", VocabularyLookup.load(tmp_path / "1.parquet"), tmp_path / "c.arrow")
    assert not (tmp_path / "c.arrow").exists()


@pytest.mark.parametrize("suffix", [".parquet", ""])
@pytest.mark.parametrize("size", [0, 1, 3, 4, 9, 25])
def test_a_vocabulary_is_written_in_row_groups_and_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, size: int
) -> None:
    monkeypatch.setattr(vocabulary, "VALUES_PER_ROW_GROUP", 4)
    monkeypatch.setattr(vocabulary, "VALUES_PER_FILE", 8 if not suffix else 2**20)
    values = [f"v{i}" for i in range(size)]
    rows = [{"value": value, "id": place + 1, "count": 7} for place, value in enumerate(values)]
    schema = pa.schema([("id", pa.int64()), ("value", pa.large_string()), ("count", pa.int64())])
    batches = [pa.RecordBatch.from_pylist(rows[start : start + 5], schema) for start in range(0, size, 5)]
    path = tmp_path / f"v{suffix}"
    write_whole_vocabulary(batches, path)
    files = [path] if suffix else sorted(path.glob("*.parquet"))
    assert len(files) == (1 if suffix else max(1, -(-size // 8)))
    tables = [pq.read_table(file) for file in files]
    assert pa.concat_tables(tables).to_pylist() == rows
    groups = [
        pq.read_metadata(file).row_group(i).num_rows
        for file in files
        for i in range(pq.read_metadata(file).num_row_groups)
    ]
    assert all(group == 4 for group in groups[:-1])
    assert VocabularyLookup.load(path).ids(pa.array(["v0", "v24", "no"])).tolist() == [
        min(1, size),
        25 * (size == 25),
        0,
    ]
    assert index_file(path).exists()


def test_the_vocabularies_of_several_features(tmp_path: Path) -> None:
    first = {"a": ["x", "y"], "b": ["y"], "c": ["z"]}
    second = {"a": ["x", "", "new"], "b": ["y"], "c": ["z", "y", "x"]}
    vocabularies = {}
    for name, values in first.items():
        write_vocabulary(tmp_path / f"1/{name}.parquet", values, [1] * len(values))
        write_vocabulary(tmp_path / f"2/{name}.parquet", second[name], [1] * len(second[name]))
        vocabularies[name] = (tmp_path / f"2/{name}.parquet", VocabularyLookup.load(tmp_path / f"1/{name}.parquet"))
    assert write_changes(tmp_path / "c.arrow", vocabularies) == {
        "a": VocabularyGrowth(added=1, removed=1),
        "c": VocabularyGrowth(added=2, removed=0),
    }
    changes = VocabularyChanges(tmp_path / "c.arrow")
    for name, values in second.items():
        lookup = vocabularies[name][1].changed(changes, name)
        assert lookup.values(np.arange(1, len(values) + 1)).to_pylist() == values
        assert lookup.ids(pa.array(["x", "y", "z", "new"])).tolist() == [
            values.index(value) + 1 if value in values else 0 for value in ("x", "y", "z", "new")
        ]
        rows = changes.apply(name, tmp_path / f"1/{name}.parquet", len(first[name]))
        assert [value for batch in rows for value in batch["value"].to_pylist()] == values
    with pa.ipc.open_file(tmp_path / "c.arrow") as readable:
        rows = readable.read_all().select(["feature", "id", "value"]).to_pylist()
    assert rows[:2] == [{"feature": "a", "id": 2, "value": ""}, {"feature": "a", "id": 3, "value": "new"}]
    assert {row["feature"] for row in rows} == {"a", "c"}


@pytest.mark.parametrize("content", [b"no Arrow file", b"", None])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "c.arrow").write_bytes(content)
    with pytest.raises(UserError, match=rf"c\.arrow: {'missing' if content is None else 'damaged'}"):
        VocabularyChanges(tmp_path / "c.arrow")
