"""Late positives come more often: in proportion to their weight, within one, in every epoch."""

import numpy as np
import pytest
import torch

from rayrec.common.errors import ConfigError
from rayrec.config.train import NegativesConfig, RecencyConfig
from rayrec.ingest.interactions import Positives, RecencyDraws, SampledSplit
from rayrec.recipes import load_recipe
from tests.builders import users_and_items

# User 7 has one positive, user 2 four, user 5 two hundred.
USERS = torch.tensor([7] + [2] * 4 + [5] * 200, dtype=torch.int32)


def expected_weights(half_life, floor):
    later = [0, 3, 2, 1, 0, *range(199, -1, -1)]
    return np.array([floor + 2.0 ** (-k / half_life) for k in later])


@pytest.mark.parametrize(("half_life", "floor"), [(2.5, 0.1), (50.0, 0.0), (1.0, 3.0)])
def test_a_positive_comes_in_proportion_to_its_weight(half_life, floor):
    draws = RecencyDraws.of(USERS, RecencyConfig(half_life=half_life, floor=floor))
    slots = torch.arange(len(USERS))
    weights = expected_weights(half_life, floor)
    wanted = weights / weights.sum() * len(USERS)
    total = np.zeros(len(USERS))
    epochs = 400
    for epoch in range(epochs):
        found = np.bincount(draws(slots, epoch).numpy(), minlength=len(USERS))
        assert found.sum() == len(USERS)
        assert (np.abs(found - wanted) < 1).all()
        total += found
    np.testing.assert_allclose(total / epochs, wanted, atol=0.1)


def test_equal_weights_draw_each_positive_once():
    draws = RecencyDraws.of(USERS, RecencyConfig(half_life=1e30))
    for epoch in range(3):
        assert draws(torch.arange(len(USERS)), epoch).tolist() == list(range(len(USERS)))


def test_samples_of_a_drawn_positive_are_of_its_user():
    items = torch.arange(1, len(USERS) + 1, dtype=torch.int32)
    schema = users_and_items(8, 300)
    pairs = Positives(USERS, items)
    config, recency = NegativesConfig(per_positive=3), RecencyConfig(half_life=5, floor=0)
    split = SampledSplit.of(pairs, pairs, schema, config, recency)
    found = split.epoch(seed=1, epoch=2).at(torch.arange(len(split)))
    positive = found.labels == 1
    assert int(positive.sum()) == len(USERS)
    assert found.users[positive].tolist() == [int(USERS[item - 1]) for item in found.items[positive]]
    # Each group of a positive and its negatives is of one user, and none of the negatives is known.
    assert torch.equal(found.users.bincount(), 4 * found.users[positive].bincount())
    known = set(zip(USERS.tolist(), items.tolist(), strict=True))
    negatives = zip(found.users[~positive].tolist(), found.items[~positive].tolist(), strict=True)
    assert not known & set(negatives)


def test_rows_in_no_order_of_time_are_refused():
    with pytest.raises(ConfigError, match=r"^train\.recency: .*are not together"):
        RecencyDraws.of(torch.tensor([1, 2, 1]), RecencyConfig(half_life=5))


def test_it_needs_drawn_samples():
    with pytest.raises(ConfigError, match=r"recency needs train.negatives"):
        load_recipe("dlrm-criteo-debug", ["train.recency={half_life: 5}"])
