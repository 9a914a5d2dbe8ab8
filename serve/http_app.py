"""The HTTP routes, as a FastAPI application over any scorer; errors are one line of JSON, never a stack trace."""

import logging
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import StarletteHTTPException
from fastapi.responses import JSONResponse
from numpy.typing import NDArray

from rayrec.inference.predictor import Predictor
from rayrec.inference.recommender import Recommendations, UnknownUserError
from serve.protocol import (
    MAX_BODY_BYTES,
    RecommendRequest,
    RequestError,
    parse_instances,
    parse_recommend,
    predictions,
    recommendations,
    unknown_model,
)

logger = logging.getLogger(__name__)


class Scorer(Protocol):
    """Scores the checked rows of one request, maybe together with those of others."""

    async def __call__(self, rows: pa.RecordBatch) -> NDArray[np.float32]: ...


class Recommend(Protocol):
    """Ranks the items of one model for a user, off the event loop."""

    async def __call__(self, request: RecommendRequest) -> Recommendations: ...


def create_app(
    predictors: Mapping[str, Predictor],
    scorers: Mapping[str, Scorer],
    recommenders: Mapping[str, Recommend],
    max_rows: int,
) -> FastAPI:
    """The application that serves `predictors` by name, each through the scorer of the same name.

    Those with a recommender, models of users and items, also recommend.
    """
    app = FastAPI(title="rayrec", docs_url=None, redoc_url=None, openapi_url=None)

    def predictor_of(name: str) -> Predictor:
        if name not in predictors:
            raise unknown_model(name, predictors)
        return predictors[name]

    @app.post("/v1/models/{name}:predict")
    async def predict(name: str, request: Request) -> Response:
        predictor = predictor_of(name)
        rows = parse_instances(await _body(request), predictor.raw_rows, max_rows)
        scores = await scorers[name](rows)
        if not np.isfinite(scores).all():
            bad = int(np.flatnonzero(~np.isfinite(scores))[0])
            raise RequestError(422, f"row {bad}: its values are so large that the score is not a number")
        return Response(predictions(name, scores), media_type="application/json")

    @app.post("/v1/models/{name}:recommend")
    async def recommend(name: str, request: Request) -> Response:
        predictor_of(name)
        if name not in recommenders:
            raise RequestError(404, f"model '{name}' scores more than a user and an item: it cannot recommend; "
                               f"use /v1/models/{name}:predict")  # fmt: skip
        asked = parse_recommend(await _body(request), max_rows)
        try:
            best = await recommenders[name](asked)
        except UnknownUserError as error:
            raise RequestError(404, str(error)) from None
        return Response(recommendations(name, asked.user, best.items, best.scores), media_type="application/json")

    @app.get("/v1/models/{name}:predict")
    @app.get("/v1/models/{name}:recommend")
    async def needs_post(name: str) -> Response:
        error = "use POST with a JSON body"
        return JSONResponse({"error": error}, status_code=405, headers={"Allow": "POST"})

    @app.get("/v1/models")
    async def models() -> dict[str, list[str]]:
        return {"models": sorted(predictors)}

    @app.get("/v1/models/{name}")
    async def model(name: str) -> dict[str, Any]:
        predictor = predictor_of(name)
        return {
            "name": name,
            "ready": True,
            "recipe": predictor.recipe.name,
            "metrics": predictor.metrics,
            "schema": predictor.schema.model_dump(mode="json"),
        }

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


async def _body(request: Request) -> bytes:
    """The body, read no further than the limit."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise RequestError(413, f"the body is larger than {MAX_BODY_BYTES // 2**20} MiB; send several requests")
    return bytes(body)
