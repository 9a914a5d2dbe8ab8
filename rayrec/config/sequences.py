"""How a model reads the histories of a row event by event."""

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from rayrec.config.base import Config, ModelConfig, Widths


class MeanSequence(Config):
    """The mean of the events' embeddings."""

    kind: Literal["mean"] = "mean"


class DINSequence(Config):
    """A sum of the events' embeddings, each weighed by what it has to do with the row's own value (Deep Interest
    Network, Zhou et al. 2018, arXiv:1706.06978).
    """

    kind: Literal["din"] = "din"
    hidden: Widths = (32,)
    """Widths of the hidden layers that weigh an event."""


class TransformerSequence(Config):
    """Attention of the row's own value and the events to each other, by their embeddings and their order (Behavior
    Sequence Transformer, Chen et al. 2019, arXiv:1905.06874).
    """

    kind: Literal["transformer"] = "transformer"
    blocks: PositiveInt = 1
    """Transformer blocks."""
    heads: PositiveInt = 1
    """Attention heads, which share the width of an event."""


SequenceConfig = Annotated[MeanSequence | DINSequence | TransformerSequence, Field(discriminator="kind")]


class ReadsSequences(ModelConfig):
    """The hyper-parameters of a model that can read histories event by event."""

    sequences: dict[str, SequenceConfig] = {}
    """How histories (`source.histories`, by name) with lists (`take: {op: last}`) are read event by event: each becomes
    a vector beside the embeddings. Other lists are pooled."""
