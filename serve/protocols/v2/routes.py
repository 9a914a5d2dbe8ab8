"""The routes of the Open Inference Protocol, `/v2`."""

from functools import partial
from importlib.metadata import version as installed_version

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from serve.engine.admission import Admission
from serve.errors import RequestError
from serve.models.served_models import ServedModel, ServedModels
from serve.models.served_version import ServedVersion
from serve.protocols.http import call_of, read_body
from serve.protocols.v2.messages import EXTENSIONS, answer, metadata, parse_infer

_JSON_LENGTH = "Inference-Header-Content-Length"


def routes(models: ServedModels, admission: Admission) -> list[Route]:
    """Return the routes over `models`."""

    async def server(_: Request) -> Response:
        about = {"name": "rayrec", "version": installed_version("rayrec"), "extensions": EXTENSIONS}
        return JSONResponse(about)

    async def live(_: Request) -> Response:
        return JSONResponse({"live": True})

    async def ready(_: Request) -> Response:
        models.require_ready()
        return JSONResponse({"ready": True})

    async def describe(request: Request) -> Response:
        name, model, version = asked(request)
        return JSONResponse(metadata(name, sorted(model.versions, key=int), version.predictor))

    async def model_ready(request: Request) -> Response:
        """Answer 200 as soon as a version of the model answers, else 404."""
        name, _, version = asked(request)
        return JSONResponse({"name": name, "version": version.version, "ready": True})

    async def infer(request: Request) -> Response:
        if request.method != "POST":
            raise RequestError(405, "use POST", {"Allow": "POST"})
        name, model, chosen = asked(request)
        call_of(request).answered_by(name, chosen.version, "infer")
        body = await read_body(request, admission)
        max_rows = admission.settings.max_rows_per_request
        parse = partial(parse_infer, body, request.headers.get(_JSON_LENGTH), chosen.predictor, max_rows)
        async with admission.parsed(len(body), len(body), chosen.row_bytes, parse) as asked_for:
            content, json_length = answer(name, chosen.version, asked_for, await model.score(chosen, asked_for.rows))
        if json_length is None:
            return Response(content, media_type="application/json")
        return Response(content, media_type="application/octet-stream", headers={_JSON_LENGTH: str(json_length)})

    def asked(request: Request) -> tuple[str, ServedModel, ServedVersion]:
        """Return the model that a path names, and the version that answers.

        Raises RequestError 404 if there is none.
        """
        name = request.path_params["name"]
        model = models.model(name)
        return name, model, model.version(request.path_params.get("version"))

    return [
        Route("/v2", server),
        Route("/v2/health/live", live),
        Route("/v2/health/ready", ready),
        *(
            Route(f"/v2/models/{{name}}{version}{path}", endpoint, methods=methods)
            for version in ("", "/versions/{version}")
            for path, endpoint, methods in (
                ("", describe, ["GET"]),
                ("/ready", model_ready, ["GET"]),
                ("/infer", infer, ["GET", "POST"]),
            )
        ),
    ]
