"""The body of a request, read no further than the limit."""

from fastapi import Request

from serve.gate import too_large
from serve.protocol import RequestError


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The whole body. Raises RequestError: 413 where it is too large, 415 where it is compressed."""
    encoding = request.headers.get("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        raise RequestError(415, f"Content-Encoding '{encoding[:50]}': send the body as it is")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise too_large(max_bytes)
    return bytes(body)
