"""The base of every config, and types of values that several of them have."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PositiveInt

Widths = Annotated[tuple[PositiveInt, ...], Field(min_length=1)]


class Config(BaseModel):
    """A validated, immutable value that knows all its keys; runtime objects never live in one."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True)


class ModelConfig(Config):
    """The hyper-parameters of a model; each model has a class of its own."""

    needs_interactions: ClassVar[bool] = False
    """Whether it reads a user and an item alone, so that only sources that `gives_interactions` suit it."""
    scores_next_items: ClassVar[bool] = False
    """Whether it scores the next item of a person by a history of items, and so no single rows."""
    train_defaults: ClassVar[Mapping[str, Any]] = {}
    """What a recipe has in `train` where it says nothing: optimizers, batch and epochs that suit the model, for data of
    any size. What optimizers need (`parts`, `schedule`, `sharding`) holds beside these alone."""
    kind: str


def _known_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (KeyError, OSError, ValueError):
        raise ValueError("no such time zone; give an IANA name such as Europe/Vienna") from None
    return name


def _known_format(given: str) -> str:
    if given not in {"iso", "s", "ms", "us", "ns"} and "%" not in given:
        raise ValueError("no such format of times; give iso, s, ms, us, ns, or a pattern such as %Y-%m-%d")
    if "%f" in given:
        raise ValueError("times with fractions of a second are read as iso, s, ms, us or ns, not with %f")
    return given


Zone = Annotated[str, AfterValidator(_known_zone)]
"""An IANA time zone, such as Europe/Vienna."""
TimeFormat = Annotated[str, AfterValidator(_known_format)]
"""`iso` (ISO 8601), `s`, `ms`, `us` or `ns` (numbers since 1970, UTC), or a format of strptime such as `%y%m%d%H`."""
NumberFormat = Literal["plain", "1,234.5", "1.234,5"]
"""How texts are numbers: `plain`, as programs write them, or as people do (`rayrec.features.text_forms`)."""
