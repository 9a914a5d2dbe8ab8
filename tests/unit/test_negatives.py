"""Drawn negatives, by brute force: every item that may be drawn is, exactly as often as it weighs, and no other."""

import itertools
from collections import Counter

import pytest
import torch

from rayrec.common.errors import UserError
from rayrec.ingest import negatives as negatives_module
from rayrec.ingest.negatives import ExactNegatives, ItemDistribution, UncheckedNegatives
from rayrec.random.tensors import derive_key, random_bits, uniform_below

CPU = torch.device("cpu")


def weighted(*masses: int) -> ItemDistribution:
    """Items 1 ... n with these masses."""
    return ItemDistribution(sum(masses), torch.tensor([0, *itertools.accumulate(masses)], dtype=torch.int32))


def drawn_at_every_point(monkeypatch, sampler, users: int, free: list[int]) -> list[Counter[int]]:
    """By user: how often each item is drawn when every point of what is free is drawn once."""
    monkeypatch.setattr(negatives_module, "uniform_below", lambda bits, bound: bits)
    result = []
    for user in range(users):
        points = torch.arange(free[user])
        items = sampler.draw(points, torch.full_like(points, user))
        assert items.dtype == torch.int32
        result.append(Counter(items.tolist()))
    return result


@pytest.mark.parametrize("masses", [(1, 1, 1, 1, 1), (3, 1, 4, 1, 5), (1, 7, 1, 1, 2)])
def test_exact_draws_every_other_item_as_often_as_it_weighs(monkeypatch, masses):
    items = range(1, len(masses) + 1)
    known = [subset for size in range(len(masses)) for subset in itertools.combinations(items, size)]  # not all
    pairs = [(user, item) for user, subset in enumerate(known) for item in subset]
    pairs += pairs[::3]  # repeated rows
    pairs += [(user, 0) for user in range(0, len(known), 2)]  # the unknown item
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(0))
    users, of_users = torch.tensor(pairs, dtype=torch.int32)[order].T
    distribution = ItemDistribution.uniform(len(masses) + 1) if set(masses) == {1} else weighted(*masses)
    sampler = ExactNegatives.of(users, of_users, len(known), distribution)

    expected = [Counter({i: masses[i - 1] for i in items if i not in subset}) for subset in known]
    free = [sum(counts.values()) for counts in expected]
    assert sampler.free.tolist() == free
    assert drawn_at_every_point(monkeypatch, sampler, len(known), free) == expected


def test_unchecked_draws_every_item_as_often_as_it_weighs(monkeypatch):
    counts = drawn_at_every_point(monkeypatch, UncheckedNegatives(weighted(3, 1, 4)), 2, [8, 8])
    assert counts == [Counter({1: 3, 2: 1, 3: 4})] * 2


@pytest.mark.parametrize("exponent", [0.0, 0.75])
def test_exact_never_draws_a_positive_and_keeps_the_proportions(exponent):
    num_users, cardinality, count = 40, 31, 400_000
    rng = torch.Generator().manual_seed(1)
    users = torch.randint(num_users, (500,), generator=rng, dtype=torch.int32)
    items = 1 + (torch.rand(500, generator=rng) ** 2 * 30).int()
    distribution = (
        ItemDistribution.by_popularity(items, cardinality, exponent) if exponent else ItemDistribution.uniform(31)
    )
    sampler = ExactNegatives.of(users, items, num_users, distribution)
    asked = torch.arange(count, dtype=torch.int32) % num_users
    drawn = sampler.draw(random_bits(derive_key(3), torch.arange(count)), asked)
    known = torch.zeros(num_users, cardinality, dtype=torch.bool)
    known[users.long(), items.long()] = True
    assert not known[asked.long(), drawn.long()].any()

    popularity = torch.bincount(items, minlength=cardinality).double()
    shares = torch.where(known, 0.0, popularity**exponent)
    shares[:, 0] = 0.0
    shares /= shares.sum(1, keepdim=True)
    seen = torch.zeros(num_users, cardinality, dtype=torch.double)
    seen.index_put_((asked.long(), drawn.long()), torch.ones(count, dtype=torch.double), accumulate=True)
    expected = shares * (count / num_users)
    likely = expected > 0
    assert (seen[~likely] <= 1).all()  # an item without interactions has one point of 2^31
    chi_square = ((seen - expected)[likely] ** 2 / expected[likely]).sum()
    freedom = int(likely.sum()) - num_users
    assert abs(chi_square - freedom) < 5 * (2 * freedom) ** 0.5


def test_popularity_gives_whole_masses_in_proportion():
    items = torch.tensor([1] * 16 + [2] * 4 + [4])
    distribution = ItemDistribution.by_popularity(items, 5, 0.5)
    masses = distribution.masses(torch.arange(1, 5)).tolist()
    assert masses[2] == 1  # never seen, still drawn
    assert sum(masses) == distribution.total < 2**31
    assert masses[0] / masses[3] == pytest.approx(4) and masses[1] / masses[3] == pytest.approx(2)


def test_a_user_with_every_item_is_refused():
    users, items = torch.tensor([0, 5, 5, 5]), torch.tensor([1, 3, 1, 2])
    with pytest.raises(UserError, match=r"^train\.negatives\.check: user 5 has every item.*unchecked$"):
        ExactNegatives.of(users, items, 7, ItemDistribution.uniform(4))
    with pytest.raises(UserError, match="no known item"):
        ItemDistribution.uniform(1)


@pytest.mark.parametrize("bound", [1, 2, 3, 1000, 2**31 - 1])
def test_uniform_below_is_the_scaled_fraction(bound):
    bits = torch.cat([torch.tensor([0, 1, -1, 2**63 - 1, -(2**63)]), random_bits(9, torch.arange(1000))])
    expected = [(word % 2**64 >> 2) * bound >> 62 for word in bits.tolist()]
    assert uniform_below(bits, bound).tolist() == expected
    assert uniform_below(bits, torch.full_like(bits, bound)).tolist() == expected
