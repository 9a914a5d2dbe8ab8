"""The hyper-parameters of DLRM; the defaults are the published ones."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import PositiveInt, model_validator

from rayrec.config.base import Widths
from rayrec.config.sequences import ReadsSequences


class DLRMConfig(ReadsSequences):
    """DLRM (Naumov et al. 2019, arXiv:1906.00091)."""

    # The published SGD at rate 24 needs a warm-up of 8,000 steps of 65,536 rows; adaptive rates suit fewer rows too.
    train_defaults: ClassVar[Mapping[str, Any]] = {
        "global_batch_size": 512,
        "embedding_optimizer": {"kind": "rowwise_adagrad", "lr": 0.02},
        "dense_optimizer": {"kind": "adam", "lr": 0.001},
    }
    kind: Literal["dlrm"] = "dlrm"
    embedding_dim: PositiveInt = 128
    """Width of the embedding tables; with `dot` also the last width of `bottom_mlp`."""
    embedding_dims: dict[str, PositiveInt] = {}
    """Widths of single features; `interaction: cat` only."""
    bottom_mlp: Widths = (512, 256, 128)
    """Widths of the layers for numeric features."""
    top_mlp: Widths = (1024, 1024, 512, 256)
    """Widths of the hidden layers before the logit."""
    interaction: Literal["dot", "cat"] = "dot"
    """`dot`: dot products of all pairs of vectors; `cat`: concatenation."""
    self_interaction: bool = False
    """With `dot`, also each vector's squared length."""

    @model_validator(mode="after")
    def _widths_fit(self) -> "DLRMConfig":
        if self.interaction == "dot":
            if self.bottom_mlp[-1] != self.embedding_dim:
                raise ValueError(
                    f"bottom_mlp must end in embedding_dim ({self.embedding_dim}) for interaction 'dot', "
                    f"not in {self.bottom_mlp[-1]}"
                )
            if self.embedding_dims:
                raise ValueError("embedding_dims needs interaction 'cat': 'dot' takes vectors of one width")
        elif self.self_interaction:
            raise ValueError("self_interaction needs interaction 'dot': 'cat' has no dot products")
        return self


CONFIG = DLRMConfig
