"""The distribution of scores at export, and how far another one is from it."""

import numpy as np
import pytest

from rayrec.inference.examples import ReferenceTraffic, score_counts


def reference(scores: np.ndarray) -> ReferenceTraffic:
    edges = np.unique(np.quantile(scores, np.arange(1, 10) / 10))
    shares = score_counts(scores, edges) / len(scores)
    return ReferenceTraffic(
        split="test", rows=len(scores), score_edges=edges.tolist(), score_shares=shares.tolist(), unknown_share={}
    )


def drift(of: ReferenceTraffic, scores: np.ndarray) -> float:
    return of.drift(score_counts(scores, np.array(of.score_edges)).astype(float))


RNG = np.random.default_rng(0)
SCORES = RNG.beta(2, 8, 20_000)
OTHERS = {
    "the same": (SCORES, 0.0, 1e-9),
    "another sample": (RNG.beta(2, 8, 20_000), 0.0, 0.01),
    "a little higher": (RNG.beta(2.3, 8, 20_000), 0.01, 0.1),
    "much higher": (RNG.beta(4, 8, 20_000), 0.25, 2.0),
    "one value": (np.full(1_000, 0.9), 1.0, 10.0),
}


@pytest.mark.parametrize("case", OTHERS)
def test_drift(case: str) -> None:
    scores, least, most = OTHERS[case]
    assert least <= drift(reference(SCORES), scores) <= most + 1e-12


def test_equal_scores_are_one_bin() -> None:
    of = reference(np.array([0.1] * 95 + [0.7] * 5))
    assert len(of.score_shares) == len(of.score_edges) + 1
    assert sum(of.score_shares) == pytest.approx(1.0)
    assert drift(of, np.array([0.1] * 95 + [0.7] * 5)) == pytest.approx(0.0, abs=1e-9)
