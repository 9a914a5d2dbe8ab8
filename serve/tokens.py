"""API tokens that requests must have, from a file or the environment, never from a command line.

The word `admin` after a token lets its holder load and unload models.

Only their SHA-256 leaves the process that read them, so they are in no log and no state of Ray. Imports no Ray.
"""

import hashlib
import hmac
import os
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path

from rayrec.common.errors import ConfigError, UserError

TOKENS_VARIABLE = "RAYREC_SERVE_TOKENS"
_SHORTEST = 16
_ADMIN = "admin"


def read_token(file: Path | None, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the first token, for a client; None if neither is given. Raises as `read_tokens`."""
    return next(iter(_tokens(file, environment)), None)


def read_tokens(file: Path | None, environment: Mapping[str, str] = os.environ) -> dict[str, bool]:
    """Return SHA-256 (hexadecimal) of the tokens in `file`, one a line, or else in the variable, separated by commas;
    and whether each is an administrator's.

    Empty if neither is given: then everybody may ask. Raises UserError if the file cannot be read or has no token,
    ConfigError if the variable has none, or a token is short enough to be guessed.
    """
    return {_digest(token): is_admin for token, is_admin in _tokens(file, environment).items()}


def _tokens(file: Path | None, environment: Mapping[str, str]) -> dict[str, bool]:
    """Return whether each token is an administrator's."""
    if file is not None:
        try:
            words = file.read_text().split()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{file}: cannot read tokens ({type(error).__name__}); write one a line") from None
        source = str(file)
    else:
        words = environment.get(TOKENS_VARIABLE, "").replace(",", " ").split()
        source = TOKENS_VARIABLE
    tokens = {word: following == _ADMIN for word, following in pairwise([*words, ""]) if word != _ADMIN}
    if not tokens and file is not None:
        raise UserError(f"{file}: contains no token; write one a line")
    if not tokens and TOKENS_VARIABLE in environment:
        # Of a Secret that was made by a command that failed, for one: nobody meant to open the server by it.
        raise ConfigError(f"{TOKENS_VARIABLE}: contains no token; separate several by commas, or unset it")
    if any(len(token) < _SHORTEST for token in tokens):
        raise ConfigError(
            f"{source}: a token of fewer than {_SHORTEST} characters; make one with `openssl rand -hex 24`"
        )
    return tokens


def is_allowed(authorization: str | None, tokens: Mapping[str, bool]) -> bool:
    """Return whether the header `Authorization: Bearer TOKEN` has one of `tokens`; always, if there are none."""
    return not tokens or _has_one(authorization, tokens)


def is_admin(authorization: str | None, tokens: Mapping[str, bool]) -> bool:
    """Tell if the header has a token that is an administrator's; never, if there are none."""
    return _has_one(authorization, [token for token, is_admin in tokens.items() if is_admin])


def _has_one(authorization: str | None, tokens: Iterable[str]) -> bool:
    scheme, _, token = (authorization or "").partition(" ")
    digest = _digest(token.strip())
    # All are compared, each in constant time, so that the time reveals nothing.
    matches = [hmac.compare_digest(digest, known) for known in tokens]
    return scheme.lower() == "bearer" and any(matches)


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()
