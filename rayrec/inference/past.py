"""Says what the histories of a schema are, and where those of a model are older than what its rows of train knew."""

from datetime import UTC, datetime

import numpy as np

from rayrec.config.preprocess import SECONDS
from rayrec.features.histories import known_at
from rayrec.features.raw_columns import SECOND, History
from rayrec.features.schema import Schema

_QUIET = 3_600 * SECOND
"""A log may have no events for so long, so that no newer one is no sign of a table that is old."""
_BYGONE = 365 * 86_400 * SECOND
"""The log of a table that ended so long ago is one of the past, which nobody takes for fresh."""
_UNITS = {unit: SECONDS[unit] * SECOND for unit in "dhms"}


def known_until(schema: Schema) -> float | None:
    """Return the time up to which every history of a schema knows events, in seconds since 1970; None without any."""
    ends = [history.until for history in schema.histories if history.until is not None]
    return min(ends) / SECOND if ends else None


def describe_stale(schema: Schema, now: float) -> str | None:
    """Say which histories end earlier than rows of training ever knew them to end, at a moment `now` in seconds since
    1970; None if none does.

    These are the ones without an event in the last full period of `known`, or without `known` in the last hour; both
    before the delay.
    """
    moment = int(now * SECOND)
    stale = [history for history in schema.histories if _is_stale(history, moment)]
    if not stale:
        return None
    until = min(history.until for history in stale if history.until is not None) / SECOND
    names = [repr(history.name) for history in stale]
    ended = f"histories {', '.join(names[:-1])} and {names[-1]} end" if names[1:] else f"history {names[0]} ends"
    ended = f"{ended} at {_minute(until)}"
    age = moment - int(until * SECOND)
    if age > _BYGONE:
        return f"{ended}; give rows times of then, or make the model of newer rows"
    unknown = max((history.known or 0) + history.delay for history in stale)
    knew = f"all but the last {_duration(unknown)} at most" if unknown else "all that had happened"
    return (
        f"{ended}, {_about(age)} ago, but rows of train knew {knew}; "
        "make the model of newer rows, or say in `known` how old it may be (docs/histories.md)"
    )


def history_facts(schema: Schema) -> list[dict[str, str]]:
    """Return what people are told of each history: the columns of a table."""
    return [
        {
            "history": history.name,
            "by": ", ".join(history.keys),
            "gives": ", ".join(history.columns),
            "window": "all" if history.window is None else _duration(history.window),
            "delay": "none" if not history.delay else _duration(history.delay),
            "known": "at once" if history.known is None else f"every {_duration(history.known)}",
            "up to": "" if history.until is None else _minute(history.until / SECOND),
        }
        for history in schema.histories
    ]


def _is_stale(history: History, moment: int) -> bool:
    if history.until is None:
        return False
    period = history.known or _QUIET
    return bool(history.until < known_at(history, np.array([moment]))[0] - period - history.delay)


def _minute(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


def _about(microseconds: int) -> str:
    """Return a duration of a second or more in whole ones of the largest unit that it has."""
    size = next(size for size in _UNITS.values() if microseconds >= size)
    return _duration(microseconds // size * size)


def _duration(microseconds: int) -> str:
    """Return a duration of whole seconds as recipes write it."""
    unit, size = next((unit, size) for unit, size in _UNITS.items() if microseconds % size == 0)
    return f"{microseconds // size:,}{unit}"
