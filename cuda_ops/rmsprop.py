"""RMSprop's update (Hinton, lecture 6e of "Neural networks for machine learning"), as `torch.optim.RMSprop` defines it.

Each number of a parameter is read and written once: on a GPU by a Triton kernel, on a CPU block by block in its cache.
torch makes five passes, which on tables that do not fit a cache cost the bandwidth of thirteen.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from cuda_ops.interaction import triton_works

_NUMBERS_IN_CACHE = 2**16
"""Numbers in a block for each thread: with their mean squares and gradients they stay in a core's cache."""


def rmsprop_(
    weight: Tensor, square_avg: Tensor, grad: Tensor, *, lr: float, alpha: float, eps: float, weight_decay: float
) -> None:
    """Update `weight` and `square_avg` in place; all three are of one shape, float32, the first two contiguous.

    With gradient g, weight w and mean square s:

        g' = g + weight_decay w
        s' = alpha s + (1 - alpha) g'^2
        w' = w - lr g' / (sqrt(s') + eps)

    The results are torch's bit for bit on a CPU, up to the last digits on a GPU.
    """
    if weight.device.type == "cuda" and triton_works():
        from cuda_ops import rmsprop_kernel

        rmsprop_kernel.update_(weight, square_avg, grad.contiguous(), lr, alpha, eps, weight_decay)
        return
    blocks: Iterable[tuple[Tensor, ...]] = [(weight, square_avg, grad)]
    size = _NUMBERS_IN_CACHE * torch.get_num_threads()
    if weight.device.type == "cpu" and weight.numel() > size:
        blocks = zip(*(tensor.view(-1).split(size) for tensor in (weight, square_avg, grad)), strict=True)
    for w, s, gradient in blocks:
        g = gradient.add(w, alpha=weight_decay) if weight_decay else gradient
        s.mul_(alpha).addcmul_(g, g, value=1 - alpha)
        w.addcdiv_(g, s.sqrt().add_(eps), value=-lr)
