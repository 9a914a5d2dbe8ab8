"""The models' hyper-parameters; defaults are the published ones."""

from typing import Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from rayrec.config.base import Config

Widths = Annotated[tuple[PositiveInt, ...], Field(min_length=1)]


class DLRMConfig(Config):
    """DLRM (Naumov et al. 2019, arXiv:1906.00091)."""

    kind: Literal["dlrm"] = "dlrm"
    embedding_dim: PositiveInt = 128
    """Width of every embedding table; with `dot` the bottom MLP ends in the same width."""
    embedding_dims: dict[str, PositiveInt] = {}
    """Widths by feature that differ from `embedding_dim`; `interaction: cat` only."""
    bottom_mlp: Widths = (512, 256, 128)
    top_mlp: Widths = (1024, 1024, 512, 256)
    """Hidden widths; the last layer to one logit is added."""
    interaction: Literal["dot", "cat"] = "dot"

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
        return self


class DCNv2Config(Config):
    """DCN-V2 (Wang et al. 2021, arXiv:2008.13535), stacked, with low-rank cross layers."""

    kind: Literal["dcnv2"] = "dcnv2"
    embedding_dim: PositiveInt = 128
    embedding_dims: dict[str, PositiveInt] = {}
    """Widths by feature that differ from `embedding_dim`."""
    bottom_mlp: Widths = (512, 256, 128)
    cross_layers: PositiveInt = 3
    cross_rank: PositiveInt = 512
    top_mlp: Widths = (1024, 1024, 512, 256)


class NeuMFConfig(Config):
    """NeuMF and its two parts GMF and MLP (He et al. 2017, arXiv:1708.05031), as NVIDIA published it."""

    kind: Literal["neumf"] = "neumf"
    parts: Annotated[tuple[Literal["gmf", "mlp"], ...], Field(min_length=1)] = ("gmf", "mlp")
    """Both are NeuMF; one alone is GMF or MLP."""
    factors: PositiveInt = 64
    """Width of GMF's user and item embeddings."""
    gmf_output: Literal["learned", "dot"] = "learned"
    """How GMF's product of embeddings becomes a logit: `learned` weighs its columns, as published; `dot` adds them up,
    which is matrix factorization (Rendle et al. 2020, arXiv:2005.09683). Learned weights grow as the embeddings shrink,
    and so escape `train.embedding_l2`."""
    mlp: Widths = (256, 256, 128, 64)
    """The first is the width of MLP's user and item embeddings side by side (half each), the others are its layers."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """After each of MLP's layers, in training."""

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


class WideDeepConfig(Config):
    """Wide & Deep (Cheng et al. 2016, arXiv:1606.07792), as NVIDIA published it: every feature feeds both parts."""

    kind: Literal["wide_deep"] = "wide_deep"
    part: Literal["wide", "deep", "wide_deep"] = "wide_deep"
    """One part alone, or the sum of both logits."""
    embedding_dim: PositiveInt = 64
    """Width of a table of the deep part; those of the wide part have one column."""
    embedding_dims: dict[str, PositiveInt] = {}
    """Widths by feature that differ from `embedding_dim`."""
    embedding_init: Literal["truncated_normal", "glorot_normal"] = "truncated_normal"
    """Of the deep tables: standard deviation 1/sqrt(width), or sqrt(2/(rows + width))."""
    combiner: Literal["mean", "sum"] | None = None
    """How the deep part pools the ids of a multi-hot feature; unset: as the dataset's schema says. The wide part sums
    them."""
    mlp: Widths = (1024, 1024, 1024, 1024, 1024)
    """Hidden widths of the deep part; the last layer to one logit is added."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """After each hidden layer, in training."""

    @property
    def has_wide(self) -> bool:
        return self.part != "deep"

    @property
    def has_deep(self) -> bool:
        return self.part != "wide"


ModelConfig = Annotated[DLRMConfig | DCNv2Config | NeuMFConfig | WideDeepConfig, Field(discriminator="kind")]
