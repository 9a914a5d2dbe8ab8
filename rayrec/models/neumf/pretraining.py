"""NeuMF's weights from those of a trained GMF and a trained MLP (He et al. 2017, section 3.4.1)."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

_DENSE = "dense_network."
_WEIGHT, _BIAS = "output.weight", "output.bias"


def compose(gmf: Mapping[str, Tensor], mlp: Mapping[str, Tensor], alpha: float) -> dict[str, Tensor]:
    """The undistributed state dict of NeuMF from those of its parts (`RankingModel.state_dict()`), by equation 13."""
    state = {}
    adds_up = adds_up_gmf(_dense(gmf))
    for name in gmf:
        if name.startswith("embeddings."):
            state[name] = compose_table(gmf[name], mlp[name], alpha if adds_up else 1.0)
    dense = compose_dense(_dense(gmf), _dense(mlp), alpha)
    return state | {f"{_DENSE}{name}": value for name, value in dense.items()}


def adds_up_gmf(gmf: Mapping[str, Tensor]) -> bool:
    """Whether the dense network of a GMF has no weights for its product (`gmf_output: dot`)."""
    return _WEIGHT not in gmf


def compose_table(gmf: Tensor, mlp: Tensor, gmf_share: float = 1.0) -> Tensor:
    """(rows, G), (rows, H) -> (rows, G + H); products of GMF's columns become `gmf_share` times as large."""
    return torch.cat([math.sqrt(gmf_share) * gmf, mlp], dim=1)


def compose_dense(gmf: Mapping[str, Tensor], mlp: Mapping[str, Tensor], alpha: float) -> dict[str, Tensor]:
    """State dicts of the dense networks: MLP's layers; output h = [alpha h_GMF ; (1 - alpha) h_MLP], the bias likewise.

    So NeuMF's logits are alpha times GMF's plus (1 - alpha) times MLP's before it is trained further. A GMF without
    output weights has its share in the tables.
    """
    state = {name: value for name, value in mlp.items() if name.startswith("mlp.")}
    weights = [] if adds_up_gmf(gmf) else [alpha * gmf[_WEIGHT]]
    state[_WEIGHT] = torch.cat([*weights, (1 - alpha) * mlp[_WEIGHT]], dim=1)
    state[_BIAS] = alpha * gmf[_BIAS] + (1 - alpha) * mlp[_BIAS]
    return state


def _dense(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(_DENSE): value for name, value in state.items() if name.startswith(_DENSE)}
