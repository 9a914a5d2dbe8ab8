"""The hyper-parameters of DCN-V2; the defaults are the published ones."""

from typing import Literal

from pydantic import PositiveInt

from rayrec.config.base import ModelConfig, Widths


class DCNv2Config(ModelConfig):
    """DCN-V2 (Wang et al. 2021, arXiv:2008.13535), stacked, with low-rank cross layers."""

    kind: Literal["dcnv2"] = "dcnv2"
    embedding_dim: PositiveInt = 128
    embedding_dims: dict[str, PositiveInt] = {}
    """Widths by feature that differ from `embedding_dim`."""
    bottom_mlp: Widths = (512, 256, 128)
    cross_layers: PositiveInt = 3
    cross_rank: PositiveInt = 512
    top_mlp: Widths = (1024, 1024, 512, 256)


CONFIG = DCNv2Config
