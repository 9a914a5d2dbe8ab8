"""Shared part of all protocols: the error that a client is shown, and bodies that are JSON or compressed.

Ray Serve's proxies import this module, so it imports neither Arrow nor a model.
"""

import codecs
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import pydantic_core
from pydantic import BaseModel, ConfigDict, ValidationError, WithJsonSchema

from rayrec.common.errors import UserError

CLIENT_LEFT = 499
"""The status, as nginx has it, of a request whose client went away before the answer."""
MOST_VALUES = 2**20
"""Objects, lists and values that a request may have, of which each takes up to 170 bytes once it is parsed; numbers and
strings that are sent as bytes are not among them."""

IDENTITY = "identity"
_ZLIB = frozenset({"gzip", "x-gzip", "deflate"})
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS
_LARGEST_RATIO = 1032
"""Bytes that a byte of a deflated body can become."""


MOST = "$most"
"""Stands in declarations of bodies for the most rows, items or candidates of a request."""


class RequestError(Exception):
    """A request that cannot be answered: its HTTP status, one line for the client, and headers of the answer."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers


@contextmanager
def content_errors() -> Iterator[None]:
    """Raise RequestError 422 for a UserError of the block, which is about what the request holds."""
    try:
        yield
    except UserError as error:
        raise RequestError(422, str(error)) from None


def parse_json(body: bytes, example: str) -> Any:
    """Return the value of a body. Raises RequestError: 400 unless it is JSON, 413 if it is of too many values.

    An empty body is answered with `example`.
    """
    if not body:
        raise RequestError(400, f"the body is empty; send {example}")
    # Before there is an object for each of them. Commas in strings count too: nobody sends a million of these.
    if (values := sum(map(body.count, (b",", b"{", b"[")))) > MOST_VALUES:
        raise RequestError(413, f"the body has {values} values, at most {MOST_VALUES} a request; send several requests")
    try:
        return pydantic_core.from_json(body.removeprefix(codecs.BOM_UTF8), allow_inf_nan=False)
    except ValueError as error:
        raise RequestError(400, f"the body is not valid JSON: {error}") from None


class Body(BaseModel):
    """Base of the bodies of requests; the docstring of a field says what it must be, to clients and in their errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)


BodyT = TypeVar("BodyT", bound=Body)


def of_model(component: str) -> WithJsonSchema:
    """Annotate a value whose JSON schema depends on the model that is asked; `serve.openapi` has the components."""
    return WithJsonSchema({"$model": component})


def parse_body(kind: type[BodyT], body: bytes, most: int) -> BodyT:
    """Return the content of a request of at most `most` rows, items or candidates.

    Raises RequestError: 400 not JSON, 413 too many values, 422 wrong content.
    """
    keys = ", ".join(kind.model_fields)
    content = parse_json(body, f"an object with {keys}")
    if not isinstance(content, dict):
        raise RequestError(422, f"the body must be an object with {keys}, not another value")
    # Before pydantic makes an error of each of a million.
    for key in content:
        if key not in kind.model_fields:
            raise RequestError(422, f"unknown key '{key[:100]}'; there are {keys}")
    try:
        return kind.model_validate(content, context={"most": most})
    except ValidationError as error:
        key = str(error.errors(include_url=False, include_context=False, include_input=False)[0]["loc"][0])
        described = (kind.model_fields[key].description or "").replace(MOST, str(most))
        raise RequestError(422, f"{key}: must be {described}") from None


def require_known_encoding(encoding: str) -> None:
    """Raise RequestError 415 for a `Content-Encoding` other than gzip and deflate, as Triton's clients send them."""
    if encoding != IDENTITY and encoding not in _ZLIB:
        raise RequestError(415, f"Content-Encoding '{encoding[:50]}': send gzip, deflate, or the body as it is")


def most_bytes(size: int, limit: int) -> int:
    """Return the most bytes that `inflated` makes of a compressed body of `size` bytes."""
    return min(limit, size * _LARGEST_RATIO)


def inflated(body: bytes, limit: int) -> bytes:
    """Return a body as it was before it was compressed.

    Raises RequestError: 400 not whole, or not compressed; 413 more than `limit` bytes, of which no more are made.
    """
    inflater = zlib.decompressobj(_GZIP_OR_ZLIB)
    try:
        content = inflater.decompress(body, limit + 1)
    except zlib.error as error:
        raise RequestError(400, f"the body is not what its Content-Encoding says: {error}") from None
    if len(content) > limit:
        raise RequestError(413, f"the body inflates to more than {limit / 2**20:g} MiB; send several requests")
    if not inflater.eof or inflater.unused_data:
        raise RequestError(400, f"the compressed body {'goes on after its end' if inflater.eof else 'ends too early'}")
    return content
