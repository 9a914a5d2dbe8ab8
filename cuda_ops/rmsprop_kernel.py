"""The Triton kernel of `cuda_ops.rmsprop`: bound by memory, of which it moves five numbers for each one updated."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


def update_(
    weight: Tensor, square_avg: Tensor, grad: Tensor, lr: float, alpha: float, eps: float, weight_decay: float
) -> None:
    """See `cuda_ops.rmsprop_`."""
    count = weight.numel()
    if count:
        with torch.cuda.device_of(weight):
            _kernel[(triton.cdiv(count, BLOCK),)](
                weight, square_avg, grad, lr, alpha, eps, weight_decay, count, BLOCK=BLOCK
            )


@triton.jit
def _kernel(weight, square_avg, grad, lr, alpha, eps, weight_decay, count, BLOCK: tl.constexpr):
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = places < count
    w = tl.load(weight + places, mask)
    g = tl.load(grad + places, mask) + weight_decay * w
    s = alpha * tl.load(square_avg + places, mask, other=0.0) + (1.0 - alpha) * g * g
    tl.store(square_avg + places, s, mask)
    tl.store(weight + places, w - lr * g / (tl.sqrt_rn(s) + eps), mask)
