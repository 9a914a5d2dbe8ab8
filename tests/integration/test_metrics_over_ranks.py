"""Metrics merged over gloo ranks equal those of one process over all rows."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from rayrec.common.errors import UserError
from rayrec.config import RankingConfig
from rayrec.metrics.binary import BinaryMetrics, compute_over_ranks
from rayrec.metrics.ranking import RankingMetrics
from tests.ranks import run_ranks

ROWS = 3_000
CASES = {
    "exact": {"limit": ROWS, "weighted": False},
    "exact, weighted on one rank": {"limit": ROWS, "weighted": True},
    "histogram on no rank, over the limit together": {"limit": ROWS - 500, "weighted": True},
    "histogram on one rank": {"limit": ROWS * 2 // 3, "weighted": False},
    "histogram on every rank": {"limit": 10, "weighted": True},
}


def rows_of_case(weighted: bool) -> list[torch.Tensor]:
    rng = np.random.default_rng(5)
    logits = np.round(rng.normal(0, 2, ROWS), 1)
    labels = rng.random(ROWS) < 1 / (1 + np.exp(-logits))
    weights = np.ones(ROWS)
    if weighted:
        weights[-500:] = rng.choice([0.0, 0.5, 2.0], 500)
    return [torch.tensor(column, dtype=torch.float32) for column in (logits, labels, weights)]


RANKING = RankingConfig(k=(1, 5), metrics=("hr", "ndcg", "recall", "map"))
RANKING_BATCHES = (1, 13, 100, ROWS)


def lists() -> list[torch.Tensor]:
    """(scores, labels, groups, weights, items) of groups of 1 to 30 rows, with ties; every thirtieth row is padding.

    An item has one score in a list, as a model gives it.
    """
    rng = np.random.default_rng(6)
    groups = np.repeat(np.arange(ROWS)[::-1], rng.integers(1, 31, ROWS))[:ROWS].copy()
    items = rng.integers(0, 20, ROWS)
    scores = np.round(rng.normal(0, 2, (ROWS, 20)), 1)[groups, items]
    columns = scores, rng.random(ROWS) < 0.1, groups, np.arange(ROWS) % 30 > 0, items
    return [torch.tensor(column) for column in columns]


def ranking_of(rank: int, size: int, batch: int) -> RankingMetrics:
    """A rank's share of each global batch, as the plan deals rows."""
    metrics = RankingMetrics(RANKING)
    for columns in zip(*(column.split(batch) for column in lists()), strict=True):
        rows = len(columns[0])
        metrics.update(*(column[rows * rank // size : rows * (rank + 1) // size] for column in columns))
    return metrics


def run_rank(rank: int, folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=2)
    results = {}
    for name, case in CASES.items():
        # Uneven shares: the first rank has three quarters of the rows.
        share = slice(0, ROWS * 3 // 4) if rank == 0 else slice(ROWS * 3 // 4, ROWS)
        metrics = BinaryMetrics(case["limit"], auc_bins=1_000)
        for columns in zip(*(column[share].split(100) for column in rows_of_case(case["weighted"])), strict=True):
            metrics.update(*columns)
        results[name] = compute_over_ranks(metrics)
    empty = BinaryMetrics(10, auc_bins=2)
    if rank == 1:
        empty.update(torch.tensor([0.5, -0.5]), torch.tensor([1.0, 0.0]), torch.ones(2))
    results["first rank empty"] = compute_over_ranks(empty)
    diverged = BinaryMetrics(10, auc_bins=2)
    diverged.update(torch.tensor([math.nan if rank else 0.0]), torch.ones(1), torch.ones(1))
    try:
        compute_over_ranks(diverged)
    except UserError as error:
        results["diverged"] = str(error)
    results["ranking"] = [compute_over_ranks(ranking_of(rank, 2, batch)) for batch in RANKING_BATCHES]
    torch.save(results, folder / f"rank-{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> list[dict]:
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(run_rank, folder, ranks=2)
    return [torch.load(folder / f"rank-{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_give_the_metrics_of_one(results, name):
    metrics = BinaryMetrics(CASES[name]["limit"], auc_bins=1_000)
    metrics.update(*rows_of_case(CASES[name]["weighted"]))
    expected = metrics.compute()
    assert ("auc_error_bound" in expected) == ("histogram" in name)
    for found in results:
        assert found[name].keys() == expected.keys()
        assert found[name] == pytest.approx(expected, rel=1e-12)


def test_two_ranks_rank_each_group_once(results):
    expected = ranking_of(0, 1, ROWS).compute()
    assert 50 < expected["groups"] < 200
    for found in results:
        for values in found["ranking"]:
            assert values == pytest.approx(expected, rel=1e-12)


def test_a_rank_without_rows_is_no_harm(results):
    assert [found["first rank empty"]["auc"] for found in results] == [1.0, 1.0]


def test_a_diverged_rank_fails_every_rank(results):
    assert all("1 of 2 scores are infinite or NaN" in found["diverged"] for found in results)
