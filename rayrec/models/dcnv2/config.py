"""The hyper-parameters of DCN-V2; the defaults are the published ones."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import PositiveInt

from rayrec.config.base import Widths
from rayrec.config.sequences import ReadsSequences


class DCNv2Config(ReadsSequences):
    """DCN-V2 (Wang et al. 2021, arXiv:2008.13535), stacked, with low-rank cross layers."""

    # Published: Adam at 0.0001 for batches of 65,536 rows of billions.
    train_defaults: ClassVar[Mapping[str, Any]] = {
        "global_batch_size": 512,
        "embedding_optimizer": {"kind": "rowwise_adagrad", "lr": 0.02},
        "dense_optimizer": {"kind": "adam", "lr": 0.001},
    }
    kind: Literal["dcnv2"] = "dcnv2"
    embedding_dim: PositiveInt = 128
    """Width of the embedding tables."""
    embedding_dims: dict[str, PositiveInt] = {}
    """Widths of single features."""
    bottom_mlp: Widths = (512, 256, 128)
    """Widths of the layers for numeric features."""
    cross_layers: PositiveInt = 3
    """Number of cross layers."""
    cross_rank: PositiveInt = 512
    """Rank of the cross layers' matrices."""
    top_mlp: Widths = (1024, 1024, 512, 256)
    """Widths of the hidden layers before the logit."""


CONFIG = DCNv2Config
