"""The base of every config, and what the configs of all models share."""

from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

Widths = Annotated[tuple[PositiveInt, ...], Field(min_length=1)]


class Config(BaseModel):
    """A validated, immutable value that knows all its keys; runtime objects never live in one."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True)


class ModelConfig(Config):
    """The hyper-parameters of a model; each model has a class of its own."""

    needs_interactions: ClassVar[bool] = False
    """Whether it reads a user and an item alone, so that only sources that `gives_interactions` suit it."""
    kind: str
