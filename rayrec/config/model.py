"""What the configs of all models share."""

from typing import Annotated

from pydantic import Field, PositiveInt

from rayrec.config.base import Config

Widths = Annotated[tuple[PositiveInt, ...], Field(min_length=1)]


class ModelConfig(Config):
    """The hyper-parameters of a model; each model has a class of its own."""

    kind: str
