"""Private operators of torch over oneDNN, whose matrix products on CPUs of AMD take less than half of MKL's time.

torch multiplies float32 by MKL, which does not use AVX-512 there; its compiler calls these operators instead.
"""

from torch import Tensor, backends, float32, nn, ops
from torch.nn import functional as F

_FEW_ROWS = 16
"""Fewer rows are multiplied faster by MKL: a call of oneDNN takes some ten microseconds more."""
_FEW_WEIGHTS = 4096
"""The same for layers of fewer weights."""


def pack_linear_layers(network: nn.Module) -> None:
    """Let the linear layers of a float32 network, whose weights no longer change, multiply batches by oneDNN.

    Does nothing where torch has no oneDNN. Results differ from those of other batch sizes by float32 rounding.
    """
    if not backends.mkldnn.is_available():
        return
    for module in list(network.modules()):
        for name, layer in module.named_children():
            if type(layer) is nn.Linear and layer.weight.numel() >= _FEW_WEIGHTS and layer.weight.dtype == float32:
                setattr(module, name, _PackedLinear(layer))


class _PackedLinear(nn.Linear):
    """A linear layer with a second copy of its weights, in oneDNN's order."""

    def __init__(self, layer: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias
        self._packed = ops.mkldnn._reorder_linear_weight(layer.weight.detach(), None)

    def forward(self, input: Tensor) -> Tensor:
        """(B, in_features) -> (B, out_features)."""
        if len(input) < _FEW_ROWS:
            return F.linear(input, self.weight, self.bias)
        product: Tensor = ops.mkldnn._linear_pointwise(input, self._packed, self.bias, "none", [], "")
        return product
