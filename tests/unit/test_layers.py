"""Layers by oneDNN return what torch's own return, and so do their gradients."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rayrec.models.common import layers
from rayrec.models.common.layers import Layers, Linear, LinearOfPadded, hidden_layers, scoring_layers

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def by_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small a product is."""
    monkeypatch.setattr(layers, "_LEAST_PRODUCTS", 0)


def _plain(modules: nn.Sequential, input: Tensor) -> Tensor:
    for module in modules:
        input = F.linear(input, module.weight, module.bias) if isinstance(module, nn.Linear) else module(input)
    return input


def _gradients(output: Tensor, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    weights = torch.arange(output.numel()).sin().view(output.shape)
    return torch.autograd.grad((output.float() * weights).sum(), inputs)


def test_values_and_gradients() -> None:
    torch.manual_seed(0)
    modules = scoring_layers(13, (40, 24), CPU)
    input = torch.randn(70, 13, requires_grad=True)
    inputs = [input, *modules.parameters()]
    output, plain = modules(input), _plain(modules, input)
    assert "_OneDNNLinear" in str(output.grad_fn.next_functions) and output.shape == (70, 1)
    torch.testing.assert_close(output, plain)
    for ours, theirs in zip(_gradients(output, inputs), _gradients(plain, inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_under_autocast() -> None:
    torch.manual_seed(0)
    modules = hidden_layers(13, (40, 24), CPU)
    input = torch.randn(70, 13, requires_grad=True)
    inputs = [input, *modules.parameters()]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, plain = modules(input), _plain(modules, input)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output, plain, rtol=0.02, atol=0.02)
    for ours, theirs in zip(_gradients(output, inputs), _gradients(plain, inputs), strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.5)


@pytest.mark.parametrize("shape", [(13,), (5, 13), (2, 5, 13), (0, 13)], ids=str)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "none"])
def test_shapes(shape: tuple[int, ...], bias: bool) -> None:
    module = Linear(13, 6, bias=bias)
    input = torch.randn(shape, requires_grad=True)
    inputs = [input, *module.parameters()]
    output, plain = module(input), F.linear(input, module.weight, module.bias)
    assert output.shape == (*shape[:-1], 6)
    torch.testing.assert_close(output, plain)
    for ours, theirs in zip(_gradients(output, inputs), _gradients(plain, inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_more_columns_than_the_layer_has() -> None:
    module = LinearOfPadded(13, 6)
    padded = F.pad(torch.randn(5, 13), (0, 3), value=7.0)
    torch.testing.assert_close(module(padded), F.linear(padded[:, :13], module.weight, module.bias))


def test_frozen_weights_get_no_gradient() -> None:
    module = Linear(13, 6).requires_grad_(False)
    input = torch.randn(5, 13, requires_grad=True)
    module(input).sum().backward()
    assert input.grad is not None and module.weight.grad is None


def test_float64_is_differentiable_twice() -> None:
    module = Linear(3, 2).double()
    assert torch.autograd.gradgradcheck(module, torch.randn(4, 3, dtype=torch.float64, requires_grad=True))


def test_a_relu_behind_no_linear_layer_is_called() -> None:
    modules = hidden_layers(3, (4, 2), CPU, dropout=0.5).eval()
    hidden = torch.randn(5, 4)
    torch.testing.assert_close(modules[1:](hidden), _plain(modules[1:], hidden))
    assert isinstance(modules[1:], Layers) and list(modules.state_dict()) == [
        "0.weight",
        "0.bias",
        "3.weight",
        "3.bias",
    ]
