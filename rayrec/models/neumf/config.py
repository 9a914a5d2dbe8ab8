"""The hyper-parameters of NeuMF, GMF and MLP; the defaults are the published ones."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveInt, model_validator

from rayrec.config.base import ModelConfig, Widths


class NeuMFConfig(ModelConfig):
    """NeuMF and its parts GMF and MLP (He et al. 2017, arXiv:1708.05031), as NVIDIA published it."""

    needs_interactions: ClassVar[bool] = True
    # Published: Adam at 0.0045 for batches of a million, 30 epochs and 4 negatives. On CPUs it needs whole tables.
    train_defaults: ClassVar[Mapping[str, Any]] = {
        "global_batch_size": 4096,
        "epochs": 10,
        "embedding_optimizer": {"kind": "adam", "lr": 0.003},
        "dense_optimizer": {"kind": "adam", "lr": 0.003},
        "sharding": {"default": "data_parallel"},
        "negatives": {"per_positive": 4},
    }
    kind: Literal["neumf"] = "neumf"
    parts: Annotated[tuple[Literal["gmf", "mlp"], ...], Field(min_length=1)] = ("gmf", "mlp")
    """Both parts make NeuMF; one alone is GMF or MLP."""
    factors: PositiveInt = 64
    """Width of GMF's embeddings."""
    gmf_output: Literal["learned", "dot"] = "learned"
    """Logit of GMF's product of embeddings. `learned`: a weight for each column, as published; they defeat
    `train.embedding_l2`. `dot`: the sum, which is matrix factorization.
    """
    mlp: Widths = (256, 256, 128, 64)
    """Widths: MLP's user and item embeddings together (half each), then its layers."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Dropout after each layer of MLP."""

    @model_validator(mode="after")
    def _parts_make_a_model(self) -> "NeuMFConfig":
        if len(set(self.parts)) != len(self.parts):
            raise ValueError("parts names one part twice")
        if self.mlp[0] % 2:
            raise ValueError(f"mlp must begin with an even width, which user and item share, not {self.mlp[0]}")
        return self

    @property
    def gmf_width(self) -> int:
        """Columns of a table that belong to GMF, its first ones."""
        return self.factors if "gmf" in self.parts else 0

    @property
    def mlp_width(self) -> int:
        """Columns of a table that belong to MLP, its last ones."""
        return self.mlp[0] // 2 if "mlp" in self.parts else 0


CONFIG = NeuMFConfig
