"""NeuMF's weights from those of a trained GMF and a trained MLP (He et al. 2017, section 3.4.1)."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from rayrec.models.common.tables import COLUMN_GRAIN
from rayrec.models.neumf.config import NeuMFConfig

_DENSE = "dense_network."
_WEIGHT, _BIAS = "output.weight", "output.bias"


def compose(
    config: NeuMFConfig, gmf: Mapping[str, Tensor], mlp: Mapping[str, Tensor], alpha: float
) -> dict[str, Tensor]:
    """The undistributed state dict of NeuMF from those of its parts (`RankingModel.state_dict()`), by equation 13."""
    state = {
        name: compose_table(config, gmf[name][:, : config.gmf_width], mlp[name][:, : config.mlp_width], alpha)
        for name in gmf
        if name.startswith("embeddings.")
    }
    dense = compose_dense(_dense(gmf), _dense(mlp), alpha)
    return state | {f"{_DENSE}{name}": value for name, value in dense.items()}


def compose_table(config: NeuMFConfig, gmf: Tensor, mlp: Tensor, alpha: float) -> Tensor:
    """(rows, G), (rows, H) -> (rows, G + H), and columns of 0 up to a multiple of `COLUMN_GRAIN`.

    Where no weights of the output layer can hold GMF's share of the logit (`gmf_output: dot`), its columns do.
    """
    share = math.sqrt(alpha) if config.gmf_output == "dot" else 1.0
    table = torch.cat([share * gmf, mlp], dim=1)
    return F.pad(table, (0, -table.shape[1] % COLUMN_GRAIN))


def compose_dense(gmf: Mapping[str, Tensor], mlp: Mapping[str, Tensor], alpha: float) -> dict[str, Tensor]:
    """State dicts of the dense networks: MLP's layers; output h = [alpha h_GMF ; (1 - alpha) h_MLP], the bias likewise.

    So NeuMF's logits are alpha times GMF's plus (1 - alpha) times MLP's before it is trained further.
    """
    state = {name: value for name, value in mlp.items() if name.startswith("mlp.")}
    weights = [alpha * gmf[_WEIGHT]] if _WEIGHT in gmf else []
    state[_WEIGHT] = torch.cat([*weights, (1 - alpha) * mlp[_WEIGHT]], dim=1)
    state[_BIAS] = alpha * gmf[_BIAS] + (1 - alpha) * mlp[_BIAS]
    return state


def _dense(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(_DENSE): value for name, value in state.items() if name.startswith(_DENSE)}
