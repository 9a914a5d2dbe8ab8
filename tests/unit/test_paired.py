"""Better, or lucky: simulated runs of recipes whose quality is known."""

from collections import Counter

import numpy as np
import pytest
from scipy import stats

from rayrec.metrics.paired import Difference, _t_quantile, compare_recipes, repeats_of, seed_variance
from rayrec.metrics.scored_rows import ScoredRows
from tests.unit.test_scored_rows import draw, scored

ROWS, VALUES = 6_000, 12
PAIRS = 100
Recipe = tuple[int, float]
"""The number of runs, one a seed, and how much of what tells the labels the recipe sees, from 0 to 1."""


@pytest.fixture
def fewer_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of them gives the same verdicts in a quarter of the time."""
    monkeypatch.setattr("rayrec.metrics.paired._RESAMPLES", 50)


def pair(rng: np.random.Generator, first: Recipe, second: Recipe) -> dict[str, Difference]:
    """Compare two recipes on new held-out rows.

    Each run has an error of its own for each of the values of a feature, as embeddings have. It stays, however many
    rows there are, so that resampling rows does not show it.
    """
    value = rng.integers(0, VALUES, ROWS)
    effect, detail = rng.normal(0, 0.7, VALUES), rng.integers(0, 2, ROWS) - 0.5
    logit = -1 + effect[value] + detail
    label = rng.random(ROWS) < 1 / (1 + np.exp(-logit))

    def run(seen: float) -> ScoredRows:
        error = rng.normal(0, 0.3, VALUES)
        return ScoredRows.of(effect[value] + seen * detail + error[value] - 1, label)

    groups = {name: [run(seen) for _ in range(seeds)] for name, (seeds, seen) in (("a", first), ("b", second))}
    found = repeats_of(groups, int(rng.integers(1 << 30)))
    return {
        metric: compare_recipes(metric, of["a"], of["b"], seed_variance(list(of.values())))
        for metric, of in found.items()
    }


@pytest.mark.usefixtures("fewer_resamples")
@pytest.mark.parametrize("seeds", [(2, 1), (2, 2)], ids=["a third run", "two seeds each"])
def test_two_seeds_of_one_recipe_do_not_differ(seeds: tuple[int, int]) -> None:
    """Though the rows alone would tell them apart far too often."""
    rng = np.random.default_rng(0)
    pairs = [pair(rng, (seeds[0], 0.5), (seeds[1], 0.5)) for _ in range(PAIRS)]
    for metric in ("auc", "log_loss"):
        verdicts = Counter(found[metric].verdict for found in pairs)
        assert verdicts["no difference shown"] >= 90, verdicts
        covered = sum(found[metric].interval[0] <= 0 <= found[metric].interval[1] for found in pairs)
        assert covered == verdicts["no difference shown"]
        assert sum(found[metric].is_beyond_rows for found in pairs) > 20


@pytest.mark.usefixtures("fewer_resamples")
def test_a_better_recipe_is_better() -> None:
    rng = np.random.default_rng(1)
    pairs = [pair(rng, (3, 0.0), (3, 1.0)) for _ in range(40)]
    for metric in ("auc", "log_loss"):
        verdicts = Counter(found[metric].verdict for found in pairs)
        assert verdicts["better"] >= 36 and not verdicts["worse"], verdicts
    turned = pair(rng, (3, 1.0), (3, 0.0))
    assert {found.verdict for found in turned.values()} == {"worse"}


def test_nothing_is_shown_by_one_run_each() -> None:
    """However large the difference is: nobody knows what another seed would have given."""
    found = pair(np.random.default_rng(2), (1, 0.0), (1, 1.0))["auc"]
    assert (found.verdict, found.seed_error, found.is_beyond_rows) == ("no difference shown", None, True)


def test_the_error_by_rows_is_that_of_paired_aucs() -> None:
    """DeLong et al. 1988 for two AUCs of the same rows, by comparing all pairs; and the error of a mean of losses."""
    score, label, _ = draw(3_000)
    other = np.clip(score + np.random.default_rng(4).normal(0, 0.05, 3_000), 0.001, 0.999)
    first, second = (scored(s, label) for s in (score, other))
    found = repeats_of({"a": [first], "b": [second]})
    placements = []
    for s in (score, other):
        positive, negative = s[label == 1], s[label == 0]
        wins = (positive[:, None] > negative[None]) + 0.5 * (positive[:, None] == negative[None])
        placements.append((wins.mean(axis=1), wins.mean(axis=0)))
    expected = np.sqrt(sum((b - a).var(ddof=1) / len(a) for a, b in zip(*placements, strict=True)))
    auc = compare_recipes("auc", found["auc"]["a"], found["auc"]["b"], None)
    assert auc.row_error == pytest.approx(expected, rel=0.15)
    losses = second.losses[np.argsort(second.row)] - first.losses[np.argsort(first.row)]
    loss = compare_recipes("log_loss", found["log_loss"]["a"], found["log_loss"]["b"], None)
    assert loss.value == pytest.approx(losses.mean())
    assert loss.row_error == pytest.approx(losses.std() / np.sqrt(3_000), rel=0.15)


def test_the_same_scores_do_not_differ_at_all() -> None:
    score, label, _ = draw(1_000)
    rows = scored(score, label)
    found = repeats_of({"a": [rows, rows], "b": [rows]})["auc"]
    same = compare_recipes("auc", found["a"], found["b"], seed_variance(list(found.values())))
    assert (same.value, same.row_error, same.verdict) == (0.0, 0.0, "no difference shown")


@pytest.mark.parametrize("freedom", [1, 2, 3.7, 10, 200])
def test_quantiles_are_students(freedom: float) -> None:
    assert _t_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-3)
