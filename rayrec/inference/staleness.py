"""Says how old the histories of a model are, beside what the rows that it was trained on knew."""

from collections.abc import Sequence
from datetime import UTC, datetime

from rayrec.features.raw_columns import History
from rayrec.features.schema import Schema

_SECOND = 1_000_000
"""Microseconds."""
_QUIET = 3_600 * _SECOND
"""A log may have no events for so long, so that no newer one is no sign of a table that is old."""
_UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}


def known_until(schema: Schema) -> float | None:
    """Return the time up to which every history of a schema knows events, in seconds since 1970; None without any."""
    ends = [lookup.until for lookup in schema.lookups if isinstance(lookup, History) and lookup.until is not None]
    return min(ends) / _SECOND if ends else None


def describe_stale(schema: Schema, now: float) -> str | None:
    """Say which histories end earlier than rows of training ever knew them to end, at a moment `now` in seconds since
    1970; None if none does.

    These are the ones without an event in the last full period of `known`, or without `known` in the last hour; both
    before the delay.
    """
    moment = int(now * _SECOND)
    stale = [lookup for lookup in schema.lookups if isinstance(lookup, History) and _is_stale(lookup, moment)]
    until = known_until(schema)
    if not stale or until is None:
        return None
    names = _listed([repr(history.name) for history in stale])
    known, delay = (max(getattr(history, name) or 0 for history in stale) for name in ("known", "delay"))
    knew = f"all but the last {_duration(known + delay)} at most" if known + delay else "all that had happened"
    return (
        f"{'histories' if stale[1:] else 'history'} {names} {'end' if stale[1:] else 'ends'} at "
        f"{datetime.fromtimestamp(until, UTC):%Y-%m-%d %H:%M} UTC, {_duration(moment - int(until * _SECOND))} ago, but "
        f"rows of train knew {knew}; make the model of newer rows, or say in `known` how old it may be "
        "(docs/histories.md)"
    )


def _is_stale(history: History, moment: int) -> bool:
    if history.until is None:
        return False
    period = history.known or _QUIET
    known = moment if history.known is None else moment // history.known * history.known
    return history.until < known - period - history.delay


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _duration(microseconds: int) -> str:
    """Return a duration of a second or more as recipes write it, in whole ones of the largest unit that it has."""
    seconds = max(microseconds // _SECOND, 1)
    unit, size = next((unit, size) for unit, size in _UNITS.items() if seconds >= size)
    return f"{seconds // size:,}{unit}"
