"""Rows of tables are found again by what they stand for, whatever became of their numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rayrec.config.transforms import Buckets, Cross, Fill, Hash, HashIds, HashUnlisted, Log, MinMax, TimePart
from rayrec.features.hashes import hash_string
from rayrec.features.id_meanings import NEW, RowOrigins, difference, keeps_ids, row_origins
from rayrec.features.schema import CategoricalFeature, Feature, MultiHotFeature, NumericFeature, VectorFeature
from rayrec.features.transforms import encode_categorical
from rayrec.features.vocabulary import VocabularyLookup
from tests.daily_datasets import vocabulary_of


@dataclass(frozen=True)
class Listed:
    """A feature with a vocabulary."""

    values: Sequence[str]
    buckets: int = 0
    cap: int | None = None
    spare: int = 0
    """Rows beyond those that have a meaning."""

    def feature(self, folder: Path) -> CategoricalFeature:
        transforms: list[object] = [vocabulary_of(folder, "f", self.values)]
        rows = 1 + len(self.values) + self.buckets
        if self.buckets:
            transforms.append(HashUnlisted(buckets=self.buckets))
        if self.cap:
            transforms.append(HashIds(buckets=self.cap))
            rows = min(rows, self.cap)
        return CategoricalFeature(name="f", transforms=tuple(transforms), cardinality=rows + self.spare)

    def encode(self, folder: Path, texts: Sequence[str | None]) -> list[int]:
        """The ids of texts, by the one implementation that preprocessing and serving have."""
        feature = self.feature(folder)
        lookup = VocabularyLookup.load(folder / "vocabulary/f.parquet")
        return encode_categorical(feature, pa.array(texts, pa.string()), lookup).tolist()


APPENDED = [
    (Listed("ab"), Listed("ab")),
    (Listed("ab"), Listed("abcd")),
    (Listed(""), Listed("ab")),
    (Listed("ab", buckets=3), Listed("abcd", buckets=3)),
    (Listed("ab", spare=2), Listed("abcd", spare=5)),
    (Listed("abcdef", cap=4), Listed("abcdefgh", cap=4)),
    (Listed("ab", cap=5), Listed("abcdef", cap=5)),
    (Listed("ab", buckets=2, cap=9), Listed("abcd", buckets=2, cap=9)),
]
RENUMBERED = [
    (Listed("abc"), Listed("cda")),
    (Listed("abc"), Listed("ab")),
    (Listed("abc"), Listed("xyz")),
    (Listed("abc", buckets=4), Listed("dcb", buckets=4)),
    (Listed("abcdefgh"), Listed("hgfedcba", cap=4)),
    (Listed("abcdef", cap=4), Listed("fedcba")),
    (Listed("abcdef", cap=4), Listed("fedcbaxyz", cap=6)),
]


@pytest.mark.parametrize(("old", "new"), [*APPENDED, *RENUMBERED])
def test_a_row_comes_from_that_of_the_same_value(tmp_path: Path, old: Listed, new: Listed) -> None:
    origins = _origins(tmp_path, old, new)
    # Those of buckets are found by values that are nowhere listed; the empty text is the missing one.
    asked = ["", *new.values, *(f"nowhere-{number}" for number in range(50))]
    rows, before = new.encode(tmp_path / "new", asked), old.encode(tmp_path / "old", asked)
    first_of = {row: (text, was) for text, row, was in reversed(list(zip(asked, rows, before, strict=True)))}
    for row, (text, was) in first_of.items():
        is_new = text in new.values and text not in old.values
        assert origins.rows[row] == (NEW if is_new else was), (text, row)
    without_meaning = sorted(set(range(len(origins.rows))) - first_of.keys())
    assert (origins.rows[without_meaning] == NEW).all()
    assert origins.new.tolist() == [row for row, origin in enumerate(origins.rows) if origin == NEW]
    for row, key in zip(origins.new.tolist(), origins.keys(origins.new).tolist(), strict=True):
        assert key == (row if row in without_meaning else hash_string(first_of[row][0]))


@pytest.mark.parametrize(("old", "new"), APPENDED)
def test_a_vocabulary_that_begins_with_the_old_one_is_not_looked_up(tmp_path: Path, old: Listed, new: Listed) -> None:
    before, now = old.feature(tmp_path / "old"), new.feature(tmp_path / "new")

    def unneeded() -> Path:
        raise AssertionError("the old dataset may be gone")

    found = row_origins(before, now, tmp_path / "new", unneeded)
    unknown = [
        feature.model_copy(update={"transforms": (feature.transforms[0].model_copy(update={"content_hash": None}),
                                                  *feature.transforms[1:])})
        for feature in (before, now)
    ]  # fmt: skip
    looked_up = row_origins(*unknown, tmp_path / "new", lambda: tmp_path / "old")
    assert found.rows.tolist() == looked_up.rows.tolist()
    assert found.keys(found.new).tolist() == looked_up.keys(looked_up.new).tolist()


@pytest.mark.parametrize(
    ("transforms", "before", "now", "expected"),
    [
        ((), 3, 5, [0, 1, 2, NEW, NEW]),
        ((), 5, 3, [0, 1, 2]),
        ((Hash(buckets=4, of="strings"),), 4, 4, [0, 1, 2, 3]),
        ((Buckets(boundaries=(1.0, 2.0)),), 4, 4, [0, 1, 2, 3]),
        ((TimePart(part="weekday"),), 8, 8, list(range(8))),
        ((Cross(buckets=4),), 4, 4, [0, 1, 2, 3]),
    ],
)
def test_ids_that_are_no_values_keep_their_rows(
    tmp_path: Path, transforms: tuple[object, ...], before: int, now: int, expected: list[int]
) -> None:
    old, new = (CategoricalFeature(name="f", transforms=transforms, cardinality=rows) for rows in (before, now))
    origins = row_origins(old, new, tmp_path, lambda: tmp_path)
    assert origins.rows.tolist() == expected
    assert origins.keys(origins.new).tolist() == origins.new.tolist()
    assert keeps_ids(old, new, tmp_path) == (now >= before)


@pytest.mark.parametrize(
    ("old", "new", "keeps"),
    [
        (Listed("ab"), Listed("abc"), True),
        (Listed("ab"), Listed("ba"), False),
        (Listed("abc"), Listed("ab"), False),
        (Listed("abcdef", cap=4), Listed("abcdefg", cap=4), True),
        (Listed("abcdef", cap=4), Listed("abcdef", cap=5), False),
        (Listed("ab"), Listed("abc", cap=4), True),
    ],
)
def test_who_keeps_all_ids(tmp_path: Path, old: Listed, new: Listed, keeps: bool) -> None:
    assert keeps_ids(old.feature(tmp_path / "old"), new.feature(tmp_path / "new"), tmp_path / "new") is keeps


def test_buckets_keep_their_ids_only_where_they_do(tmp_path: Path) -> None:
    """By the encoder itself, as a cross of the feature would see them."""
    old, new = Listed("ab", buckets=3), Listed("abcd", buckets=3)
    asked = ["", "a", "b", *(f"nowhere-{number}" for number in range(50))]
    same = old.encode(tmp_path / "old", asked) == new.encode(tmp_path / "new", asked)
    assert keeps_ids(old.feature(tmp_path / "old"), new.feature(tmp_path / "new"), tmp_path / "new") is same


def _one_hot(*transforms: object, **fields: object) -> CategoricalFeature:
    return CategoricalFeature.model_validate({"name": "f", "cardinality": 99, "transforms": transforms, **fields})


HASH, CROSS = Hash(buckets=9, of="strings"), Cross(buckets=9)
DIFFERENCES: list[tuple[Feature, Feature, str | None]] = [
    (_one_hot(), _one_hot(cardinality=100), None),
    (_one_hot(HASH), _one_hot(HASH), None),
    (_one_hot(), _one_hot(HashIds(buckets=5)), None),
    (_one_hot(), MultiHotFeature(name="f", cardinality=99), "is multi_hot and was categorical"),
    (_one_hot(), _one_hot(HASH), "has hash and had no transform"),
    (_one_hot(HASH), _one_hot(Hash(buckets=8, of="strings")), "has different settings of 'hash'"),
    (_one_hot(HASH), _one_hot(Hash(buckets=9, of="integers")), "has different settings of 'hash'"),
    (_one_hot(Buckets(boundaries=(1,))), _one_hot(Buckets(boundaries=(2,))), "has different settings of 'buckets'"),
    (_one_hot(TimePart(part="hour")), _one_hot(TimePart(part="day")), "has different settings of 'time_part'"),
    (
        _one_hot(TimePart(part="hour")),
        _one_hot(TimePart(part="hour", zone="Asia/Tokyo")),
        "has different settings of 'time_part'",
    ),
    (_one_hot(CROSS, inputs=("a", "b")), _one_hot(CROSS, inputs=("b", "a")), "crosses b, a and crossed a, b"),
    (_one_hot(CROSS, inputs=("a", "b")), _one_hot(CROSS, inputs=("a", "b")), None),
    (_one_hot(), _one_hot(table="g"), "reads the table of 'g' and read its own table"),
    (NumericFeature(name="f"), NumericFeature(name="f", transforms=(Log(),)), "has log and had no transform"),
    (
        NumericFeature(name="f", transforms=(MinMax(min=0, max=1), Fill(value=1))),
        NumericFeature(name="f", transforms=(MinMax(min=0, max=2), Fill(value=2))),
        None,
    ),
    (NumericFeature(name="f"), VectorFeature(name="f", size=3), "is vector and was numeric"),
    (VectorFeature(name="f", size=2), VectorFeature(name="f", size=3), "has 3 numbers and had 2"),
]


@pytest.mark.parametrize(("old", "new", "expected"), DIFFERENCES)
def test_what_a_model_cannot_go_on_reading(old: Feature, new: Feature, expected: str | None) -> None:
    assert difference(old, new) == expected


def test_vocabularies_may_differ_but_not_their_buckets(tmp_path: Path) -> None:
    plain, longer = Listed("ab").feature(tmp_path / "a"), Listed("xyz").feature(tmp_path / "b")
    assert difference(plain, longer) is None
    hashed = Listed("ab", buckets=2).feature(tmp_path / "c")
    assert difference(plain, hashed) == "has vocabulary, hash_unlisted and had vocabulary"
    other = Listed("ab", buckets=3).feature(tmp_path / "d")
    assert difference(hashed, other) == "has different settings of 'hash_unlisted'"


def test_many_values_in_another_order(tmp_path: Path) -> None:
    """Work that grows with the square of the values would take minutes."""
    count = 300_000
    old = Listed([f"value-{number}" for number in range(count)])
    new = Listed([f"value-{number}" for number in np.random.default_rng(1).permutation(count + 1000)])
    rows = _origins(tmp_path, old, new).rows
    expected = [NEW if number >= count else number + 1 for number in (int(v.partition("-")[2]) for v in new.values)]
    assert rows.tolist() == [0, *expected]


def _origins(folder: Path, old: Listed, new: Listed) -> RowOrigins:
    before, now = old.feature(folder / "old"), new.feature(folder / "new")
    return row_origins(before, now, folder / "new", lambda: folder / "old")
