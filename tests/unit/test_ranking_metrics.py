"""Ranking metrics against a computation group by group and scikit-learn; ties, cuts, real data."""

import gzip
import math
import pickle
from pathlib import Path
from unittest import TestCase

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import ndcg_score, roc_auc_score

from rayrec.common.errors import UserError
from rayrec.config import RankingConfig
from rayrec.metrics.ranking import RankingMetrics

ALL = ("hr", "ndcg", "recall", "mrr", "map")
KS = (1, 3, 12)


def config(**changes: object) -> RankingConfig:
    return RankingConfig(**{"k": KS, "metrics": ALL, **changes})


def measure(of, groups, scores, labels, weights=None, *, items=None, batch=7, parts=1) -> dict[str, float | None]:
    """Metrics of rows that reach `parts` accumulators in turn, `batch` at a time."""
    weights = np.ones(len(groups)) if weights is None else weights
    columns = [
        torch.tensor(np.asarray(c)) for c in (scores, labels, groups, weights, *(() if items is None else (items,)))
    ]
    columns[0] = columns[0].float()
    metrics = [RankingMetrics(of) for _ in range(parts)]
    for number, start in enumerate(range(0, len(groups), batch)):
        metrics[number % parts].update(*(c[start : start + batch] for c in columns))
    for other in metrics[1:]:
        metrics[0].add(other)
    return metrics[0].compute()


def brute_force(of: RankingConfig, groups, scores, labels) -> dict[str, float | None]:
    """By the definitions, one group at a time."""
    sums = dict.fromkeys(of.names, 0.0)
    counted = 0
    for group in dict.fromkeys(groups):
        # Ties: the label decides, against the positive or for it.
        by_label = (lambda label: label) if of.ties == "pessimistic" else (lambda label: -label)
        rows = sorted((-s, by_label(y), y) for g, s, y in zip(groups, scores, labels, strict=True) if g == group)
        relevant = [int(y) for _, _, y in rows]
        if not any(relevant):
            continue
        counted += 1
        for k in of.k:
            top, ideal = relevant[:k], sorted(relevant, reverse=True)[:k]
            dcg, best = (sum(y / math.log2(i + 2) for i, y in enumerate(ys)) for ys in (top, ideal))
            precisions = [sum(top[: i + 1]) / (i + 1) for i, y in enumerate(top) if y]
            values = {
                "hr": float(any(top)),
                "ndcg": dcg / best,
                "recall": sum(top) / sum(relevant),
                "mrr": next((1 / (i + 1) for i, y in enumerate(top) if y), 0.0),
                "map": sum(precisions) / min(sum(relevant), k),
            }
            for metric in of.metrics:
                sums[f"{metric}@{k}"] += values[metric]
    return {name: value / counted if counted else None for name, value in sums.items()} | {"groups": counted}


def test_the_auc_within_groups_is_that_of_each_by_its_rows() -> None:
    """Groups of one label do not count; where data is cut changes nothing."""
    rng = np.random.default_rng(4)
    sizes = [1, 40, 3, 200, 12, 7, 5]
    groups = np.repeat(np.arange(len(sizes)), sizes)
    scores = rng.integers(0, 6, len(groups)).astype(np.float32)
    labels = (rng.random(len(groups)) < 0.4).astype(np.float32)
    labels[groups == 2] = 1.0
    weights = (rng.random(len(groups)) < 0.9).astype(np.float32)
    aucs, rows = [], []
    for group in range(len(sizes)):
        counted = (groups == group) & (weights > 0)
        if len(set(labels[counted])) == 2:
            aucs.append(roc_auc_score(labels[counted], scores[counted]))
            rows.append(counted.sum())
    mean = float(np.average(aucs, weights=rows))
    error = math.sqrt(sum((n * (auc - mean)) ** 2 for n, auc in zip(rows, aucs, strict=True))) / sum(rows)
    of = config(metrics=("gauc", "hr"))
    assert of.names == ("hr@1", "hr@3", "hr@12", "gauc")
    for batch, parts in ((1, 1), (7, 3), (64, 1), (1_000, 1)):
        found = measure(of, groups, scores, labels, weights, batch=batch, parts=parts)
        assert found["gauc"] == pytest.approx(mean) and found["hr@12"] is not None
    measured = RankingMetrics(of)
    measured.update(*(torch.from_numpy(column) for column in (scores, labels, groups, weights)))
    estimate = measured.estimates()["gauc"]
    assert estimate is not None and (estimate.value, estimate.error) == pytest.approx((mean, error))
    assert measure(of, groups, scores, np.ones_like(labels))["gauc"] is None


@st.composite
def lists(draw):
    """Groups of 1 to 20 rows, tied scores among them, any number of positives."""
    sizes = draw(st.lists(st.integers(1, 20), min_size=1, max_size=12))
    groups = np.repeat(draw(st.permutations(range(len(sizes)))), sizes)
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    scores = rng.choice([rng.normal(size=len(groups)), rng.integers(0, 3, len(groups))]).astype(np.float32)
    labels = (rng.random(len(groups)) < draw(st.sampled_from([0.05, 0.3, 0.9]))).astype(np.float32)
    return groups, scores, labels


@given(lists(), st.integers(1, 50), st.integers(1, 3), st.sampled_from(["pessimistic", "optimistic"]))
@settings(max_examples=100)
def test_equal_a_computation_group_by_group(rows, batch, parts, ties):
    of = config(ties=ties)
    assert measure(of, *rows, batch=batch, parts=parts) == pytest.approx(brute_force(of, *rows), abs=1e-12)


@given(lists(), st.integers(1, 50), st.integers(1, 3), st.sampled_from(["pessimistic", "optimistic"]), st.data())
@settings(max_examples=60)
def test_a_list_counts_an_item_once(rows, batch, parts, ties, data):
    """Wherever batches cut it; rows of one item in one list have one score, as a model gives them."""
    groups, scores, labels = rows
    of, most = config(ties=ties), data.draw(st.integers(1, 12))
    items = np.random.default_rng(data.draw(st.integers(0, 10**6))).integers(0, most + 1, len(groups))
    first: dict[tuple[int, ...], int] = {}
    kept: dict[tuple[int, ...], int] = {}
    for row, (group, item) in enumerate(zip(groups.tolist(), items.tolist(), strict=True)):
        key = (group, item) if item else (group, item, row)  # unknown items are like no other
        scores[row] = scores[first.setdefault(key, row)]
        if key not in kept or labels[row] > labels[kept[key]]:
            kept[key] = row
    distinct = sorted(kept.values())
    expected = brute_force(of, groups[distinct], scores[distinct], labels[distinct])
    assert measure(of, *rows, items=items, batch=batch, parts=parts) == pytest.approx(expected, abs=1e-12)


def test_an_equal_of_a_repeated_positive_is_not_cut_before_the_repeat_is_known():
    """The best negative of the first batch is the positive of the second; another one of its score stands before it."""
    found = measure(config(k=(1,), metrics=("hr",)), [1, 1, 1], [0.5, 0.5, 0.5], [0, 0, 1], items=[5, 6, 5], batch=2)
    assert found["hr@1"] == 0


def test_repeated_candidates_are_masked_as_published():
    """NVIDIA's NCF: sort a list by item, the positive before its equals; later equals score -1; hits among the top."""
    rng = np.random.default_rng(4)
    users, candidates, k = 400, 100, 10
    items = rng.integers(1, 60, (users, candidates + 1))  # a few repeats each, of the positive, too
    scores = rng.random((users, 61)).astype(np.float32)[np.arange(users)[:, None], items]
    by_item = np.argsort(items, axis=1, kind="stable")
    sorted_items = torch.tensor(np.take_along_axis(items, by_item, 1))
    masked = torch.tensor(np.take_along_axis(scores, by_item, 1))
    masked[:, 1:][sorted_items[:, 1:] == sorted_items[:, :-1]] = -1
    place = torch.tensor(by_item == 0).long().argmax(dim=1)
    top = masked.topk(k, dim=1).indices
    published = (top == place[:, None]).any(dim=1).float().mean().item()

    labels = np.zeros_like(items)
    labels[:, 0] = 1
    columns = np.repeat(np.arange(users), candidates + 1), scores.ravel(), labels.ravel()
    of = RankingConfig(k=(k,), metrics=("hr",))
    assert measure(of, *columns, items=items.ravel(), batch=777)["hr@10"] == pytest.approx(published)
    assert measure(of, *columns, batch=777)["hr@10"] < published - 0.05, "without it repeats cost ranks"


def test_ndcg_equals_scikit_learn_where_nothing_is_tied():
    rng = np.random.default_rng(3)
    scores, labels = rng.normal(size=(50, 30)).astype(np.float32), rng.random((50, 30)) < 0.2
    assert labels.any(axis=1).all()
    found = measure(config(), np.repeat(np.arange(50), 30), scores.ravel(), labels.ravel().astype(np.float32))
    for k in KS:
        assert found[f"ndcg@{k}"] == pytest.approx(ndcg_score(labels, scores, k=k), abs=1e-12)


def test_values_by_hand():
    """Positives at ranks 2 and 3 of one display, at rank 1 of another; a third was not clicked."""
    found = measure(
        config(k=(1, 2, 12)), [7, 7, 7, 7, 5, 5, 9], [0.9, 0.8, 0.7, 0.1, 0.6, 0.5, 0.4], [0, 1, 1, 0, 1, 0, 0]
    )
    assert found["groups"] == 2
    assert (found["hr@1"], found["hr@2"]) == (0.5, 1.0)
    assert (found["recall@2"], found["recall@12"]) == (0.75, 1.0)
    assert found["map@12"] == pytest.approx(((1 / 2 + 2 / 3) / 2 + 1) / 2)
    assert found["map@2"] == pytest.approx((1 / 2 / 2 + 1) / 2)
    assert found["ndcg@2"] == pytest.approx((1 / math.log2(3) / (1 + 1 / math.log2(3)) + 1) / 2)


@pytest.mark.parametrize(("ties", "value"), [("pessimistic", 0.0), ("optimistic", 1.0)])
def test_a_constant_model_gains_nothing_by_default(ties, value):
    rows = np.repeat(np.arange(40), 100), np.zeros(4_000), np.tile(np.arange(100) == 37, 40)
    found = measure(config(ties=ties, k=(10,)), *rows, batch=333)
    assert {found[f"{metric}@10"] for metric in ALL} == {value}


def test_a_group_may_span_many_batches(monkeypatch):
    """As in full ranking: what waits for the end is cut to what can matter."""
    monkeypatch.setattr("rayrec.metrics.ranking._SHORTEN_BEYOND", 100)
    rng = np.random.default_rng(0)
    groups = np.repeat([3, 1], 5_000)
    rows = groups, rng.integers(0, 500, 10_000).astype(np.float32), (rng.random(10_000) < 0.002).astype(np.float32)
    metrics = RankingMetrics(config())
    columns = [torch.tensor(c) for c in (rows[1], rows[2], groups, np.ones(10_000))]
    for part in zip(*(c.split(64) for c in columns), strict=True):
        metrics.update(*part)
    assert len(pickle.dumps(metrics)) < 20_000 < rows[1].nbytes
    assert metrics.compute() == pytest.approx(brute_force(config(), *rows), abs=1e-12)


def test_padding_changes_nothing():
    groups, scores, labels = [1, 1, 2, 2], [0.2, 0.1, 0.4, 0.3], [0, 1, 1, 0]
    padded = [1, 1, 1, 1, 2, 2], [0.2, 0.1, math.nan, 5.0, 0.4, 0.3], [0, 1, 1, 0, 1, 0], [1, 3, 0, 0, 0.5, 1]
    assert measure(config(), *padded) == measure(config(), groups, scores, labels)


@pytest.mark.parametrize(
    ("groups", "scores", "message"),
    [
        ([1, 1, 2, 2], [0.1, math.nan, 0.3, math.inf], "2 of 4 scores are infinite or NaN"),
        ([1, 2, 3, 4, 2, 5], [0.0] * 6, "the rows of group 2 are not next to each other"),
        ([1, 2, 3, 4, 1, 5], [0.0] * 6, "the rows of group 1 are not next to each other"),
    ],
)
def test_what_cannot_be_ranked_is_refused(groups, scores, message):
    with pytest.raises(UserError, match=message):
        measure(config(), groups, scores, [1] + [0] * (len(groups) - 1), batch=10)


def test_without_a_positive_all_is_undefined():
    with TestCase().assertLogs("rayrec") as logs:
        found = measure(config(k=(10,), metrics=("hr",)), [1, 1], [0.1, 0.2], [0, 0])
    assert found == {"hr@10": None, "groups": 0}
    assert "hr@10 undefined" in str(logs.output)


def test_item_popularity_on_movielens(shared_data: Path):
    """The values that the data's description states."""
    folder = shared_data / "ml-1m-ncf"
    pairs = pd.read_csv(folder / "ml-1m.train.pairs.tsv.gz", sep="\t", header=None)
    popularity = np.bincount(pairs[1], minlength=3_706)
    groups, items, labels = [], [], []
    with gzip.open(folder / "ml-1m.test.negative.gz", "rt") as file:
        for line in file:
            pair, *negatives = line.rstrip("\n").split("\t")
            user, positive = (int(part) for part in pair.strip("()").split(","))
            # Of 156 users the test item is among its own negatives.
            candidates = [positive, *(int(n) for n in negatives if int(n) != positive)]
            groups += [user] * len(candidates)
            items += candidates
            labels += [1] + [0] * (len(candidates) - 1)
    scores = popularity[items]
    found = {
        ties: measure(config(k=(10,), ties=ties), groups, scores, labels, batch=4_096, parts=2)
        for ties in ("pessimistic", "optimistic")
    }
    for metric, stated in (("hr@10", 0.4538), ("ndcg@10", 0.2545)):
        # They are those of a list with the positive first and a stable sort; counts of items are often equal.
        assert found["optimistic"][metric] == pytest.approx(stated, abs=5e-5)
        assert stated - 1e-3 < found["pessimistic"][metric] < stated - 3e-4
    assert found["pessimistic"]["groups"] == 6_040
