"""The HTTP application over the models of a replica; errors are one line of JSON, never a stack trace."""

from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import StarletteHTTPException

from serve.engine.admission import Admission
from serve.errors import RequestError
from serve.models.served_models import ServedModels
from serve.openapi import document
from serve.protocols import v1
from serve.protocols.http import Gate, error_response
from serve.protocols.v2 import routes as v2

# The page contains its style and script, and talks to this server alone.
_PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def create_app(models: ServedModels, admission: Admission) -> FastAPI:
    """The application that answers for `models`, whatever they are at the moment of a request."""
    app = FastAPI(title="rayrec", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Gate, admission=admission)
    app.include_router(v1.routes(models, admission))
    app.include_router(v2.routes(models, admission))

    page = Path(__file__).with_name("playground.html").read_bytes()

    @app.get("/")
    async def playground() -> Response:
        return Response(page, media_type="text/html", headers={"Content-Security-Policy": _PAGE_POLICY})

    @app.get("/openapi.json")
    async def openapi() -> dict[str, Any]:
        return document(models, admission.settings.max_rows_per_request)

    @app.get("/healthz")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.exception_handler(RequestError)
    async def request_error(_: Request, error: RequestError) -> Response:
        return error_response(error)

    @app.exception_handler(StarletteHTTPException)
    async def http_error(request: Request, error: StarletteHTTPException) -> Response:
        paths = "POST /v1/models/NAME:predict (or :recommend), POST /v2/models/NAME/infer, GET /v1/models, GET /healthz"
        message = f"{request.method} {request.url.path[:200]}: {error.detail}; there are {paths}"
        return error_response(RequestError(error.status_code, message, error.headers))

    return app
