"""Files of interactions -> dataset folder, against independent computations."""

import gzip
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayrec.common.errors import UserError
from rayrec.ingest.dataset import Dataset
from rayrec.preprocessing import extract, segments
from rayrec.preprocessing.engine import EmbeddedEngine
from rayrec.recipes import Recipe
from rayrec.sources.interactions import histories, ranking_lists
from rayrec.sources.registry import preprocessing
from tests.messages import Messages

COLUMNS = ["label", "user", "item", "group"]
Inputs = Mapping[str | None, Sequence[str]]
Run = Callable[..., Dataset]


@pytest.fixture
def messages() -> Messages:
    return Messages()


@pytest.fixture
def run(tmp_path: Path, messages: Messages) -> Run:
    """Preprocess into a new folder."""

    def call(inputs: Inputs, name: str = "dataset", *, source: dict[str, Any] | None = None, **config: Any) -> Dataset:
        recipe = Recipe.model_validate(
            {
                "name": "test",
                "model": {"kind": "neumf"},
                "source": {"kind": "interactions", **(source or {})},
                "preprocess": config,
            }
        )
        preprocessing(recipe, inputs, tmp_path / name).run(EmbeddedEngine(2), messages)
        return Dataset.open(tmp_path / name)

    return call


# --- an independent computation of the same rules, in pandas


def kept_by_pandas(raw: pd.DataFrame, min_interactions: int = 0) -> pd.DataFrame:
    """Of rows (user, item, timestamp) in the order of the file: what is left, in the order of time."""
    rows = raw[raw.groupby("user")["item"].transform("size") >= min_interactions]
    if "timestamp" in rows:
        rows = rows.sort_values("timestamp", kind="stable")
    return rows.drop_duplicates(["user", "item"]).reset_index(drop=True)


def ids_by_pandas(values: pd.Series) -> dict[str, int]:
    counts = values.value_counts()
    ranked = sorted(counts.items(), key=lambda item: (-item[1], str(item[0]).encode()))
    return {str(value): place for place, (value, _) in enumerate(ranked, start=1)}


def rows_by_pandas(rows: pd.DataFrame, users: dict[str, int], items: dict[str, int]) -> pd.DataFrame:
    """Encoded positives, by user id, then as they stand."""
    user, item = rows["user"].map(users), rows["item"].map(items)
    encoded = pd.DataFrame({"label": np.float32(1), "user": user, "item": item, "group": user})
    encoded = encoded.sort_values("user", kind="stable").reset_index(drop=True)
    return encoded.astype({"label": np.float32, "user": np.int32, "item": np.int32, "group": np.int64})


def read_split(dataset: Dataset, split: str) -> pd.DataFrame:
    parts = dataset.manifest.splits[split].parts
    return pa.concat_tables([pq.read_table(dataset.folder / part.path) for part in parts]).to_pandas()


def vocabulary(dataset: Dataset, feature: str) -> dict[str, int]:
    table = pq.read_table(dataset.folder / "vocabulary" / f"{feature}.parquet").to_pandas()
    return dict(zip(table["value"], table["id"], strict=True))


def check_lists(lists: pd.DataFrame, positives: pd.DataFrame, known: pd.DataFrame, num_items: int, length: int) -> None:
    """`distinct` lists: a positive and its negatives, none of them among the pairs in `known`."""
    assert lists["label"].tolist() == [1.0, *[0.0] * length] * len(positives)
    pd.testing.assert_frame_equal(lists[lists["label"] == 1].reset_index(drop=True), positives, check_exact=True)
    assert (lists["user"] == lists["group"]).all()
    assert lists["group"].tolist() == np.repeat(positives["user"], length + 1).tolist()
    assert not lists.duplicated(["user", "item"]).any()
    negatives = lists[lists["label"] == 0]
    assert negatives["item"].between(1, num_items).all()
    pairs = set(zip(known["user"], known["item"], strict=True))
    assert not pairs & set(zip(negatives["user"], negatives["item"], strict=True))


def read_100k(folder: Path) -> pd.DataFrame:
    names = ["user", "item", "rating", "timestamp"]
    types = {"user": str, "item": str}
    return pd.read_csv(folder / "ml-100k" / "u.data.gz", sep="\t", names=names, dtype=types)


def read_small(folder: Path) -> pd.DataFrame:
    raw = pd.read_csv(folder / "ml-latest-small" / "ratings.csv.gz", dtype={"userId": str, "movieId": str})
    return raw.rename(columns={"userId": "user", "movieId": "item"})


REAL: dict[str, tuple[str, Callable[[Path], pd.DataFrame], int, bool]] = {
    # input; how pandas reads it; least interactions; validation
    "ml-100k": ("ml-100k/u.data.gz", read_100k, 20, False),
    "ml-100k, active users": ("ml-100k", read_100k, 120, True),
    "ml-latest-small": ("ml-latest-small/ratings.csv.gz", read_small, 0, True),
}


@pytest.mark.parametrize("case", REAL)
def test_real_interactions_equal_pandas_cell_by_cell(case: str, run: Run, shared_data: Path) -> None:
    path, read, least, validation = REAL[case]
    split = {"kind": "leave_one_out", "min_interactions": least, "validation": validation, "negatives": 50}
    dataset = run({None: [str(shared_data / path)]}, split=split, layout={"rows_per_row_group": 1024})

    kept = kept_by_pandas(read(shared_data), least)
    users, items = ids_by_pandas(kept["user"]), ids_by_pandas(kept["item"])
    assert vocabulary(dataset, "user") == users and vocabulary(dataset, "item") == items
    from_end = kept.groupby("user").cumcount(ascending=False)
    held_out = {"test": 0, "validation": 1} if validation else {"test": 0}
    train = rows_by_pandas(kept[~from_end.isin(list(held_out.values()))], users, items)
    pd.testing.assert_frame_equal(read_split(dataset, "train"), train, check_exact=True)
    everything = rows_by_pandas(kept, users, items)
    assert list(dataset.manifest.splits) == ["train", *(["validation"] if validation else []), "test"]
    for name, place in held_out.items():
        positives = rows_by_pandas(kept[from_end == place], users, items)
        assert len(positives) == len(users)
        check_lists(read_split(dataset, name), positives, everything, len(items), 50)
        assert dataset.manifest.splits[name].positives == len(users)
    interactions = dataset.schema.interactions
    assert interactions is not None and (interactions.user, interactions.item) == ("user", "item")
    assert (dataset.schema.label, dataset.schema.group) == ("label", "group")
    assert [f.cardinality for f in dataset.schema.categorical] == [len(users) + 1, len(items) + 1]
    assert dataset.manifest.rejected == {}


def test_files_of_the_paper(run: Run, shared_data: Path, messages: Messages) -> None:
    folder = shared_data / "ml-1m-ncf"
    dataset = run({None: [str(folder)]}, split={"kind": "files", "validation": True, "negatives": 30})

    types = {"user": str, "item": str}
    train = pd.read_csv(folder / "ml-1m.train.pairs.tsv.gz", sep="\t", names=["user", "item"], dtype=types)
    test = pd.read_csv(
        folder / "ml-1m.test.rating", sep="\t", names=["user", "item", "rating", "timestamp"], dtype=types
    )[["user", "item"]]
    assert (len(train), len(test)) == (994_169, 6_040)
    everything = pd.concat([train, test])
    users, items = ids_by_pandas(everything["user"]), ids_by_pandas(everything["item"])
    is_last = train.groupby("user").cumcount(ascending=False) == 0
    expected = rows_by_pandas(train[~is_last], users, items)
    pd.testing.assert_frame_equal(read_split(dataset, "train"), expected, check_exact=True)
    positives = rows_by_pandas(train[is_last], users, items)
    known = rows_by_pandas(everything, users, items)
    check_lists(read_split(dataset, "validation"), positives, known, len(items), 30)

    rows: list[tuple[float, int, int, int]] = []
    shorter = 0
    for line in gzip.decompress((folder / "ml-1m.test.negative.gz").read_bytes()).decode().splitlines():
        head, *negatives = line.split("\t")
        user, item = head.strip("()").split(",")
        others = [n for n in negatives if n != item]
        shorter += len(others) < len(negatives)
        number = users[user]
        rows += [(1.0, number, items[item], number), *((0.0, number, items.get(n, 0), number) for n in others)]
    assert shorter == 156
    lists = read_split(dataset, "test")
    assert (lists.to_numpy() == np.array(rows)).all() and len(lists) == len(rows)
    assert messages.lines == []


def contents(dataset: Dataset) -> dict[str, Any]:
    vocabularies = {f: vocabulary(dataset, f) for f in ("user", "item")}
    return {"splits": dataset.manifest.splits, "schema": dataset.schema, "vocabularies": vocabularies}


def test_same_files_whatever_the_tasks(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows with equal times, in two orders that no sorting tells apart but that of the input."""
    rng = np.random.default_rng(2)
    rows = pd.DataFrame(
        {
            "user_id": np.minimum(rng.integers(0, 400, 8_000), rng.integers(0, 400, 8_000)),
            "item_id": rng.integers(0, 400, 8_000),
            "timestamp": 1 + np.arange(8_000) // 2_000,
        }
    )
    for index, name in enumerate(("a.csv", "b.csv")):
        rows.iloc[4_000 * index : 4_000 * (index + 1)].to_csv(tmp_path / name, index=False)
    rows[:4_000].to_parquet(tmp_path / "a.parquet", row_group_size=500)
    rows[4_000:].astype({"user_id": str}).to_parquet(tmp_path / "b.parquet", row_group_size=500)
    config = {"split": {"kind": "leave_one_out", "validation": True, "negatives": 20}, "seed": 4}
    usual = run({None: [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")]}, "usual", **config)
    monkeypatch.setattr(segments, "SEGMENT_ROWS", 700)
    monkeypatch.setattr(extract, "_LEAST_CHUNK_BYTES", 10_000)
    monkeypatch.setattr(histories, "_ROWS_PER_PARTITION", 600)
    monkeypatch.setattr(ranking_lists, "_LISTS_AT_ONCE", 3)
    names = ("a.parquet", "b.parquet")
    other = run({None: [str(tmp_path / name) for name in names]}, "other", **config)
    assert contents(other) == contents(usual)
    assert len(other.files_in("dropped")) > 1
    kept = kept_by_pandas(
        rows.rename(columns={"user_id": "user", "item_id": "item"}).astype({"user": str, "item": str}), 20
    )
    users, items = ids_by_pandas(kept["user"]), ids_by_pandas(kept["item"])
    train = kept[kept.groupby("user").cumcount(ascending=False) > 1]
    pd.testing.assert_frame_equal(read_split(usual, "train"), rows_by_pandas(train, users, items), check_exact=True)

    reseeded = run({None: [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")]}, "reseeded", **{**config, "seed": 5})
    assert read_split(reseeded, "train").equals(read_split(usual, "train"))
    assert (read_split(reseeded, "test")["item"] != read_split(usual, "test")["item"]).mean() > 0.8


def write(folder: Path, name: str, text: str | bytes) -> str:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def test_few_items_and_few_interactions(run: Run, tmp_path: Path, messages: Messages) -> None:
    """A user that knows all items, one with one interaction, repeated pairs, bad rows."""
    lines = [b"1::%d::5::%d" % (item, item) for item in range(1, 7)]
    lines += [b"2::1::5::1", b"3::1::5::9", b"3::2::5::8", b"3::1::5::10"]
    bad = [b"4::5::5", b"::5::5::5", b"4::5::5::x", b"4::\xff::5::5"]
    path = write(tmp_path, "ratings.dat", b"\n".join([*lines, *bad]) + b"\n")
    dataset = run(
        {None: [path]},
        split={"kind": "leave_one_out", "min_interactions": 0, "negatives": 4},
        max_rejected_fraction=0.5,
    )
    assert dataset.manifest.rejected == {
        "wrong column count": 1,
        "no value in a required column": 1,
        "not a time": 1,
        "invalid UTF-8": 1,
    }
    rejected = pq.read_table(dataset.folder / "rejected").to_pylist()
    assert [(row["line"], row["text"]) for row in rejected][1:] == [
        (12, "::5::5::5"),
        (13, "4::5::5::x"),
        (14, "4::\\xff::5::5"),
    ]
    users, items = vocabulary(dataset, "user"), vocabulary(dataset, "item")
    assert users == {"1": 1, "3": 2, "2": 3} and items["1"] == 1 and items["2"] == 2
    train = read_split(dataset, "train")
    assert train[["user", "item"]].to_numpy().tolist() == [*([1, items[str(i)]] for i in range(1, 6)), [2, 2], [3, 1]]
    lists = read_split(dataset, "test")
    assert lists["group"].tolist() == [1, 2, 2, 2, 2, 2]
    assert lists["item"].tolist()[:2] == [items["6"], 1]
    assert sorted(lists["item"].tolist()[2:]) == [3, 4, 5, 6]
    (repeated,) = dataset.manifest.dropped.values()
    assert (repeated.rows, repeated.users) == (1, 0)
    assert messages.lines == [
        "1 users with too few interactions to hold one out stay in train",
        "test: 1 users have so many items that fewer than 4 negatives are left; their lists are shorter",
    ]


def test_nobody_is_active_enough(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path, "rows.csv", "user,item\n" + "".join(f"{i % 3},{i}\n" for i in range(30)))
    message = "preprocess.split.min_interactions: all 3 users have fewer than 20 interactions (30 rows)"
    with pytest.raises(UserError, match=re.escape(message)):
        run({None: [path]})
    assert [p.name for p in tmp_path.iterdir()] == ["rows.csv"]


def test_a_split_without_rows_is_there_as_nothing(run: Run, tmp_path: Path) -> None:
    """So that it can be warned about: no user has two interactions, as in short days."""
    path = write(tmp_path, "rows.csv", "user,item\n" + "".join(f"{i},{i % 3}\n" for i in range(30)))
    dataset = run({None: [path]}, split={"kind": "leave_one_out", "min_interactions": 0, "validation": True})
    assert {name: split.rows for name, split in dataset.manifest.splits.items()} == {
        "train": 30,
        "validation": 0,
        "test": 0,
    }


def test_a_header_alone(run: Run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no good row is left for train"):
        run({None: [write(tmp_path, "rows.csv", "user,item\n")]})
