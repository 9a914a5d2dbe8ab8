"""The loss, row by row and list by list, against torch's own and by hand."""

import pytest
import torch
from torch import Tensor

from rayrec.training.loop.micro_batches import BatchTotals, batch_loss, softmax_cross_entropy

GROUP = torch.tensor([4, 4, 4, 9, 2, 2, 7, 7, 7])
LABEL = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0])
WEIGHT = torch.tensor([1.0, 2.0, 0.0, 1.0, 1.0, 1.0, 0.5, 1.0, 1.0])
TOTALS = BatchTotals(float(WEIGHT.sum()), (WEIGHT * LABEL).sum())
LISTS = (slice(0, 3), slice(3, 4), slice(4, 6), slice(6, 9))


def logits(seed: int = 0, scale: float = 3.0) -> Tensor:
    return (torch.randn(9, generator=torch.Generator().manual_seed(seed)) * scale).requires_grad_()


def lists_by_hand(scores: Tensor) -> Tensor:
    """Of each positive: minus the logarithm of its share of the exponentials of its list's rows that count."""
    total = scores.new_zeros(())
    for rows in LISTS:
        counted = WEIGHT[rows] > 0
        shares = torch.log_softmax(scores[rows][counted], 0)
        total = total - (WEIGHT[rows][counted] * LABEL[rows][counted] * shares).sum()
    return total


def test_lists_equal_the_definition() -> None:
    one, other = logits(), logits()
    found, expected = softmax_cross_entropy(one, LABEL, WEIGHT, GROUP), lists_by_hand(other)
    torch.testing.assert_close(found, expected)
    found.backward()
    expected.backward()
    torch.testing.assert_close(one.grad, other.grad)
    assert one.grad is not None
    assert one.grad[2] == 0, "a row without weight"
    assert one.grad[4:6].abs().max() == 0, "a list without a positive"


@pytest.mark.parametrize("shift", [200.0, -200.0])
def test_large_scores_stay_finite(shift: float) -> None:
    scores = (logits(scale=1.0) + torch.tensor([shift] * 4 + [-shift] * 5)).detach().requires_grad_()
    loss = softmax_cross_entropy(scores, LABEL, WEIGHT, GROUP)
    loss.backward()
    torch.testing.assert_close(loss, lists_by_hand(scores), rtol=1e-4, atol=1e-4)
    assert scores.grad is not None and scores.grad.isfinite().all()


def test_rows_and_lists_share_the_loss() -> None:
    scores = logits()
    rows = torch.nn.functional.binary_cross_entropy_with_logits(scores, LABEL, WEIGHT, reduction="sum") / WEIGHT.sum()
    lists = lists_by_hand(scores) / (WEIGHT * LABEL).sum()
    for share in (0.0, 0.3, 1.0):
        found = batch_loss(scores, LABEL, WEIGHT, GROUP, TOTALS, share)
        torch.testing.assert_close(found, (1 - share) * rows + share * lists)


def test_parts_of_a_batch_sum_to_it() -> None:
    scores = logits()
    columns = (scores, LABEL, WEIGHT, GROUP)
    parts = [batch_loss(*(c[cut] for c in columns), TOTALS, 0.5) for cut in (slice(0, 4), slice(4, 9))]
    torch.testing.assert_close(sum(parts), batch_loss(*columns, TOTALS, 0.5))


@pytest.mark.parametrize("label", [torch.zeros(9), LABEL], ids=["no positive", "no weight"])
def test_nothing_to_learn_is_no_gradient(label: Tensor) -> None:
    scores = logits()
    weight = WEIGHT if not label.any() else torch.zeros(9)
    batch_loss(scores, label, weight, GROUP, BatchTotals(1.0, torch.tensor(0.0)), 1.0).backward()
    assert scores.grad is not None and scores.grad.abs().max() == 0
