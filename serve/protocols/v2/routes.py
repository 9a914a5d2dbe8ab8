"""The routes of the Open Inference Protocol, `/v2`."""

from functools import partial
from importlib.metadata import version as installed_version
from typing import Any

from fastapi import APIRouter, Request, Response

from serve.engine.admission import Admission
from serve.errors import RequestError
from serve.models.served_models import ServedModels
from serve.protocols.http import call_of, read_body
from serve.protocols.v2.messages import answer, metadata, parse_infer

_JSON_LENGTH = "Inference-Header-Content-Length"


def routes(models: ServedModels, admission: Admission) -> APIRouter:
    """The routes over `models`."""
    router = APIRouter(prefix="/v2")

    @router.get("")
    async def server() -> dict[str, Any]:
        return {"name": "rayrec", "version": installed_version("rayrec"), "extensions": ["binary_tensor_data"]}

    @router.get("/health/live")
    async def live() -> dict[str, bool]:
        return {"live": True}

    @router.get("/health/ready")
    async def ready() -> dict[str, bool]:
        return {"ready": True}

    async def describe(name: str, version: str | None = None) -> dict[str, Any]:
        model = models.model(name)
        return metadata(name, sorted(model.versions, key=int), model.version(version).predictor)

    async def model_ready(name: str, version: str | None = None) -> dict[str, Any]:
        """A model is listed as soon as a version of it answers; 404 says that none does."""
        return {"name": name, "version": models.model(name).version(version).version, "ready": True}

    async def infer(name: str, request: Request, version: str | None = None) -> Response:
        model = models.model(name)
        chosen = model.version(version)
        call_of(request).answered_by(name, chosen.version, "infer")
        body = await read_body(request, admission.settings)
        max_rows = admission.settings.max_rows_per_request
        parse = partial(parse_infer, body, request.headers.get(_JSON_LENGTH), chosen.predictor, max_rows)
        async with admission.parsed(len(body), len(body), chosen.row_bytes, parse) as asked:
            content, json_length = answer(name, chosen.version, asked, await model.score(chosen, asked.rows))
        if json_length is None:
            return Response(content, media_type="application/json")
        return Response(content, media_type="application/octet-stream", headers={_JSON_LENGTH: str(json_length)})

    async def needs_post() -> Response:
        raise RequestError(405, "use POST", {"Allow": "POST"})

    for prefix in ("/models/{name}", "/models/{name}/versions/{version}"):
        router.add_api_route(prefix, describe, methods=["GET"])
        router.add_api_route(f"{prefix}/ready", model_ready, methods=["GET"])
        router.add_api_route(f"{prefix}/infer", infer, methods=["POST"])
        router.add_api_route(f"{prefix}/infer", needs_post, methods=["GET"])
    return router
