"""The hyper-parameters of Wide & Deep; the defaults are the published ones."""

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from rayrec.config.base import ModelConfig, Widths


class WideDeepConfig(ModelConfig):
    """Wide & Deep (Cheng et al. 2016, arXiv:1606.07792), as NVIDIA published it: every feature feeds both parts."""

    kind: Literal["wide_deep"] = "wide_deep"
    part: Literal["wide", "deep", "wide_deep"] = "wide_deep"
    """One part alone, or the sum of both logits."""
    embedding_dim: PositiveInt = 64
    """Width of a table of the deep part; those of the wide part have one column."""
    embedding_dims: dict[str, PositiveInt] = {}
    """Widths by feature that differ from `embedding_dim`."""
    embedding_init: Literal["truncated_normal", "glorot_normal"] = "truncated_normal"
    """Initial values of the deep tables: standard deviation 1/sqrt(width), or sqrt(2/(rows + width))."""
    combiner: Literal["mean", "sum"] | None = None
    """How the deep part pools the ids of a multi-hot feature; unset: as the dataset's schema says. The wide part sums
    them."""
    mlp: Widths = (1024, 1024, 1024, 1024, 1024)
    """Hidden widths of the deep part; the last layer to one logit is added."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """After each hidden layer, in training."""


CONFIG = WideDeepConfig
