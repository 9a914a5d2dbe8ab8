"""The base of every config: frozen, and strict about unknown keys."""

from pydantic import BaseModel, ConfigDict


class Config(BaseModel):
    """A validated, immutable value; runtime objects never live in one."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True)
