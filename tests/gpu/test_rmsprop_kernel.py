"""RMSprop's Triton kernel against torch's optimizer: on a GPU, or in Triton's interpreter on the CPU.

TRITON_INTERPRET=1 python -m pytest tests/gpu/test_rmsprop_kernel.py
"""

import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
pytestmark = pytest.mark.skipif(not INTERPRETED and not torch.cuda.is_available(), reason="no GPU, no interpreter")


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("shape", [(1, 4), (256, 4), (1000, 20), (0, 4)], ids=str)
def test_equals_torchs_optimizer(shape: tuple[int, int], weight_decay: float) -> None:
    from cuda_ops import rmsprop_kernel

    generator = torch.Generator().manual_seed(1)
    expected = torch.nn.Parameter(torch.randn(shape, generator=generator).to(DEVICE))
    weight, square_avg = expected.detach().clone(), torch.zeros(shape, device=DEVICE)
    optimizer = torch.optim.RMSprop([expected], lr=0.01, alpha=0.9, eps=1e-7, weight_decay=weight_decay)
    for _ in range(3):
        grad = torch.randn(shape, generator=generator).to(DEVICE)
        grad[::3] = 0.0  # rows of which no id occurs
        expected.grad = grad
        optimizer.step()
        rmsprop_kernel.update_(weight, square_avg, grad, 0.01, 0.9, 1e-7, weight_decay)
    torch.testing.assert_close(weight, expected.detach(), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(square_avg, optimizer.state[expected]["square_avg"], rtol=1e-6, atol=1e-10)
