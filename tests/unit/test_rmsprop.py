"""RMSprop of tables: torch's, bit for bit on a CPU, whatever the size of a table and the number of threads."""

import pytest
import torch

from rayrec.config.optimizers import EmbeddingOptimizerConfig
from rayrec.training.optimizers import build_optimizer, table_moments


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("rows", [1, 1000, 70_001])
def test_equals_torchs_optimizer(rows: int, weight_decay: float) -> None:
    expected, table = (torch.nn.Parameter(torch.linspace(-1, 1, 4 * rows).view(rows, 4)) for _ in range(2))
    config = EmbeddingOptimizerConfig(kind="rmsprop", lr=0.01, rho=0.9, eps=1e-7, weight_decay=weight_decay)
    found = build_optimizer(config, [table])
    reference = torch.optim.RMSprop([expected], lr=0.01, alpha=0.9, eps=1e-7, weight_decay=weight_decay)
    for step in range(1, 4):
        grad = torch.randn(rows, 4)
        grad[::3] = 0.0  # rows of which no id occurs
        before = grad.clone()
        table.grad = expected.grad = grad
        for optimizer in (found, reference):
            optimizer.param_groups[0]["lr"] = 0.01 / step
            optimizer.step()
        assert grad.equal(before)
    assert table.equal(expected)
    assert table_moments(found, table)["square_avg"].equal(reference.state[expected]["square_avg"])
