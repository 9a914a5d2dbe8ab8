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
from rayrec.sources.interactions.config import InteractionPreprocessConfig
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

    def call(
        inputs: Inputs,
        name: str = "dataset",
        *,
        source: dict[str, Any] | None = None,
        parent: Dataset | None = None,
        **config: Any,
    ) -> Dataset:
        recipe = Recipe.model_validate(
            {
                "name": "test",
                "model": {"kind": "neumf"},
                "source": {"kind": "interactions", **(source or {})},
                "preprocess": config,
            }
        )
        preprocessing(recipe, inputs, tmp_path / name, parent).run(EmbeddedEngine(2), messages)
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
    with pytest.raises(UserError, match="none of the good rows falls into train"):
        run({None: [write(tmp_path, "rows.csv", "user,item\n")]})


# --- a moment divides all interactions


def some_rows(rows: int, users: int, last: int, seed: int = 0) -> pd.DataFrame:
    """Interactions of people who come one after the other, many at equal times, in no order."""
    rng = np.random.default_rng(seed)
    user = rng.integers(0, users, rows)
    time = np.minimum(user * last // users + rng.integers(0, last // 2, rows), last)
    return pd.DataFrame({"user": user.astype(str), "item": rng.integers(0, 60, rows).astype(str), "timestamp": time})


def starts_by_pandas(times: pd.Series, spans: dict[str, float | int]) -> dict[str, int]:
    """The first moment of each split: a share of the rows, or seconds back from the last one."""
    starts, beyond = {}, 0.0
    for name, span in reversed(spans.items()):
        beyond += span
        if beyond < 1:
            starts[name] = int(times.sort_values().iloc[len(times) - max(1, round(beyond * len(times)))])
        else:
            starts[name] = int(times.max() - beyond + 1)
    return starts


def test_a_moment_that_leaves_a_split_empty_is_refused(run: Run, tmp_path: Path) -> None:
    """Two days are no three parts; training would choose by `test` without a word."""
    raw = some_rows(600, 50, 100)
    raw["timestamp"] = 1_700_000_000 + 86_400 * (raw["timestamp"] > 50)
    raw.to_csv(tmp_path / "rows.csv", index=False)
    with pytest.raises(UserError, match=r"preprocess.split.validation: none of \d+ choices"):
        run({None: [str(tmp_path / "rows.csv")]}, split={"kind": "time", "validation": 0.1, "test": 0.1})


DIVIDED: dict[str, tuple[dict[str, float | str], dict[str, float | int]]] = {
    "shares": ({"test": 0.2, "validation": 0.1}, {"validation": 0.1, "test": 0.2}),
    "a share": ({"test": 0.3}, {"test": 0.3}),
    "durations": ({"test": "5s", "validation": "20s"}, {"validation": 20, "test": 5}),
}


@pytest.mark.parametrize("case", DIVIDED)
def test_a_moment_divides_the_interactions_of_all(case: str, run: Run, tmp_path: Path) -> None:
    given, spans = DIVIDED[case]
    raw = some_rows(2_000, 150, 100)
    raw.to_csv(tmp_path / "rows.csv", index=False)
    dataset = run({None: [str(tmp_path / "rows.csv")]}, split={"kind": "time", **given})

    starts = starts_by_pandas(raw["timestamp"], spans)
    kept = kept_by_pandas(raw)
    bounds = {"train": -1, **{name: starts[name] for name in spans}}
    place = np.searchsorted([*bounds.values()], kept["timestamp"], side="right") - 1
    parts = {name: kept[place == number] for number, name in enumerate(bounds)}
    assert list(dataset.manifest.splits) == list(parts)
    # Ids are those of train alone, which knows nothing of what comes later.
    users, items = ids_by_pandas(parts["train"]["user"]), ids_by_pandas(parts["train"]["item"])
    assert vocabulary(dataset, "user") == users and vocabulary(dataset, "item") == items
    pd.testing.assert_frame_equal(
        read_split(dataset, "train"), rows_by_pandas(parts["train"], users, items), check_exact=True
    )
    new_people: dict[int, list[int]] = {}
    for name in spans:
        found, expected = read_split(dataset, name), parts[name]
        assert (found["label"] == 1).all() and dataset.manifest.splits[name].rows == len(expected)
        known = found[found["user"] > 0].reset_index(drop=True)
        of_known = expected[expected["user"].isin(list(users))]
        assert len(of_known) and len(of_known) < len(expected), "a case that tests nothing"
        by_pandas = pd.DataFrame({c: of_known[c].map(ids) for c, ids in (("user", users), ("item", items))})
        by_pandas = by_pandas.fillna(0).astype(int).sort_values("user", kind="stable").reset_index(drop=True)
        assert known[["user", "item"]].to_numpy().tolist() == by_pandas.to_numpy().tolist()
        assert (known["group"] == known["user"]).all()
        # The rows of a person lie next to each other.
        assert (found["group"] != found["group"].shift()).sum() == expected["user"].nunique()
        for group, item in found.loc[found["user"] == 0, ["group", "item"]].to_numpy().tolist():
            new_people.setdefault(group, []).append(item)
    # A person without an id is told by a group that is the same in all splits, and no user's.
    later = pd.concat([parts[name] for name in spans])
    of_new = later[~later["user"].isin(list(users))].groupby("user")["item"]
    expected_people = [[items.get(item, 0) for item in of_person] for _, of_person in of_new]
    assert sorted(new_people.values()) == sorted(expected_people)
    assert min(new_people) > len(users)


def test_later_rows_that_are_no_choices_are_not_known(run: Run, tmp_path: Path) -> None:
    """Those before the moment are, after the choices of their user with label 0."""
    rows = ["1,a,5,1", "1,b,1,2", "1,c,5,3", "2,a,5,1", "2,c,1,9", "1,a,5,9", "2,b,5,9", "3,b,1,2", "3,c,5,9"]
    path = write(tmp_path, "rows.csv", "user,item,rating,timestamp\n" + "\n".join(rows) + "\n")
    dataset = run(
        {None: [path]},
        split={"kind": "time", "test": "1s"},
        source={"choices": {"column": "rating", "at_least": 4}},
    )
    users, items = vocabulary(dataset, "user"), vocabulary(dataset, "item")
    assert set(users) == {"1", "2"} and set(items) == {"a", "c"}
    known = read_split(dataset, "known")[["label", "user", "item"]].to_numpy().tolist()
    one, two = users["1"], users["2"]
    of_one = [[1, one, items["a"]], [1, one, items["c"]], [0, one, 0]]
    assert sorted(known) == sorted([[0, 0, 0], *of_one, [1, two, items["a"]]])
    assert [row for row in known if row[1] == one] == of_one
    test = read_split(dataset, "test")[["user", "item"]].to_numpy().tolist()
    assert sorted(test) == [[0, items["c"]], [two, 0]]
    assert dataset.manifest.dropped["rows that are not choices (source.choices)"].rows == 3


def test_who_was_new_is_known_when_he_comes_again(run: Run, tmp_path: Path) -> None:
    first = write(tmp_path, "1.csv", "user,item,timestamp\n1,a,1\n1,b,2\n2,c,3\n1,c,9\n2,a,9\n3,b,9\n3,a,9\n")
    second = write(tmp_path, "2.csv", "user,item,timestamp\n3,c,11\n1,d,12\n2,d,12\n4,a,19\n3,d,19\n")
    recipe = {"split": {"kind": "time", "test": "1s"}}
    parent = run({None: [first]}, "parent", **recipe)
    assert [*vocabulary(parent, "user")] == ["1", "2"]
    dataset = run({None: [second]}, "extension", parent=parent, **recipe)
    users, items = vocabulary(dataset, "user"), vocabulary(dataset, "item")
    assert set(users) == {"1", "2", "3"}
    known = read_split(dataset, "known")
    by_user = {name: known[known["user"] == number]["item"].tolist() for name, number in users.items()}
    assert by_user == {
        "1": [items[item] for item in "abcd"],
        "2": [items[item] for item in "cad"],
        "3": [items[item] for item in "bac"],
    }
    test = read_split(dataset, "test")[["user", "item"]].to_numpy().tolist()
    assert sorted(test) == [[0, items["a"]], [users["3"], items["d"]]]


def test_all_rows_can_be_trained_on_in_the_end() -> None:
    """What is published learns from the held-out rows, too."""
    config = InteractionPreprocessConfig(split={"kind": "time", "test": "1d"})
    assert config.holds_out_latest
    assert config.split_of_all_rows == config.split.model_copy(update={"test": 0.0})


def test_times_are_needed(run: Run, tmp_path: Path) -> None:
    rows = "".join(f"{i % 3},{i},{i}\n" for i in range(30))
    without = write(tmp_path, "without.csv", "user,item,other\n" + rows)
    message = "preprocess.split.kind: 'time' needs the time of each row, and"
    with pytest.raises(UserError, match=re.escape(message)):
        run({None: [without]}, split={"kind": "time"})
    of_no_unit = write(tmp_path, "numbers.csv", "user,item,timestamp\n" + rows.replace("\n", "0000000000000000\n"))
    with pytest.raises(UserError, match=r"preprocess.split.test: '1d' needs times with a unit"):
        run({None: [of_no_unit]}, split={"kind": "time", "test": "1d"})
    assert run({None: [of_no_unit]}, split={"kind": "time", "test": 0.2}).split("test").rows == 6
