"""The hyper-parameters of Wide & Deep; the defaults are the published ones."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveInt

from rayrec.config.base import Widths
from rayrec.config.sequences import ReadsSequences


class WideDeepConfig(ReadsSequences):
    """Wide & Deep (Cheng et al. 2016, arXiv:1606.07792), as NVIDIA published it: every feature feeds both parts."""

    # The published optimizers with rates for batches of a hundredth of the published ones.
    train_defaults: ClassVar[Mapping[str, Any]] = {
        "global_batch_size": 1024,
        "epochs": 3,
        "embedding_optimizer": {"kind": "adagrad", "lr": 0.05, "initial_accumulator": 0.1},
        "dense_optimizer": {"kind": "adagrad", "lr": 0.05, "initial_accumulator": 0.1},
        "parts": {
            "wide": {
                "embedding_optimizer": {"kind": "ftrl", "lr": 0.1, "initial_accumulator": 0.1},
                "dense_optimizer": {"kind": "ftrl", "lr": 0.1, "initial_accumulator": 0.1},
            }
        },
    }
    kind: Literal["wide_deep"] = "wide_deep"
    part: Literal["wide", "deep", "wide_deep"] = "wide_deep"
    """One part alone, or the sum of both logits."""
    embedding_dim: PositiveInt = 64
    """Width of the tables of the deep part; those of the wide part have one column."""
    embedding_dims: dict[str, PositiveInt] = {}
    """Widths of single features."""
    embedding_init: Literal["truncated_normal", "glorot_normal"] = "truncated_normal"
    """Initial values of the deep tables, with deviation 1/sqrt(width) or sqrt(2/(rows + width))."""
    combiner: Literal["mean", "sum"] | None = None
    """Pooling of multi-hot features in the deep part; `null`: as in the dataset's schema. The wide part sums."""
    mlp: Widths = (1024, 1024, 1024, 1024, 1024)
    """Widths of the hidden layers before the logit of the deep part."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout after each hidden layer."""


CONFIG = WideDeepConfig
