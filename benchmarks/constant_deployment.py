"""A deployment that returns a constant: what Ray Serve's way takes without anything of rayrec's."""

from typing import Any

from ray import serve as ray_serve
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

_BODY = b'{"predictions": [0.5]}'
_HEADERS = [(b"content-length", str(len(_BODY)).encode()), (b"content-type", b"application/json")]


class _Constant(Starlette):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        await Request(scope, receive).body()
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await send({"type": "http.response.body", "body": _BODY})


@ray_serve.deployment(max_ongoing_requests=512, ray_actor_options={"num_cpus": 0})
@ray_serve.ingress()
class Constant:
    """Answers every request, once it has read its body."""

    def __serve_build_asgi_app__(self) -> Any:
        return _Constant()
