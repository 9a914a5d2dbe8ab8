"""The HTTP application over the models of a replica; errors are one line of JSON, never a stack trace."""

import logging

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import StarletteHTTPException
from fastapi.responses import JSONResponse

from serve import routes_v1
from serve.protocol import RequestError
from serve.served_models import ServedModels

logger = logging.getLogger("ray.serve.rayrec")


def create_app(models: ServedModels, max_rows: int) -> FastAPI:
    """The application that answers for `models`, whatever they are at the moment of a request."""
    app = FastAPI(title="rayrec", docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(routes_v1.routes(models, max_rows))

    @app.get("/healthz")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.exception_handler(RequestError)
    async def request_error(_: Request, error: RequestError) -> Response:
        return JSONResponse({"error": error.message}, status_code=error.status)

    @app.exception_handler(StarletteHTTPException)
    async def http_error(request: Request, error: StarletteHTTPException) -> Response:
        paths = "POST /v1/models/NAME:predict (or :recommend), GET /v1/models, GET /v1/models/NAME, GET /healthz"
        message = f"{request.method} {request.url.path[:200]}: {error.detail}; there are {paths}"
        return JSONResponse({"error": message}, status_code=error.status_code, headers=error.headers)

    @app.exception_handler(Exception)
    async def internal_error(request: Request, error: Exception) -> Response:
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return JSONResponse({"error": "internal error; the server's log has the details"}, status_code=500)

    return app
