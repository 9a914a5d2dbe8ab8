"""Generated raw files: the same rows for a seed, a truth that labels follow, preferences to learn, days that drift."""

import gzip
import hashlib
import json
from collections.abc import Callable
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

import rayrec
from rayrec.common.errors import UserError
from rayrec.common.plugins import SOURCES
from rayrec.sources.criteo.config import CATEGORICAL, NUMERIC
from rayrec.sources.criteo.generator import PAIRS, criteo_rows
from rayrec.sources.generated_files import TRUTH_FILE, TruthAccumulator
from rayrec.sources.interactions.generator import BLOCK_USERS, DAYS_OF_A_USER, NUM_ITEMS, Ratings
from rayrec.sources.interactions.people import CHANCES_FILE, LAST_LIKED, Block, People
from rayrec.sources.registry import source_of
from rayrec.sources.synthetic import BASE_RATE, CHUNK_ROWS, Drawn

RECIPE = """\
source:
  kind: table
  label: bought
  features: [{columns: [shop, page], kind: categorical}, {columns: size, kind: numeric}]
model: {kind: wide_deep}
"""
Make = Callable[..., dict[str, list[bytes]]]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    (tmp_path / "mine.yaml").write_text(RECIPE)

    def make(kind: str, rows: int, **options: Any) -> dict[str, list[bytes]]:
        """Return the lines of the files by name, without the ending of gzip."""
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        recipe = {"recipe": tmp_path / "mine.yaml"} if source_of(kind).generates_from_recipe else {}
        rayrec.generate(kind, rows, folder, progress=False, **recipe, **options)
        files = sorted(path for path in folder.iterdir() if path.suffix not in {".json", ".parquet"})
        assert all((path.suffix == ".gz") == options.get("compress", False) for path in files)
        unpack = gzip.decompress if options.get("compress") else bytes
        return {path.name.removesuffix(".gz"): unpack(path.read_bytes()).splitlines(keepends=True) for path in files}

    return make


@pytest.mark.parametrize(
    ("kind", "rows", "options", "digest"),
    [
        ("criteo", 1_000, {}, "2e6274bddddc56d5"),
        ("criteo", 2_000, {"days": 4, "drift": 1.0}, "b99e8578fc85fe14"),
        ("interactions", 10_000, {"seed": 5}, "4291dfb3c5148261"),
        ("interactions", 2_000, {"days": 4, "drift": 1.0}, "6febe219e26385c2"),
        ("interactions", 5_000, {"drift": 1.0}, "725d303066338112"),
    ],
)
def test_rows_are_those_of_earlier_releases(
    make: Make, kind: str, rows: int, options: dict[str, Any], digest: str
) -> None:
    files = make(kind, rows, **options).values()
    assert hashlib.sha256(b"".join(line for file in files for line in file)).hexdigest().startswith(digest)


@pytest.mark.parametrize("kind", SOURCES.packages)
def test_rows_depend_on_seed_and_place_alone(make: Make, kind: str) -> None:
    """More rows begin as fewer do, but for the last of a user or display that the end cuts; a catalogue stays."""
    rows = 4_000 if kind == "outbrain" else CHUNK_ROWS + 3_000
    few, more, other = make(kind, rows, seed=2), make(kind, 2 * rows, seed=2, compress=True), make(kind, 900, seed=3)
    assert few.keys() == more.keys() == other.keys()
    for name in few:
        lines, of_more = few[name], more[name]
        if kind == "table":  # Its labels, the last column, are scaled on all rows.
            lines, of_more = ([line.rpartition(b",")[0] for line in part] for part in (lines, of_more))
        same = len(lines) if kind in ("criteo", "table") else len(lines) // 2
        assert len(of_more) >= len(lines) and of_more[:same] == lines[:same], name
    assert any(other[name][:900] != few[name][:900] for name in few)


@pytest.mark.parametrize("kind", ["criteo", "interactions"])
def test_a_day_depends_on_the_seed_its_number_and_the_drift_alone(make: Make, kind: str) -> None:
    first, *later = make(kind, 6_000, seed=1, days=3, drift=1.0).values()
    assert len({first[-1], *(day[-1] for day in later)}) == 3
    for same, change in [(True, {}), (False, {"seed": 2}), (False, {"drift": 0.5})]:
        of_first, *of_later = make(kind, 900, **{"seed": 1, "days": 3, "drift": 1.0, **change}).values()
        assert all((day[: len(few)] == few) == same for day, few in zip(later, of_later, strict=True))
        assert (first[: len(of_first)] == of_first) == ("seed" not in change)


def test_criteo_days_without_drift_are_the_rows_of_one_file(make: Make) -> None:
    rows = CHUNK_ROWS + 3_000
    days = make("criteo", rows, days=4, drift=0.0).values()
    assert [line for day in days for line in day] == make("criteo", rows)["criteo.tsv"]


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        ("criteo", {"rows": 5, "days": 6}, "days: 6; give 1 to 5"),
        ("interactions", {"rows": 5, "days": 6}, "days: 6; give 1 to 5"),
        ("criteo", {"rows": 5_000, "days": 3_000}, "days: 3000; with drift 1 give at most 2550, or a smaller drift"),
    ],
)
def test_arguments_out_of_range_are_named(tmp_path: Path, kind: str, arguments: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}"):
        rayrec.generate(kind, output=tmp_path / "data", progress=False, **arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("drift", [0.0, 1.0])
def test_criteo_states_the_truth_of_each_file(tmp_path: Path, drift: float) -> None:
    rows, num_days = CHUNK_ROWS, 3
    rayrec.generate("criteo", num_days * rows, tmp_path / "data", seed=5, days=num_days, drift=drift, progress=False)
    truth = json.loads((tmp_path / "data" / TRUTH_FILE).read_text())
    labels, probabilities = [], []
    for day, file in enumerate(truth["files"]):
        source, first = (criteo_rows(5, day, drift), 0) if drift else (criteo_rows(5), day * rows)
        chunks = list(source.chunks(rows, first=first))
        label = pd.read_csv(tmp_path / "data" / file["path"], sep="\t", header=None, usecols=[0])[0].to_numpy()
        p = np.concatenate([chunk.probability for chunk in chunks])
        present = sum(chunk.rows.column(name).is_valid().sum().as_py() for chunk in chunks for name in CATEGORICAL)
        assert file["new_values"] == sum(chunk.new_values for chunk in chunks) / present
        assert p.mean() == pytest.approx(BASE_RATE, abs=0.01)
        check_truth(file, label, p)
        labels.append(label)
        probabilities.append(p)
    check_truth(truth, np.concatenate(labels), np.concatenate(probabilities))


def check_truth(stated: dict[str, Any], label: np.ndarray, p: np.ndarray) -> None:
    """Compare what is stated of rows with scikit-learn's figures, from labels (n,) and true probabilities (n,)."""
    assert (stated["rows"], stated["positives"]) == (len(label), label.sum())
    assert stated["best_auc_error"] < 1e-5
    assert stated["best_auc"] == pytest.approx(roc_auc_score(label, p), abs=stated["best_auc_error"])
    assert stated["best_log_loss"] == pytest.approx(log_loss(label, p), rel=1e-12)
    entropy = -(p * np.log(p) + (1 - p) * np.log(1 - p)).mean()
    assert stated["expected_log_loss"] == pytest.approx(entropy, rel=1e-12)
    assert stated["expected_auc"] == pytest.approx(stated["best_auc"], abs=0.01)


def test_expected_auc_is_the_mean_over_labels() -> None:
    rng = np.random.default_rng(0)
    probability = np.sort(rng.beta(1, 3, 3_000))
    labels = rng.random((150, 3_000)) < probability
    negatives_below = np.cumsum(~labels, axis=1)
    aucs = (labels * negatives_below).sum(axis=1) / (labels.sum(axis=1) * negatives_below[:, -1])
    accumulator = TruthAccumulator()
    accumulator.add(probability, rng.random(3_000) < probability)
    standard_error = np.std(aucs) / np.sqrt(len(aucs))
    assert accumulator.result().expected_auc == pytest.approx(np.mean(aucs), abs=4 * standard_error)


def test_one_label_only_has_no_auc() -> None:
    accumulator = TruthAccumulator()
    accumulator.add(np.array([0.2, 0.4]), np.array([False, False]))
    assert accumulator.result().best_auc is None


def test_criteo_clicks_can_be_learnt() -> None:
    """A logistic regression on the model's terms comes close to the best AUC on rows that it has not seen."""
    source, chunks = criteo_rows(seed=3), 5
    labelled = list(source.chunks(chunks * CHUNK_ROWS))
    labels, probability = (np.concatenate([getattr(c, part) for c in labelled]) for part in ("label", "probability"))
    numbers = np.split(np.arange(len(labels)), chunks)
    terms = np.concatenate([source.terms(source.draw(chunk, rows)) for chunk, rows in enumerate(numbers)])
    terms = (terms - terms.mean(axis=0)) / terms.std(axis=0)
    train, test = slice(0, 60_000), slice(60_000, None)
    best = roc_auc_score(labels[test], probability[test])

    def auc(columns: slice) -> float:
        fitted = LogisticRegression(max_iter=200).fit(terms[train, columns], labels[train])
        return roc_auc_score(labels[test], fitted.decision_function(terms[test, columns]))

    assert auc(slice(None)) == pytest.approx(best, abs=0.003)
    # The pairs and the main effects both matter.
    assert auc(slice(0, -len(PAIRS))) < best - 0.01
    assert auc(slice(0, len(NUMERIC))) < best - 0.05


def test_preferences_for_items_can_be_learnt() -> None:
    """Items that users with the same choices chose are far likelier than chance, and than popularity explains."""
    blocks = [block.to_pandas() for block in islice(Ratings(seed=3).blocks(), 1_024 // BLOCK_USERS)]
    frame = pd.concat(blocks)
    chosen = np.zeros((1_024, NUM_ITEMS), np.float32)
    chosen[frame["userId"] - 1, frame["movieId"] - 1] = 1.0
    rng = np.random.default_rng(0)
    held_out = np.array([rng.choice(np.flatnonzero(row)) for row in chosen])
    users = np.arange(len(chosen))
    chosen[users, held_out] = 0.0
    popularity = chosen.sum(axis=0)
    expected = popularity / len(chosen) * chosen.sum(axis=1, keepdims=True) / chosen.sum(axis=1).mean()
    surprise = (chosen - expected) / np.sqrt(expected + 0.02)
    _, axes = np.linalg.eigh(surprise @ surprise.T)
    by_neighbours = np.log(popularity + 1.0) + 4.0 * axes[:, -5:] @ (axes[:, -5:].T @ surprise)

    def hit_rate(scores: np.ndarray) -> float:
        """HR@10 among 99 items that the user has not chosen."""
        hits = 0
        for user in users:
            others = rng.choice(np.flatnonzero(chosen[user] == 0), 99, replace=False)
            hits += (scores[user, others] > scores[user, held_out[user]]).sum() < 10
        return hits / len(users)

    popular = hit_rate(np.broadcast_to(popularity, chosen.shape))
    assert popular > 0.12
    assert hit_rate(by_neighbours) > popular + 0.15


def test_every_day_of_clicks_brings_values_that_no_earlier_day_had() -> None:
    large, small = ("C3", "C4", "C12", "C16", "C21", "C24"), {"C6": 24, "C9": 3, "C20": 4}
    days = [drawn_columns(day) for day in range(4)]
    for column in (*large, *small):
        seen = set[str]()
        for day, columns in enumerate(days):
            values = columns[column].written[column].to_numpy(zero_copy_only=False)
            is_new = columns[column].is_new
            is_new = np.zeros(len(values), np.bool_) if is_new is None else is_new
            assert seen.isdisjoint(values[is_new])
            assert (0.002 < is_new.mean() < 0.2) == (column in large and day > 0)
            seen |= set(values) - {None}
        assert len(seen) <= small.get(column, len(seen))


def drawn_columns(day: int) -> dict[str, Drawn]:
    """Return the columns of the first rows of a day."""
    source = criteo_rows(seed=7, day=day, drift=1.0)
    drawn = source.draw(0, np.arange(CHUNK_ROWS))
    return {column.name: part for column, part in zip(source.columns, drawn, strict=True)}


def test_users_and_items_come_and_users_go(tmp_path: Path) -> None:
    num_days, rows = 9, 6_000
    rayrec.generate("interactions", num_days * rows, tmp_path / "data", seed=1, days=num_days, progress=False)
    days = [pd.read_csv(tmp_path / "data" / f"day_{day}.csv") for day in range(num_days)]
    users, items = set(days[0]["userId"]), NUM_ITEMS
    assert days[0]["movieId"].max() <= items
    for before, day in pairwise(days):
        assert {*day["timestamp"] // 86_400} == {before["timestamp"][0] // 86_400 + 1}
        ids = set(day["userId"])
        assert 0.08 < len(ids - users) / len(ids) < 0.25
        assert len(ids & set(before["userId"])) > 0.6 * len(ids)
        users |= ids
        assert (day["movieId"] > items).any()
        items += 20
        assert day["movieId"].max() <= items
    assert set(days[0]["userId"]).isdisjoint(days[DAYS_OF_A_USER]["userId"])
    assert not pd.concat(days).duplicated(["userId", "movieId"]).any()


@pytest.fixture(scope="module")
def people() -> tuple[pd.DataFrame, Block]:
    """Ratings of some hundred people in order of time, and what is known of them."""
    blocks = list(islice(People(seed=1, drift=1.0).blocks(), 12))
    rows = pd.concat([block.rows.to_pandas() for block in blocks], ignore_index=True)
    whole = Block(blocks[0].rows, *(np.concatenate(columns) for columns in list(zip(*blocks, strict=True))[1:]))
    return rows.assign(likes=whole.likes, matches=whole.matches), whole


def test_people_come_and_items_are_added_through_the_year(people: tuple[pd.DataFrame, Block]) -> None:
    rows, _ = people
    assert not rows.duplicated(["userId", "movieId"]).any() and not rows.duplicated(["userId", "timestamp"]).any()
    assert rows.groupby("userId")["timestamp"].is_monotonic_increasing.all()
    latest = rows["timestamp"] >= rows["timestamp"].quantile(0.9)
    assert 0.3 < 1 - rows["userId"][latest].isin(rows["userId"][~latest]).mean() < 0.7
    assert (rows["movieId"][latest] > 2_400).any() and rows["movieId"][rows["timestamp"].rank() < 5_000].max() < 2_300


def test_what_is_liked_depends_on_the_liked_items_that_match(people: tuple[pd.DataFrame, Block]) -> None:
    rows, whole = people
    assert (rows["likes"] == (rows["rating"].astype(float) >= 4)).all()
    by_matches = rows.groupby(rows["matches"].clip(upper=3))["likes"].mean()
    assert by_matches[0] < 0.2 and by_matches[1] > 0.55 and by_matches[3] > 0.85
    # One match among many others says as much as one alone.
    once, many = rows["matches"] == 1, rows.groupby("userId")["likes"].cumsum() > LAST_LIKED
    assert rows["likes"][once & many].mean() == pytest.approx(rows["likes"][once & ~many].mean(), abs=0.08)
    assert roc_auc_score(whole.likes, whole.chance) > 0.85


def test_the_next_item_depends_on_the_last(people: tuple[pd.DataFrame, Block]) -> None:
    """Which item followed it elsewhere says far more of the next one than popularity does."""
    rows, _ = people
    last = rows.assign(next=rows.groupby("userId")["movieId"].shift(-1)).dropna().astype({"next": int})
    is_test = last["timestamp"] >= last["timestamp"].quantile(0.9)
    size = rows["movieId"].max() + 1
    popularity = np.bincount(last["next"][~is_test], minlength=size) / len(last)
    followed = np.zeros((size, size))
    np.add.at(followed, (last["movieId"][~is_test], last["next"][~is_test]), 1)

    def hit_rate(scores: np.ndarray) -> float:
        targets = last["next"][is_test].to_numpy()
        return ((scores >= scores[np.arange(len(targets)), targets][:, None]).sum(axis=1) <= 10).mean()

    by_last = hit_rate(followed[last["movieId"][is_test]] + popularity)
    assert by_last > 0.1 > 3 * hit_rate(np.broadcast_to(popularity, (is_test.sum(), size)))


def test_people_state_the_truth_of_each_row(tmp_path: Path) -> None:
    rayrec.generate("interactions", 3_000, tmp_path / "data", seed=4, drift=1.0, progress=False)
    rows = pd.read_csv(tmp_path / "data" / "ratings.csv")
    chances = pd.read_parquet(tmp_path / "data" / CHANCES_FILE)
    assert rows[["userId", "movieId"]].equals(chances[["userId", "movieId"]])
    best = json.loads((tmp_path / "data" / TRUTH_FILE).read_text())["best_auc"]
    assert best == pytest.approx(roc_auc_score(rows["rating"] >= 4, chances["probability"]), abs=1e-4)
