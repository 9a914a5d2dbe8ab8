"""What one mistake of a user is, and the one line that it gets."""

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class BadInput:
    """One mistake, in the folder that `tests.end_to_end.bad_inputs.prepare` makes."""

    title: str
    command: str
    code: int
    message: str
    """The whole line on stderr after `error: `, with the path of the folder left out."""


@dataclass(frozen=True)
class BadRequest:
    """One mistake in an HTTP request to a served model."""

    title: str
    body: str
    status: int
    message: str
    """The `error` of the answer."""
    model: str = "model"
    verb: str = "predict"


def instances(*rows: object) -> str:
    """Return the body of a request for rows."""
    return json.dumps({"instances": rows})
