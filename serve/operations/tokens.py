"""API tokens that requests must have, from a file or the environment, never from a command line.

Only their SHA-256 leaves the process that read them, so they are in no log and no state of Ray. Imports no Ray.
"""

import hashlib
import hmac
import os
from collections.abc import Mapping
from pathlib import Path

from rayrec.common.errors import ConfigError, UserError

TOKENS_VARIABLE = "RAYREC_SERVE_TOKENS"
_SHORTEST = 16


def read_token(file: Path | None, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the first token, for a client; None if neither is given. Raises as `read_tokens`."""
    return next(iter(_tokens(file, environment)), None)


def read_tokens(file: Path | None, environment: Mapping[str, str] = os.environ) -> frozenset[str]:
    """SHA-256 (hexadecimal) of the tokens in `file`, one a line, or else in the variable, separated by commas.

    Empty if neither is given: then everybody may ask. Raises UserError if the file cannot be read or has no token,
    ConfigError if the variable has none, or a token is short enough to be guessed.
    """
    return frozenset(_digest(token) for token in _tokens(file, environment))


def _tokens(file: Path | None, environment: Mapping[str, str]) -> list[str]:
    if file is not None:
        try:
            found = file.read_text().split()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{file}: cannot read tokens ({type(error).__name__}); write one a line") from None
        if not found:
            raise UserError(f"{file}: no token in it; write one a line")
        source = str(file)
    else:
        found = [token.strip() for token in environment.get(TOKENS_VARIABLE, "").split(",") if token.strip()]
        if not found and TOKENS_VARIABLE in environment:
            # Of a Secret that was made by a command that failed, for one: nobody meant to open the server by it.
            raise ConfigError(f"{TOKENS_VARIABLE}: no token in it; separate several by commas, or unset it")
        source = TOKENS_VARIABLE
    if any(len(token) < _SHORTEST for token in found):
        raise ConfigError(
            f"{source}: a token of fewer than {_SHORTEST} characters; make one with `openssl rand -hex 24`"
        )
    return found


def is_allowed(authorization: str | None, tokens: frozenset[str]) -> bool:
    """Whether the header `Authorization: Bearer TOKEN` has one of `tokens`; always, if there are none."""
    if not tokens:
        return True
    scheme, _, token = (authorization or "").partition(" ")
    digest = _digest(token.strip())
    # All are compared, each in constant time, so that the time reveals nothing.
    matches = [hmac.compare_digest(digest, known) for known in tokens]
    return scheme.lower() == "bearer" and any(matches)


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()
