"""Bodies that were sent compressed: `Content-Encoding: gzip` or `deflate`, as Triton's clients send them."""

import zlib

from serve.errors import RequestError

IDENTITY = "identity"
_ZLIB = frozenset({"gzip", "x-gzip", "deflate"})
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS
_LARGEST_RATIO = 1032
"""Bytes that a byte of a deflated body can become."""


def require_known(encoding: str) -> None:
    """Raise RequestError 415 for an encoding that is not read."""
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
