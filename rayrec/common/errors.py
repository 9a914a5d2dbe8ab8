"""Errors that are the user's to fix: one line that names the file or field and the fix."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

_MOST_NAMES = 20


class UserError(ValueError):
    """A failure whose message alone tells the user what to change; printed without a traceback, exit code 1."""


class ConfigError(UserError):
    """Wrong usage or configuration, found before any work was done; exit code 2."""


class SmallClusterError(ConfigError):
    """The cluster lacks CPUs or GPUs at present; with more nodes the same would work."""


class PassingError(UserError):
    """A failure of something else than the input; unfinished work can continue once it is over."""


class DiskError(PassingError):
    """A disk is full, read-only, or otherwise not to be written."""


class StoreError(PassingError):
    """A bucket cannot be read or written."""


def first_failure(failures: Mapping[int, tuple[BaseException, Any]], failed: str) -> UserError:
    """Return the error of the first rank that failed in a collective, by rank, each with its stack."""
    error = next(iter(failures.values()))[0]
    return error if isinstance(error, UserError) else UserError(f"{failed}: {error}")


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return a hint for an unknown name: the nearest of the known ones, or else `otherwise` and the first of them."""
    names = list(known)
    # Names come from outside: of one of megabytes the comparison would make a list of as many positions.
    nearest = difflib.get_close_matches(name[:100], names, n=1)
    if nearest:
        return f"did you mean '{nearest[0]}'?"
    return f"{otherwise} {', '.join(names[:_MOST_NAMES])}{', ...' if len(names) > _MOST_NAMES else ''}"
