"""Multi-layer perceptrons, and the dtype in which they compute under autocast."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from rayrec.internals import onednn

_LEAST_PRODUCTS = 2**20
"""Multiplications of a layer from which on oneDNN takes less time than torch; a call costs 10 microseconds more."""

_DROPOUT = threading.local()


class Linear(nn.Linear):
    """A linear layer that computes a ReLU behind it, too.

    On a CPU large products in float32 and bfloat16 are oneDNN's (`rayrec.internals.onednn`), which can be
    differentiated once; float32 takes half of torch's time on AMD processors.
    """

    def forward(self, input: Tensor, relu: bool = False) -> Tensor:
        """Map (..., in_features) to (..., out_features), in autocast's dtype where autocast is on."""
        return _linear(input, self.weight, self.bias, relu)


class Dropout(nn.Dropout):
    """Dropout whose masks, on a CPU, come from a generator that the block around the call names.

    torch has one generator for all threads, so that the masks of threads beside each other would depend on their turns.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Drop values of a tensor of any shape."""
        generator = getattr(_DROPOUT, "generator", None)
        if generator is None or not self.training or not self.p:
            return super().forward(input)
        mask = torch.empty_like(input).bernoulli_(1 - self.p, generator=generator).div_(1 - self.p)
        return input * mask


@contextmanager
def drawing_dropout_from(generator: torch.Generator | None) -> Iterator[None]:
    """Let this thread's `Dropout` draw from `generator` during the block; from torch's own where it is None."""
    _DROPOUT.generator = generator
    try:
        yield
    finally:
        _DROPOUT.generator = None


class LinearOfPadded(Linear):
    """A linear layer whose input may have more columns than `in_features`; it ignores these."""

    def forward(self, input: Tensor, relu: bool = False) -> Tensor:
        """Map (..., in_features or more) to (..., out_features)."""
        padding = input.shape[-1] - self.in_features
        # Weights of 0, and no view of the columns: they are there so that rows begin at multiples of 16 bytes.
        weight = F.pad(self.weight, (0, padding)) if padding else self.weight
        return _linear(input, weight, self.bias, relu)


class Layers(nn.Sequential):
    """Modules that are called one after the other; a linear layer computes the ReLU behind it."""

    def __init__(self, *modules: Any) -> None:
        super().__init__(*modules)
        self._steps: list[tuple[nn.Module, dict[str, bool]]] = []
        """The modules to call, with their arguments: to find them anew takes as long as a layer takes for one row."""
        before = None
        for module, following in zip(self, [*self, None][1:], strict=True):
            if isinstance(module, Linear):
                self._steps.append((module, {"relu": isinstance(following, nn.ReLU)}))
            elif not (isinstance(module, nn.ReLU) and isinstance(before, Linear)):
                self._steps.append((module, {}))
            before = module

    def forward(self, input: Tensor) -> Tensor:
        """Map (..., columns that the first module takes) to (..., columns that the last one returns)."""
        for module, arguments in self._steps:
            input = module(input, **arguments)
        return input


def hidden_layers(
    in_features: int,
    widths: Sequence[int],
    device: torch.device,
    *,
    linear: type[Linear] = Linear,
    dropout: float | None = None,
) -> Layers:
    """Return linear, ReLU and, unless `dropout` is None, dropout for each width: (B, in_features) -> (B,
    widths[-1]).
    """
    layers: list[nn.Module] = []
    for width in widths:
        layers += [linear(in_features, width, device=device), nn.ReLU()]
        if dropout is not None:
            layers.append(Dropout(dropout))
        in_features = width
    return Layers(*layers)


def scoring_layers(
    in_features: int,
    widths: Sequence[int],
    device: torch.device,
    *,
    linear: type[Linear] = Linear,
    dropout: float | None = None,
) -> Layers:
    """Return hidden layers of `widths`, then a linear layer to one logit: (B, in_features) -> (B, 1)."""
    hidden = hidden_layers(in_features, widths, device, linear=linear, dropout=dropout)
    return Layers(*hidden, linear(widths[-1], 1, device=device))


def to_autocast_dtype(tensor: Tensor) -> Tensor:
    """Return `tensor` in autocast's dtype where autocast is on for its device, else unchanged.

    Autocast promotes a concatenation to the widest dtype, so that float32 embeddings would keep what follows them in
    float32.
    """
    device = tensor.device.type
    if not torch.is_autocast_enabled(device):
        return tensor
    return tensor.to(torch.get_autocast_dtype(device))


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    if (
        input.device.type == "cpu"
        and input.numel() * weight.shape[0] >= _LEAST_PRODUCTS
        # torch's compiler chooses for itself.
        and not torch.compiler.is_compiling()
    ):
        input, weight = to_autocast_dtype(input), to_autocast_dtype(weight)
        bias = None if bias is None else to_autocast_dtype(bias)
        if input.dtype == weight.dtype and onednn.multiplies(input.dtype):
            output = cast(Tensor, _OneDNNLinear.apply(input.reshape(-1, input.shape[-1]), weight, bias, relu))
            return output.view(*input.shape[:-1], weight.shape[0])
    output = F.linear(input, weight, bias)
    return torch.relu(output) if relu else output


class _OneDNNLinear(torch.autograd.Function):
    """(B, in), (out, in), (out,) or None, whether a ReLU follows -> (B, out)."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
        output = onednn.linear(input, weight, bias, relu=relu)
        ctx.has_bias = bias is not None
        ctx.save_for_backward(input, weight, output if relu else None)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        input, weight, output = ctx.saved_tensors
        if output is not None:
            grad = torch.ops.aten.threshold_backward(grad, output, 0)
        grad_input = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_input = onednn.linear(grad, weight.T, None)
        if any(ctx.needs_input_grad[1:]):
            grad_weight, grad_bias = onednn.linear_gradients(grad, input, weight)
        return grad_input, grad_weight, grad_bias if ctx.has_bias else None, None
