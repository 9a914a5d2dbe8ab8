"""Which dtype a model computes in under autocast."""

import torch
from torch import Tensor


def to_autocast_dtype(tensor: Tensor) -> Tensor:
    """`tensor` in autocast's dtype where autocast is on for its device, else unchanged.

    Autocast promotes a concatenation to the widest dtype, so that float32 embeddings would keep what follows them in
    float32.
    """
    device = tensor.device.type
    if not torch.is_autocast_enabled(device):
        return tensor
    return tensor.to(torch.get_autocast_dtype(device))
