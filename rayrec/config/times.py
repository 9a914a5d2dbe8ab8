"""Time zones and formats of times in configs, checked when they are read."""

from typing import Annotated
from zoneinfo import ZoneInfo

from pydantic import AfterValidator


def _known_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (KeyError, OSError, ValueError):
        raise ValueError("no such time zone; give an IANA name such as Europe/Vienna") from None
    return name


def _known_format(given: str) -> str:
    if given not in {"iso", "s", "ms", "us"} and "%" not in given:
        raise ValueError("no such format of times; give iso, s, ms, us, or a pattern such as %Y-%m-%d")
    if "%f" in given:
        raise ValueError("times with fractions of a second are read as iso, s, ms or us, not with %f")
    return given


Zone = Annotated[str, AfterValidator(_known_zone)]
"""An IANA time zone, such as Europe/Vienna."""
TimeFormat = Annotated[str, AfterValidator(_known_format)]
"""`iso` (ISO 8601), `s`, `ms` or `us` (numbers since 1970, UTC), or a format of strptime such as `%y%m%d%H`."""
