"""Datasets that extend others: old ids stay, counts are exact over all days, and what cannot be extended is refused."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayrec.common.errors import ConfigError, UserError
from rayrec.features.encoder import FeatureEncoder
from rayrec.features.id_meanings import EarlierIds
from rayrec.features.vocabulary import VocabularyLookup
from rayrec.inference.folder.facts import KnownItems
from rayrec.ingest.dataset import Dataset, Times
from rayrec.inspection.drift import drift_of_extension, is_explained_by_new_values
from rayrec.inspection.gate import _odd_times
from rayrec.preprocessing.engine import EmbeddedEngine
from rayrec.preprocessing.extension import require_other_rows
from rayrec.recipes import Recipe
from rayrec.sources.registry import preprocessing

TABLE: dict[str, Any] = {
    "name": "days",
    "source": {
        "kind": "table",
        "label": "click",
        "time": "when",
        "ignore": ["when"],
        "features": [
            {"columns": "price", "kind": "numeric", "transforms": ["standardize"]},
            {"columns": "shop", "kind": "categorical", "min_count": 3},
            {"columns": "site", "kind": "categorical", "min_count": 1, "unlisted_buckets": 5, "max_size": 4},
            {"columns": "tags", "kind": "list", "separator": "|", "min_count": 2},
            {"columns": "page", "kind": "categorical", "cardinality": "auto"},
            {"of": ["shop", "site"], "kind": "cross", "buckets": 50, "name": "both"},
        ],
    },
    "preprocess": {"split": {"kind": "hash", "test": 0.0}},
    "model": {"kind": "dcnv2"},
}
Row = Mapping[str, Any]


def rows_of_day(day: int, rows: int = 60, seed: int = 0) -> list[Row]:
    """Rows with values that come and go: shop k is there from day k to day k + 2."""
    random = np.random.default_rng([seed, day])
    return [
        {
            "click": int(random.random() < 0.4),
            "when": f"2026-01-{1 + day:02d}T{number // 3600:02d}:{number // 60 % 60:02d}:{number % 60:02d}",
            "price": round(float(random.normal(10 + day, 3)), 2),
            "shop": f"shop{day + int(random.integers(-2, 1))}",
            "site": f"site{random.integers(0, 3 + day)}",
            "tags": "|".join(f"tag{n}" for n in random.integers(0, 4 + day, random.integers(0, 3))),
            "page": int(random.integers(0, 10 * (day + 1))),
        }
        for number in range(rows)
    ]


def write_csv(path: Path, rows: Sequence[Row]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]) + "\n")
    return path


def recipe(**changes: Any) -> Recipe:
    return Recipe.model_validate({**TABLE, "preprocess": {**TABLE["preprocess"], **changes}})


def preprocess(output: Path, files: Sequence[Path], parent: Dataset | None = None, **changes: Any) -> Dataset:
    made = recipe(**changes)
    preprocessing(made, {None: list(map(str, files))}, output, parent).run(EmbeddedEngine(2))
    return Dataset.open(output)


def values(dataset: Dataset, feature: str) -> list[str]:
    vocabulary = {f.name: f for f in dataset.schema.categorical}[feature].vocabulary
    assert vocabulary is not None
    listed: list[str] = pq.read_table(dataset.folder / vocabulary.file)["value"].to_pylist()
    assert len(listed) == vocabulary.size
    lookup = VocabularyLookup.load(dataset.folder / vocabulary.file)
    ids = lookup.ids(pa.array(listed))
    assert ids.tolist() == [number if value else 0 for number, value in enumerate(listed, 1)]
    return listed


def counts(dataset: Dataset) -> dict[tuple[str, str], tuple[int, int]]:
    tables = [pq.read_table(path) for path in sorted((dataset.folder / "counts").glob("*.parquet"))]
    found = {
        (row["feature"], row["value"]): (row["count"], row["last"]) for table in tables for row in table.to_pylist()
    }
    assert len(found) == sum(map(len, tables)), "each value once"
    return found


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> list[Dataset]:
    """Five days, each of which extends the one before."""
    tmp_path = tmp_path_factory.mktemp("days")
    datasets: list[Dataset] = []
    for day in range(5):
        file = write_csv(tmp_path / "raw" / f"{day}.csv", rows_of_day(day))
        datasets.append(preprocess(tmp_path / f"dataset-{day}", [file], datasets[-1] if datasets else None))
    return datasets


def test_old_ids_stay_and_values_are_listed_when_they_have_occurred_often_enough(days: list[Dataset]) -> None:
    seen: dict[str, Counter[str]] = {"shop": Counter(), "site": Counter(), "tags": Counter()}
    listed: dict[str, list[str]] = {name: [] for name in seen}
    least, most = {"shop": 3, "site": 1, "tags": 2}, {"shop": 10**6, "site": 4, "tags": 10**6}
    for day, dataset in enumerate(days):
        for row in rows_of_day(day):
            for name, counter in seen.items():
                counter.update(value for value in row[name].split("|") if value)
        for name, counter in seen.items():
            new = [(-n, value) for value, n in counter.items() if n >= least[name] and value not in listed[name]]
            listed[name] += [value for _, value in sorted(new)][: most[name] - len(listed[name])]
            assert values(dataset, name) == listed[name], (day, name)
    assert len(listed["shop"]) > 5, "or nothing was added"


def test_counts_are_those_of_all_days(days: list[Dataset]) -> None:
    total: Counter[tuple[str, str]] = Counter()
    last: dict[tuple[str, str], int] = {}
    for day, dataset in enumerate(days):
        rows = rows_of_day(day)
        for row in rows:
            for name in ("shop", "site", "tags"):
                for value in filter(None, row[name].split("|")):
                    total[name, value] += 1
                    last[name, value] = dataset.manifest.moment
        assert dataset.manifest.times is not None
        assert dataset.manifest.moment == int(dataset.manifest.times.last)
        assert counts(dataset) == {key: (total[key], last[key]) for key in total}


def test_rows_are_encoded_as_before_and_in_the_order_of_the_input(days: list[Dataset]) -> None:
    base, compared = days[0], Counter[str]()
    for day, dataset in enumerate(days[1:], 1):
        rows = rows_of_day(day)
        names = [feature.name for feature in dataset.schema.features]
        (stored,) = list(dataset.rows("train", [*names, "click"], 1_000))
        assert stored["click"].to_pylist() == [row["click"] for row in rows]
        raw = raw_of(rows)
        encoded = FeatureEncoder(dataset.schema, dataset.folder).encode(raw)
        assert stored.select(names).equals(encoded)
        before = FeatureEncoder(base.schema, base.folder).encode(raw)
        # What had an id on the first day has it still, also where unlisted values share some.
        for name in ("shop", "site", "page"):
            old, new = before[name].to_numpy(), encoded[name].to_numpy()
            known = old > (5 if name == "site" else 0)
            compared[name] += int(known.sum())
            assert (old[known] == new[known]).all()
        assert before["price"].equals(encoded["price"]), "fitted to the first day"
    assert min(compared[name] for name in ("shop", "site", "page")) > 10
    assert [d.schema.features[5].cardinality for d in days] == sorted(d.schema.features[5].cardinality for d in days)


def raw_of(rows: Sequence[Row]) -> pa.RecordBatch:
    columns = {name: [row[name] for row in rows] for name in ("price", "shop", "site", "page")}
    return pa.record_batch({**columns, "tags": [[tag for tag in row["tags"].split("|") if tag] for row in rows]})


def test_rows_with_the_ids_that_they_had_before(days: list[Dataset]) -> None:
    for number, (before, now) in enumerate(pairwise(days), 1):
        raw = raw_of(rows_of_day(number, rows=400, seed=1))
        encoded = FeatureEncoder(now.schema, now.folder).encode(raw)
        expected = FeatureEncoder(before.schema, before.folder).encode(raw)
        assert not encoded.equals(expected), "or nothing is shown"
        turned_back = EarlierIds(now.schema, now.folder, before.schema, before.folder)
        assert turned_back(encoded).to_pydict() == expected.to_pydict()


def _other_order(rows: list[Row]) -> list[Row]:
    return rows[::-1]


def _one_label_changed(rows: list[Row]) -> list[Row]:
    return [{**rows[0], "click": 1 - rows[0]["click"]}, *rows[1:]]


AGAIN: dict[str, tuple[Any, int, bool]] = {
    "yesterday's rows in another order": (_other_order, 1, True),
    "the first day's rows and a newline": (lambda rows: [*rows], 0, True),
    "other labels": (_one_label_changed, 1, False),
    "a row less": (lambda rows: rows[1:], 1, False),
    "a new day": (_other_order, 2, False),
}


@pytest.mark.parametrize("case", AGAIN)
def test_rows_of_an_earlier_day_are_known_under_other_names(case: str, tmp_path: Path) -> None:
    change, day, is_known = AGAIN[case]
    dataset = None
    for number in range(2):
        file = write_csv(tmp_path / f"{number}.csv", rows_of_day(number))
        dataset = preprocess(tmp_path / f"dataset-{number}", [file], dataset)
        require_other_rows(dataset)
    again = write_csv(tmp_path / "again.csv", change(rows_of_day(day)))
    again.write_text(again.read_text() + "\n")
    dataset = preprocess(tmp_path / "again", [again], dataset)
    if is_known:
        with pytest.raises(UserError, match=rf"again.csv: its rows are already in .*dataset-{day}, with other names"):
            require_other_rows(dataset)
    else:
        require_other_rows(dataset)


FORMS: dict[str, tuple[Callable[[str], str], bool]] = {
    "new shops": (lambda shop: f"shop{int(shop[4:]) + 50}", True),
    "most are new": (lambda shop: shop if shop == "shop1" else f"shop{int(shop[4:]) + 50}", True),
    "upper case": (str.upper, False),
    "a prefix": (lambda shop: f"eu:{shop}", False),
    "numbers alone": (lambda shop: str(int(shop[4:]) + 50), False),
    "decimals": (lambda shop: f"{shop}.0", False),
    "missing": (lambda shop: "", False),
    "mostly missing": (lambda shop: f"{shop}9" if shop == "shop1" else "", False),
}


@pytest.mark.parametrize("case", FORMS)
def test_new_values_are_told_from_old_ones_in_another_form(case: str, tmp_path: Path) -> None:
    change, is_explained = FORMS[case]
    days: list[Dataset] = []
    for number in range(2):
        rows = rows_of_day(3, rows=90, seed=number)
        rows = [{**row, "shop": change(row["shop"])} for row in rows] if number else rows
        file = write_csv(tmp_path / f"{number}.csv", rows)
        days.append(preprocess(tmp_path / f"dataset-{number}", [file], days[-1] if days else None))
    shop = next(drift for drift in drift_of_extension(days[1], days[0]) if drift.name == "shop")
    assert shop.has_drifted
    assert is_explained_by_new_values(shop, days[1], days[0]) == is_explained
    assert shop.became_constant == (case == "missing")


TIMES: dict[str, tuple[tuple[str, str], str | None]] = {
    # the day before is 2026-03-02T00:00 to 2026-03-02T23:00
    "the next day": (("2026-03-03T00:00", "2026-03-03T23:00"), None),
    "two months later": (("2026-05-03T00:00", "2026-05-03T23:00"), None),
    "a few late rows": (("2026-03-02T20:00", "2026-03-03T23:00"), None),
    "ten years on": (("2036-03-03T00:00", "2036-03-03T23:00"), "years apart"),
    "the epoch": (("1970-01-01T00:00", "1970-01-01T23:00"), "years apart"),
    "half of the day before": (("2026-03-02T12:00", "2026-03-03T12:00"), "given twice"),
}


@pytest.mark.parametrize("case", TIMES)
def test_odd_times_are_said(case: str) -> None:
    given, word = TIMES[case]
    of_days = (given, ("2026-03-02T00:00", "2026-03-02T23:00"))
    times = [[float(np.datetime64(time, "s").astype(int)) for time in one] for one in of_days]
    now, before = (Mock(manifest=Mock(times=Times(first=first, last=last))) for first, last in times)
    said = list(_odd_times(now, before))
    assert len(said) == (word is not None) and all(word in text for text in said if word)


def test_values_are_numbered_anew_when_they_are_to_be_compact(tmp_path: Path) -> None:
    datasets: list[Dataset] = []
    for day in range(6):
        file = write_csv(tmp_path / "raw" / f"{day}.csv", rows_of_day(day))
        parent = datasets[-1] if datasets else None
        datasets.append(preprocess(tmp_path / f"dataset-{day}", [file], parent, expire_after="1d", compact=day == 5))
    before, now = datasets[-2:]
    assert "" in values(before, "shop")
    frequent = {value: n for (name, value), (n, _) in counts(now).items() if name == "shop" and n >= 3}
    assert values(now, "shop") == sorted(frequent, key=lambda value: (-frequent[value], value))
    raw = raw_of(rows_of_day(5, rows=400, seed=1))
    encoded = FeatureEncoder(now.schema, now.folder).encode(raw)
    expected = FeatureEncoder(before.schema, before.folder).encode(raw)
    turned_back = EarlierIds(now.schema, now.folder, before.schema, before.folder)(encoded)
    for name in ("shop", "page"):
        # A value that has left since counts as missing, whatever it was before.
        pairs = zip(turned_back[name].to_pylist(), expected[name].to_pylist(), encoded[name].to_pylist(), strict=True)
        assert all(found == wanted or now_id == 0 for found, wanted, now_id in pairs)


def test_a_day_in_two_files_or_one_in_any_order_gives_the_same_vocabulary(tmp_path: Path) -> None:
    base = preprocess(tmp_path / "base", [write_csv(tmp_path / "base.csv", rows_of_day(0))])
    rows = rows_of_day(1)
    halves = [write_csv(tmp_path / "halves" / f"{n}.csv", rows[n * 30 : n * 30 + 30]) for n in (0, 1)]
    given = {"one": [write_csv(tmp_path / "day.csv", rows)], "two": halves, "turned": halves[::-1]}
    made = {name: preprocess(tmp_path / name, files, base) for name, files in given.items()}
    for name in ("two", "turned"):
        assert made[name].schema == made["one"].schema
        assert counts(made[name]) == counts(made["one"])
    names = [path.name for path in sorted((made["one"].folder / "train").iterdir())]
    assert all(
        (made["one"].folder / "train" / n).read_bytes() == (made["two"].folder / "train" / n).read_bytes()
        for n in names
    )


def test_values_that_did_not_occur_for_long_leave(tmp_path: Path) -> None:
    datasets: list[Dataset] = []
    for day in range(8):
        file = write_csv(tmp_path / "raw" / f"{day}.csv", rows_of_day(day))
        parent = datasets[-1] if datasets else None
        datasets.append(preprocess(tmp_path / f"dataset-{day}", [file], parent, expire_after="2d"))
    listed = values(datasets[-1], "shop")
    before = values(datasets[2], "shop")
    gone = [value for value in before if value not in listed]
    assert gone
    for place, value in enumerate(before):
        assert listed[place] == ("" if value in gone else value), "nothing takes the place of what has left"
    assert not any(name == "shop" and value in gone for name, value in counts(datasets[-1]))
    # A value that comes back counts from 1, and gets a new id when it has occurred often enough.
    back = [{**row, "shop": gone[0]} for row in rows_of_day(8, rows=2)]
    once = preprocess(tmp_path / "back", [write_csv(tmp_path / "8.csv", back)], datasets[-1], expire_after="9d")
    assert gone[0] not in values(once, "shop")
    again = preprocess(tmp_path / "again", [write_csv(tmp_path / "9.csv", back[:1])], once, expire_after="9d")
    assert values(again, "shop") == [*listed, gone[0]]


def test_the_manifest_names_the_parent(days: list[Dataset]) -> None:
    for day, (before, dataset) in enumerate(pairwise(days), 1):
        manifest = dataset.manifest
        assert manifest.sequence == day
        assert manifest.parent is not None
        assert manifest.parent.id == before.id
        assert manifest.parent.folder == before.folder
        assert len(manifest.earlier_sources) == day
    assert days[0].manifest.parent is None


def test_the_same_rows_are_refused(days: list[Dataset], tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / "other.csv"
    copy.parent.mkdir()
    copy.write_bytes((days[0].folder.parent / "raw" / "1.csv").read_bytes())
    for parent in days[1], days[4]:
        with pytest.raises(UserError, match=rf"^{copy}: its rows are already in {parent.folder}"):
            preprocess(tmp_path / "twice", [copy], parent)
    assert not (tmp_path / "twice").exists()
    preprocess(tmp_path / "elsewhere" / "dataset", [copy], days[0])


def test_what_would_change_ids_is_refused(days: list[Dataset], tmp_path: Path) -> None:
    file = write_csv(tmp_path / "5.csv", rows_of_day(5))
    with pytest.raises(ConfigError, match=r"^preprocess.max_table_size: is 10, but .* was made with None; set it"):
        preprocess(tmp_path / "output", [file], days[-1], max_table_size=10)


def test_a_source_that_cannot_be_extended_says_so(days: list[Dataset], tmp_path: Path) -> None:
    made = Recipe.model_validate({"name": "o", "source": {"kind": "outbrain"}, "model": {"kind": "wide_deep"}})
    manifest = days[0].manifest.model_copy(update={"config": made.model_dump(mode="json")})
    parent = replace(days[0], manifest=manifest)
    with pytest.raises(UserError, match=r"source.kind 'outbrain': its datasets cannot be extended"):
        preprocessing(made, {None: [str(tmp_path)]}, tmp_path / "output", parent)


def interactions(output: Path, file: Path, parent: Dataset | None = None, **source: Any) -> Dataset:
    made = Recipe.model_validate(
        {
            "name": "pairs",
            "source": {"kind": "interactions", **source},
            "preprocess": {"split": {"kind": "leave_one_out", "min_interactions": 3, "negatives": 4}},
            "model": {"kind": "neumf"},
        }
    )
    preprocessing(made, {None: [str(file)]}, output, parent).run(EmbeddedEngine(2))
    return Dataset.open(output)


def pairs_of(dataset: Dataset, split: str, label: float = 1.0) -> set[tuple[str, str]]:
    users, items = (["", *values(dataset, name)] for name in ("user", "item"))
    rows = [row for batch in dataset.rows(split, ["user", "item", "label"], 10_000) for row in batch.to_pylist()]
    return {(users[row["user"]], items[row["item"]]) for row in rows if row["label"] == label}


def test_interactions_of_new_days(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    seen: set[tuple[str, str]] = set()

    def day(number: int) -> Path:
        pairs = {(f"u{number + random.integers(0, 8)}", f"i{number + random.integers(0, 20)}") for _ in range(60)}
        # On the first day some have too few interactions; one of them comes back on the third.
        pairs |= [{("rare", "i1"), ("rare", "i2"), ("never again", "only here")}, set(), {("rare", "i9")}][number]
        seen.update(pairs)
        rows = [{"user": u, "item": i, "timestamp": 1000 * number + t} for t, (u, i) in enumerate(sorted(pairs))]
        return write_csv(tmp_path / f"{number}.csv", rows)

    datasets: list[Dataset] = []
    known_before: set[tuple[str, str]] = set()
    for number in range(3):
        before = datasets[-1] if datasets else None
        dataset = interactions(tmp_path / f"d{number}", day(number), before)
        datasets.append(dataset)
        known = {pair for pair in seen if pair[0] in values(dataset, "user")}
        tests, negatives = pairs_of(dataset, "test"), pairs_of(dataset, "test", label=0.0)
        assert tests and pairs_of(dataset, dataset.known_split) == known - (tests - known_before)
        known_before = known
        assert negatives and not negatives & known, "nobody is offered what he has chosen, today or before"
        if before is None:
            of_others = seen - known
            users, items = (
                {pair[i] for pair in of_others} - set(values(dataset, n)) for i, n in enumerate(("user", "item"))
            )
            (dropped,) = dataset.manifest.dropped.values()
            assert (dropped.rows, dropped.users, dropped.items) == (len(of_others), len(users), len(items))
            assert dropped.of_users == len({user for user, _ in seen})
        else:
            assert not dataset.manifest.dropped
            for name in ("user", "item"):
                assert values(dataset, name)[: len(values(before, name))] == values(before, name)
                assert len(values(dataset, name)) > len(values(before, name))
    assert datasets[2].manifest.times is not None
    assert 2000 <= datasets[2].manifest.times.first < datasets[2].manifest.times.last < 3000
    assert datasets[2].evaluation_splits == ["test"]


def test_events_of_all_days_are_in_order_of_time(tmp_path: Path) -> None:
    dataset: Dataset | None = None
    seen: list[dict[str, Any]] = []
    for number, rows in enumerate(("u:abXcd w:dcbY", "u:hgZ w:aX", "w:ge u:f")):
        day = [
            {"user": user, "item": item, "stars": 1 if item.isupper() else 5, "timestamp": 1000 * number + at}
            for user, items in (word.split(":") for word in rows.split())
            for at, item in enumerate(items)
        ]
        seen += day
        choices = {"column": "stars", "at_least": 4}
        dataset = interactions(
            tmp_path / f"d{number}", write_csv(tmp_path / f"{number}.csv", day), dataset, choices=choices
        )
        known, items = KnownItems.read(dataset), ["", *values(dataset, "item")]
        for user, name in enumerate(values(dataset, "user"), start=1):
            own = [row["item"] for row in seen if row["user"] == name and row["item"] in items]
            assert [items[item] for item in known.events_of(user)] == [item for item in own if item.islower()]
            assert {items[item] for item in known.of(user)} == set(own)
