"""The hyper-parameters of SASRec."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveInt, model_validator

from rayrec.config.base import ModelConfig


class SASRecConfig(ModelConfig):
    """SASRec (Kang & McAuley 2018, arXiv:1808.09781): the next item of a person by attention over the ones before."""

    needs_interactions: ClassVar[bool] = True
    scores_next_items: ClassVar[bool] = True
    train_defaults: ClassVar[Mapping[str, Any]] = {
        "global_batch_size": 2048,
        "epochs": 20,
        "embedding_optimizer": {"kind": "adam", "lr": 0.001},
        "dense_optimizer": {"kind": "adam", "lr": 0.001},
        "sharding": {"default": "data_parallel"},
    }
    kind: Literal["sasrec"] = "sasrec"
    embedding_dim: PositiveInt = 64
    """Width of the item table and of every layer."""
    blocks: PositiveInt = 2
    """Transformer blocks."""
    heads: PositiveInt = 1
    """Attention heads, which share the width."""
    length: PositiveInt = 50
    """Newest events of a person that are read."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.3
    """Dropout of the embeddings and in each block."""

    @model_validator(mode="after")
    def _heads_share_the_width(self) -> "SASRecConfig":
        if self.embedding_dim % self.heads:
            raise ValueError(f"embedding_dim ({self.embedding_dim}) must be a multiple of heads ({self.heads})")
        return self


CONFIG = SASRecConfig
