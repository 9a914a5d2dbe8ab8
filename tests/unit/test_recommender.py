"""Recommendations equal a brute-force ranking of the catalogue; known items are left out."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from numpy.typing import NDArray

import rayrec
from rayrec.common.errors import ConfigError, UserError
from rayrec.inference.folder.delta import write_delta
from rayrec.inference.folder.facts import KNOWN_ITEMS_FILE, KnownItems
from rayrec.inference.folder.model_folder import ModelFolder, copy
from rayrec.inference.recommender import Recommender, UnknownItemError, UnknownUserError, load_recommender
from rayrec.ingest.dataset import Dataset
from rayrec.models.neumf.config import NeuMFConfig
from rayrec.models.sasrec.config import SASRecConfig
from rayrec.sources.interactions.config import InteractionSourceConfig
from serve.arrow import parse_columns, stream_of
from serve.request_tensors import make_tensor, rows_of
from serve.requests import RequestError, parse_body
from serve.v1 import RecommendRequest
from tests.builders import write_dataset
from tests.model_folders import finish, make_model_folder, make_recommender_folder, set_lists

USERS, ITEMS = 30, 50


@pytest.fixture(scope="module")
def recommender(tmp_path_factory: pytest.TempPathFactory) -> Recommender:
    folder = tmp_path_factory.mktemp("recommender") / "neumf"
    make_recommender_folder(folder, users=USERS, items=ITEMS)
    return load_recommender(folder)


@pytest.mark.parametrize("exclude_known", [True, False])
@pytest.mark.parametrize("user", [0, 1, 17, 29])
def test_equals_a_ranking_by_hand(recommender: Recommender, user: int, exclude_known: bool) -> None:
    rows = [{"user": f"u-{user}", "item": f"i-{item}"} for item in range(ITEMS)]
    scores = recommender.predictor.predict(rows)
    known = set(range(0, user, 3)) if exclude_known else set()
    ranked = sorted((item for item in range(ITEMS) if item not in known), key=lambda item: -scores[item])
    for k in (1, 7, ITEMS, 4 * ITEMS):
        found = recommender.recommend(f"u-{user}", k, exclude_known=exclude_known)
        assert found.items == [f"i-{item}" for item in ranked[:k]]
        np.testing.assert_allclose(found.scores, scores[ranked[:k]], rtol=0, atol=1e-6)


def test_all_pairs_have_the_scores_of_rows(recommender: Recommender, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rayrec.inference.scorer.CHUNK_ROWS", 2)  # several blocks of users and of items
    predictor, users, items = recommender.predictor, np.array([3, 1, 30]), np.arange(1, ITEMS + 1)
    found = predictor.pair_logits(users, items)
    rows = [{"user": f"u-{user - 1}", "item": f"i-{item - 1}"} for user in users for item in items]
    np.testing.assert_allclose(1 / (1 + np.exp(-found)), predictor.predict(rows).reshape(3, ITEMS), rtol=0, atol=1e-6)
    # A network that has no way of its own.
    monkeypatch.setattr(predictor, "_dense_network", partial(predictor._dense_network))
    np.testing.assert_allclose(predictor.pair_logits(users, items), found, rtol=0, atol=1e-6)


def test_equal_scores_go_by_popularity(recommender: Recommender, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = np.repeat(np.float32([0.5, 0.9, 0.5, 0.1, 0.5]), 10)
    monkeypatch.setattr(recommender.predictor, "pair_logits", lambda users, items: scores[None])
    found = recommender.recommend("u-0", 14)
    assert found.items == [f"i-{i}" for i in (*range(10, 20), 0, 1, 2, 3)]


def test_an_unknown_user_is_said(recommender: Recommender) -> None:
    with pytest.raises(UnknownUserError, match="no user 'u-30' in the model's training data"):
        recommender.recommend("u-30", 3)


def test_rows_may_name_columns_as_the_files_do(recommender: Recommender) -> None:
    predictor = recommender.predictor
    users, items = ["u-3", "u-4"], ["i-5", "i-6"]
    expected = predictor.predict([{"user": user, "item": item} for user, item in zip(users, items, strict=True)])
    frame = pd.DataFrame({"userId": users, "movieId": items, "rating": [3.5, 4.0]})
    named = [{"userId": user, "movieId": item, "rating": 4} for user, item in zip(users, items, strict=True)]
    table = pa.table({" user_id": users, "item": items})
    batch = pa.RecordBatch.from_pydict({"user": users, "itemId": items})
    tensors = [
        make_tensor(place, name, "BYTES", [2], values)
        for place, (name, values) in enumerate((("userId", users), ("movieId", items)))
    ]
    ways: tuple[Any, ...] = (
        *(frame, table, batch, named, parse_columns(stream_of(batch), predictor.raw_rows, 10, 2**20)),
        rows_of(tensors, predictor, 10, encoded=False).columns.batch(),
    )
    for rows in ways:
        assert np.array_equal(predictor.predict(rows), expected)
    assert predictor.raw_rows.stacked(named).batch().equals(predictor.columns_of(frame))


@pytest.mark.parametrize("names", [("userId", "user", "item"), ("user", "movieId", "item"), ("user", "itemId", "item")])
def test_a_column_under_two_names_is_refused(recommender: Recommender, names: tuple[str, ...]) -> None:
    row = dict.fromkeys(names, "1")
    for rows in ([row], [{names[0]: "1"}, {names[1]: "1"}, row], pd.DataFrame([row])):
        with pytest.raises(UserError, match="given 2 times"):
            recommender.predictor.predict(rows)


def test_stated_names_stand_for_the_usual_ones() -> None:
    assert InteractionSourceConfig(user="who", item="item").other_names == {"who": "user"}


def test_other_models_do_not_recommend(tmp_path: Path) -> None:
    make_model_folder(tmp_path / "dlrm")
    with pytest.raises(UserError, match="needs more features than a user and an item"):
        load_recommender(tmp_path / "dlrm")


def test_known_items_are_those_of_all_splits_by_time(tmp_path: Path) -> None:
    make_recommender_folder(tmp_path / "neumf", users=4, items=9)
    schema = load_recommender(tmp_path / "neumf").predictor.schema

    def rows(*pairs: tuple[int, int, float]) -> pa.Table:
        types = (("user", pa.int32()), ("item", pa.int32()), ("label", pa.float32()))
        return pa.table({name: pa.array([p[i] for p in pairs], dtype) for i, (name, dtype) in enumerate(types)})

    splits = {
        "known": rows((3, 8, 1), (3, 9, 1), (3, 5, 0), (1, 2, 1), (1, 9, 0), (1, 1, 0), (3, 1, 1), (4, 5, 1)),
        "train": rows((3, 9, 1), (1, 2, 1), (3, 1, 1), (1, 2, 1), (4, 5, 1)),
        "validation": rows((3, 4, 1), (3, 7, 0), (4, 5, 1), (4, 8, 0)),
        "test": rows((1, 6, 1), (1, 9, 0), (3, 0, 1), (3, 2, 0)),  # 0: an item that no interaction has
    }
    known = KnownItems.read(write_dataset(tmp_path / "data", schema, splits))
    # 1, 5 and 9 are known as no choices.
    assert [known.of(user).tolist() for user in range(5)] == [[], [1, 9, 2, 6], [], [5, 8, 9, 1, 4], [5]]
    known.save(tmp_path / "neumf")
    finish(tmp_path / "neumf")
    stored = KnownItems.load(ModelFolder.open(tmp_path / "neumf"))
    assert [stored.events_of(user).tolist() for user in range(5)] == [[], [2, 6], [], [8, 9, 1, 4], [5]]
    left = stored.without(1)
    assert [left.of(user).tolist() for user in range(5)] == [[], [], [], [5, 8, 9, 1, 4], [5]]
    assert [left.events_of(user).tolist() for user in range(5)] == [[], [], [], [8, 9, 1, 4], [5]]
    assert Dataset.open(tmp_path / "data").schema == schema


@pytest.mark.parametrize("content", [None, b"garbage"])
def test_a_damaged_folder_is_named(tmp_path: Path, content: bytes | None) -> None:
    make_recommender_folder(tmp_path / "neumf")
    path = tmp_path / "neumf" / KNOWN_ITEMS_FILE
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    finish(tmp_path / "neumf")
    with pytest.raises(UserError, match=f"{path}: (missing|damaged)"):
        load_recommender(tmp_path / "neumf")


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"[1]", 422, "the body must be"),
        (b'{"user": ["a"]}', 422, "user: must be a string or a number"),
        (b'{"user": true}', 422, "user: must be"),
        (b'{"user": "1", "k": 0}', 422, "k: must be a whole number from 1 to 100"),
        (b'{"user": "1", "k": 101}', 422, "k: must be"),
        (b'{"user": "1", "exclude": 1}', 422, "unknown key 'exclude'"),
        (b'{"user": "1", "": 1}', 422, "unknown key ''"),
        (b'{"user": "1", "exclude_known": 1}', 422, "exclude_known: must be true or false"),
        (b'{"events": "i-1"}', 422, "events: must be a list of at most 100 strings or numbers"),
        (b'{"events": ["i-1", null]}', 422, "events: must be a list"),
        (b'{"events": [%s]}' % b",".join([b'"i"'] * 101), 422, "events: must be a list of at most 100"),
        (b'{"allow": {"a": 1}}', 422, "allow: must be a list of at most 100"),
        (b'{"deny": [["a"]]}', 422, "deny: must be a list of at most 100"),
    ],
)
def test_a_bad_request_is_told(body: bytes, status: int, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        parse_body(RecommendRequest, body, 100)
    assert caught.value.status == status


def test_users_and_items_may_be_numbers() -> None:
    body = b'{"user": 42, "k": 3, "exclude_known": false, "events": [7, "8"], "allow": [9, 1.5], "deny": []}'
    asked = parse_body(RecommendRequest, body, 100)
    assert (asked.user, asked.k, asked.exclude_known, asked.events) == ("42", 3, False, ["7", "8"])
    assert (asked.allow, asked.deny) == (["9", "1.5"], [])


# ---- a model that reads histories


@pytest.fixture(scope="module")
def next_items(tmp_path_factory: pytest.TempPathFactory) -> Recommender:
    folder = tmp_path_factory.mktemp("recommender") / "sasrec"
    make_recommender_folder(folder, users=USERS, items=ITEMS, config=SASRecConfig(embedding_dim=8, length=6))
    return load_recommender(folder)


def probabilities(recommender: Recommender, history: list[int]) -> NDArray[np.float64]:
    """Return (items,) the softmax of the products, in float64, after a history of numbers of items."""
    vectors = recommender.predictor.item_vectors.astype(np.float64)
    (person,) = recommender.predictor.person_vectors([np.array(history) + 1])
    odds = np.exp(vectors @ person)
    return odds / odds.sum()


def names(items: Iterable[int]) -> list[str]:
    return [f"i-{item}" for item in items]


@pytest.mark.parametrize("exclude_known", [True, False])
@pytest.mark.parametrize(
    ("user", "events", "history"),
    [
        ("u-9", [], [6, 3, 0]),
        ("u-9", [11, 3, 40, 11], [6, 3, 0, 11, 40]),  # what was there before does not count again
        ("nobody", [11, 3, 40, 11], [11, 3, 40]),
        (None, [7], [7]),
        ("u-29", [1], [*range(27, -1, -3), 1]),  # more than the model reads
    ],
)
def test_anybody_gets_the_likeliest_next_items(
    next_items: Recommender, user: str | None, events: list[int], history: list[int], exclude_known: bool
) -> None:
    expected = probabilities(next_items, history)
    ranked = sorted(set(range(ITEMS)) - set(history if exclude_known else []), key=lambda item: -expected[item])
    for k in (1, 7, ITEMS):
        found = next_items.recommend(user, k, events=names(events), exclude_known=exclude_known)
        assert found.items == names(ranked[:k]) and not found.unknown_events
        np.testing.assert_allclose(found.scores, expected[ranked[:k]], rtol=1e-5)
    if not exclude_known:
        assert found.scores.sum() == pytest.approx(1, abs=1e-6)


def test_nobody_gets_what_most_have(next_items: Recommender) -> None:
    counts = np.array([sum(item in range(0, user, 3) for user in range(USERS)) for item in range(ITEMS)])
    for user, events in ((None, []), ("nobody", ["no item"]), ("u-0", [])):
        found = next_items.recommend(user, 12, events=events)
        assert found.items == names(sorted(range(ITEMS), key=lambda item: -counts[item])[:12])
        np.testing.assert_allclose(found.scores[:10], sorted(counts, reverse=True)[:10] / counts.sum(), rtol=1e-6)
        assert found.unknown_events == events


@pytest.mark.parametrize("kind", ["neumf", "sasrec"])
def test_popular_items_may_stand_back(
    recommender: Recommender, next_items: Recommender, tmp_path: Path, kind: str
) -> None:
    """The order is that of logits less the penalty; scores, and lists for somebody unknown, stay as they are."""
    plain = {"neumf": recommender, "sasrec": next_items}[kind]
    copy(plain.predictor.folder, tmp_path / "model")
    set_lists(tmp_path / "model", popularity_penalty=0.7)
    found = load_recommender(tmp_path / "model")
    known = KnownItems.load(plain.predictor.model_folder)
    penalties = 0.7 * np.log(1 + known.counts(ITEMS).astype(np.float64))
    best = plain.recommend("u-20", ITEMS, exclude_known=False)
    scores = dict(zip(best.items, best.scores.tolist(), strict=True))
    logit = np.log if kind == "sasrec" else lambda p: np.log(p / (1 - p))
    order = sorted(scores, key=lambda item: -(logit(np.float64(scores[item])) - penalties[int(item[2:])]))
    listed = found.recommend("u-20", 12, exclude_known=False)
    assert listed.items == order[:12] != [*scores][:12]
    assert listed.scores.tolist() == [scores[item] for item in listed.items]
    (ids, _), _ = found.recommend_ids(np.array([21, 3]), 12, exclude_known=False)
    assert found.item_values(ids).to_pylist() == listed.items
    if kind == "sasrec":
        assert found.recommend(None, 9).items == plain.recommend(None, 9).items


def test_unknown_events_are_left_out_and_named(next_items: Recommender) -> None:
    found = next_items.recommend("u-9", 5, events=["x", "i-11", "y", "x"])
    assert found.unknown_events == ["x", "y", "x"]
    assert found.items == next_items.recommend("u-9", 5, events=["i-11"]).items


def test_brought_events_are_as_good_as_stored_ones(next_items: Recommender) -> None:
    for user in range(1, USERS):
        stored = next_items.recommend(f"u-{user}", 9)
        brought = next_items.recommend(None, 9, events=names(reversed(range(0, user, 3))))
        assert stored.items == brought.items
        assert np.array_equal(stored.scores, brought.scores)


def test_an_evaluation_has_the_logits_of_an_answer(next_items: Recommender) -> None:
    histories = [np.arange(1 + start, 1 + end) for start, end in ((0, 3), (7, 8), (20, 40), (0, 0), (3, 9))]
    together = next_items.predictor.next_item_logits(histories)
    assert together.shape == (len(histories), ITEMS) and not together[3].any(), "nothing is known of the fourth"
    for history, logits in zip(histories, together, strict=True):
        if len(history):
            alone = next_items.predictor.next_item_logits([history])[0]
            assert np.array_equal(alone, logits)
            answer = next_items.recommend(None, ITEMS, events=names(history - 1), exclude_known=False)
            assert answer.items == names(np.argsort(-logits, kind="stable"))
            odds = np.exp(logits - logits.max())
            assert np.array_equal(answer.scores, np.sort(odds / odds.sum())[::-1])


@pytest.mark.parametrize("kind", ["neumf", "sasrec"])
def test_who_is_asked_for_beside_a_person_changes_nothing(
    recommender: Recommender, next_items: Recommender, kind: str
) -> None:
    of_kind = {"neumf": recommender, "sasrec": next_items}[kind]
    users = of_kind.user_ids
    together = of_kind.recommend_ids(users, 7)
    for user, (ids, scores) in zip(users, together, strict=True):
        alone = of_kind.recommend(f"u-{user - 1}", 7)
        assert of_kind.item_values(ids).to_pylist() == alone.items
        np.testing.assert_allclose(scores, alone.scores, rtol=0, atol=0 if kind == "sasrec" else 1e-6)


@pytest.mark.parametrize("kind", ["neumf", "sasrec"])
def test_no_known_denied_or_withdrawn_item_is_ever_there(tmp_path: Path, kind: str) -> None:
    config = SASRecConfig(embedding_dim=8, length=6) if kind == "sasrec" else None
    withdrawn = [0, 4, 30, 49]
    make_recommender_folder(tmp_path / "model", users=USERS, items=ITEMS, config=config, withdrawn=withdrawn)
    of_kind, random = load_recommender(tmp_path / "model"), np.random.default_rng(0)
    for _ in range(1_000):
        user, k = int(random.integers(USERS)), int(random.integers(1, 12))
        drawn = [names(random.choice(ITEMS + 3, random.integers(0, 30), replace=False)) for _ in range(3)]
        events, allow, deny = (some if random.random() < 0.5 else [] for some in drawn)
        events = events if kind == "sasrec" else []
        found = of_kind.recommend(f"u-{user}", k, events=events, allow=allow or None, deny=deny)
        known = {*names(range(0, user, 3)), *events}
        possible = set(names(range(ITEMS))) - known - set(deny) - set(names(withdrawn))
        possible &= set(allow) if allow else possible
        assert len(found.items) == len(set(found.items)) == min(k, len(possible))
        assert set(found.items) <= possible
        assert (np.diff(found.scores) <= 0).all()


def test_items_are_like_those_whose_vectors_point_the_same_way(
    recommender: Recommender, next_items: Recommender
) -> None:
    for of_kind, width in ((recommender, 4), (next_items, 8)):
        vectors = of_kind.predictor.item_vectors.astype(np.float64)
        assert vectors.shape == (ITEMS, width)
        cosines = vectors @ vectors[5] / np.linalg.norm(vectors, axis=1) / np.linalg.norm(vectors[5])
        ranked = [item for item in np.argsort(-cosines).tolist() if item != 5]
        found = of_kind.similar("i-5", 6)
        assert found.items == names(ranked[:6])
        np.testing.assert_allclose(found.scores, cosines[ranked[:6]], atol=1e-6)
        some = of_kind.similar("i-5", 6, allow=names(ranked[10:14]), deny=names(ranked[11:12]))
        assert some.items == names([ranked[10], *ranked[12:14]])
    with pytest.raises(UnknownItemError, match="no item 'i-50' in the model's training data"):
        next_items.similar("i-50", 3)


def test_what_a_model_cannot_do_is_said(tmp_path: Path, recommender: Recommender) -> None:
    for ask, message in (
        (lambda: recommender.recommend("u-1", 3, events=["i-1"]), "events: a model of kind 'neumf' reads no history"),
        (lambda: recommender.recommend(None, 3), "user: missing; .*, such as 'sasrec', recommend to anybody"),
    ):
        with pytest.raises(UserError, match=message):
            ask()
    make_recommender_folder(tmp_path / "mlp", config=NeuMFConfig(parts=("mlp",), mlp=(8, 4)))
    mlp = load_recommender(tmp_path / "mlp")
    assert not mlp.compares_items and recommender.compares_items
    with pytest.raises(UserError, match="a model of kind 'neumf' has no vectors of items"):
        mlp.similar("i-1", 3)


def test_a_person_is_forgotten(tmp_path: Path) -> None:
    config = SASRecConfig(embedding_dim=8, length=6)
    for name in ("1", "2"):
        make_recommender_folder(tmp_path / "whole" / name, config=config, seed=int(name))
    copy(tmp_path / "whole/1", tmp_path / "m/1")
    write_delta(ModelFolder.open(tmp_path / "whole/2"), ModelFolder.open(tmp_path / "m/1"), tmp_path / "m/2")
    before = load_recommender(tmp_path / "m/2")
    result = rayrec.forget(tmp_path / "m", key="user=u-9")
    found = {(Path(one["folder"]).name, one["lookup"]): one["events"] for one in result.details["removed"]}
    assert found == {("1", "known items"): 3}, "the delta reads those of its base"
    assert any("another export" in text for text in result.details["left"])
    after = load_recommender(tmp_path / "m/2")
    assert after.recommend("u-9", 50).items == after.recommend(None, 50).items
    for user in ("u-8", "u-10"):
        assert np.array_equal(after.recommend(user, 9).scores, before.recommend(user, 9).scores)
        assert after.recommend(user, 9).items == before.recommend(user, 9).items
    assert rayrec.verify(tmp_path / "m/1").details["files"]
    assert [one["events"] for one in rayrec.forget(tmp_path / "m/2", key="user=u-9").details["removed"]] == [0]
    with pytest.raises(ConfigError, match="--key item: no table is looked up by it; these are: user"):
        rayrec.forget(tmp_path / "m/1", key="item=i-1")
