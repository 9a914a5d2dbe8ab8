"""Operators of torch that call oneDNN, which torch has for its own compiler and for tensors in oneDNN's layout.

torch itself multiplies float32 matrices by MKL, which uses registers of an AMD processor to half of their width.
"""

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@functools.cache
def multiplies(dtype: "torch.dtype") -> bool:
    """Return whether the functions below take this type of numbers: where torch has oneDNN, float32; where the
    processor has the instructions, bfloat16.
    """
    import torch

    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32 and torch.backends.mkldnn.is_available()


def linear(input: "Tensor", weight: "Tensor", bias: "Tensor | None", *, relu: bool = False) -> "Tensor":
    """`input @ weight.T + bias`, then ReLU if asked for: (B, in), (out, in), (out,) -> (B, out), without a gradient.

    All are on the CPU, of one dtype and of any strides.
    """
    import torch

    return torch.ops.mkldnn._linear_pointwise(input, weight, bias, "relu" if relu else "none", [], "")


def linear_gradients(grad: "Tensor", input: "Tensor", weight: "Tensor") -> "tuple[Tensor, Tensor]":
    """`grad.T @ input` and the sum of `grad` over its rows: (B, out), (B, in), (out, in) -> (out, in) and (out,).

    All are on the CPU, of one dtype and of any strides; of `weight` only the shape counts.
    """
    import torch

    if grad.dtype != torch.float32:
        # torch's own product, by oneDNN where the processor multiplies the type; the operator below takes no other.
        return grad.T @ input, grad.sum(0)
    gradients = torch.ops.aten.mkldnn_linear_backward_weights(grad.to_mkldnn(), input.to_mkldnn(), weight, True)
    return gradients[0], gradients[1]
