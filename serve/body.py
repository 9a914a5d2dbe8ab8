"""The body of a request, read no further than the limit."""

from fastapi import Request

from serve.protocol import RequestError

MAX_BODY_BYTES = 64 * 2**20
"""Of one request; beyond it the answer is 413."""


async def read_body(request: Request) -> bytes:
    """The whole body. Raises RequestError 413 where it is too large."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise RequestError(413, f"the body is larger than {MAX_BODY_BYTES // 2**20} MiB; send several requests")
    return bytes(body)
