"""The HTTP application over the models of a replica; errors are one line of JSON, never a stack trace."""

import logging
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import StarletteHTTPException
from fastapi.responses import JSONResponse

from serve import routes_v1, routes_v2
from serve.gate import Gate, Limits
from serve.json_log import JsonLog
from serve.metrics import ServingMetrics
from serve.openapi import document
from serve.protocol import RequestError
from serve.served_models import ServedModels

logger = logging.getLogger("ray.serve.rayrec")

# The page has its style and script in itself, and talks to this server alone.
_PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def create_app(
    models: ServedModels,
    limits: Limits,
    tokens: frozenset[str],
    metrics: ServingMetrics,
    access_log: JsonLog | None = None,
) -> FastAPI:
    """The application that answers for `models`, whatever they are at the moment of a request.

    `tokens` are what `read_tokens` gives.
    """
    app = FastAPI(title="rayrec", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Gate, limits=limits, tokens=tokens, metrics=metrics, access_log=access_log)
    app.include_router(routes_v1.routes(models, limits))
    app.include_router(routes_v2.routes(models, limits))

    page = (Path(__file__).parent / "playground.html").read_bytes()

    @app.get("/")
    async def playground() -> Response:
        return Response(page, media_type="text/html", headers={"Content-Security-Policy": _PAGE_POLICY})

    @app.get("/openapi.json")
    async def openapi() -> dict[str, Any]:
        return document(models, limits.max_rows, tuple(routes_v1.VERBS))

    @app.get("/healthz")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.exception_handler(RequestError)
    async def request_error(_: Request, error: RequestError) -> Response:
        return JSONResponse({"error": error.message}, status_code=error.status, headers=error.headers)

    @app.exception_handler(StarletteHTTPException)
    async def http_error(request: Request, error: StarletteHTTPException) -> Response:
        paths = "POST /v1/models/NAME:predict (or :recommend), POST /v2/models/NAME/infer, GET /v1/models, GET /healthz"
        message = f"{request.method} {request.url.path[:200]}: {error.detail}; there are {paths}"
        return JSONResponse({"error": message}, status_code=error.status_code, headers=error.headers)

    @app.exception_handler(Exception)
    async def internal_error(request: Request, error: Exception) -> Response:
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return JSONResponse({"error": "internal error; the server's log has the details"}, status_code=500)

    return app
