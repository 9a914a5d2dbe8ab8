"""The HTTP application over the models of a replica; errors are one line of JSON, never a stack trace."""

import asyncio
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from serve.engine.admission import Admission
from serve.errors import RequestError
from serve.models.served_models import ServedModels
from serve.models.updates import Updates
from serve.openapi import document
from serve.operations.history import figures
from serve.operations.metrics import of_all_nodes
from serve.operations.refused import refused_requests
from serve.protocols import v1
from serve.protocols.http import Gate, below, error_response
from serve.protocols.v2 import repository
from serve.protocols.v2 import routes as v2

# The page contains its style and script, and talks to this server alone.
_PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# What a proxy in front may say that it took away.
_PREFIX = re.compile(r"(/[\w.~%-]+)+/?", re.ASCII)


class Application(Starlette):
    """An application that answers requests for scores before its middleware and routes do."""

    def __init__(self, predict: ASGIApp, root_path: str, **arguments: Any) -> None:
        """`predict` answers what `v1.asked_to_predict` describes; paths may begin with `root_path`."""
        super().__init__(**arguments)
        self._predict, self._root_path = predict, root_path
        # It would lead to a URL without the prefix that a proxy took away.
        self.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope = below(self._root_path, scope)
        if v1.asked_to_predict(scope) is not None:
            await self._predict(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def create_app(
    models: ServedModels, admission: Admission, updates: Updates, read_history: Callable[[], list[bytes]]
) -> Starlette:
    """Make the application that answers for `models`, whatever they are at the moment of a request.

    `read_history` returns the records of all replicas (`serve.operations.history`).
    """
    page = Path(__file__).with_name("playground.html").read_bytes()

    async def playground(_: Request) -> Response:
        return Response(page, media_type="text/html", headers={"Content-Security-Policy": _PAGE_POLICY})

    async def openapi(request: Request) -> Response:
        given = request.headers.get("X-Forwarded-Prefix", "")
        prefix = given.rstrip("/") if _PREFIX.fullmatch(given) else admission.root_path
        return JSONResponse(document(models, admission.settings.max_rows_per_request, prefix))

    async def metrics(_: Request) -> Response:
        counted = await asyncio.gather(asyncio.to_thread(of_all_nodes), asyncio.to_thread(refused_requests))
        return PlainTextResponse(b"".join(counted))

    async def history(_: Request) -> Response:
        records = await asyncio.to_thread(read_history)
        served = {name: model for name, model in models.current.items() if model.weights}
        references = {
            name: {version: loaded.statistics.references for version, loaded in model.versions.items()}
            for name, model in served.items()
        }
        found = figures(records, time.time(), references)
        for name, model in served.items():
            found["models"][name] |= {"states": model.describe(), "recipe": model.version().predictor.recipe.name}
        return JSONResponse({**found, "absent": dict(models.absent)})

    async def health(_: Request) -> Response:
        models.require_ready()
        return JSONResponse({"status": "ok"})

    async def request_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestError)
        return error_response(error)

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        paths = "POST /v1/models/NAME:predict (or :recommend), POST /v2/models/NAME/infer, GET /v1/models, GET /healthz"
        message = f"{request.method} {request.url.path[:200]}: {error.detail}; there are {paths}"
        return error_response(RequestError(error.status_code, message, error.headers))

    return Application(
        Gate(v1.predict_app(models, admission), admission),
        admission.root_path,
        # The first route that fits answers: most requests are for scores.
        routes=[
            *v1.routes(models, admission),
            *v2.routes(models, admission),
            *repository.routes(admission, updates),
            Route("/", playground),
            Route("/openapi.json", openapi),
            Route("/metrics", metrics),
            Route("/history.json", history),
            Route("/healthz", health),
        ],
        middleware=[Middleware(Gate, admission=admission)],
        exception_handlers={RequestError: request_error, HTTPException: http_error},
    )
