"""The routes of the V1 protocol: `POST /v1/models/NAME[/versions/VERSION]:VERB`.

A verb is one entry of `VERBS`: a coroutine from the model, the version that was chosen and the body to the answer.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Request, Response

from rayrec.common.errors import UserError
from rayrec.inference.ranker import Ranking
from rayrec.inference.recommender import UnknownUserError
from serve.body import read_body
from serve.gate import Limits, note_served_by
from serve.protocol import (
    RequestError,
    parse_instances,
    parse_rank,
    parse_recommend,
    predictions,
    ranked_ads,
    recommendations,
)
from serve.served_models import ServedModel, ServedModels
from serve.served_version import Rows, ServedVersion

Verb = Callable[[ServedModel, ServedVersion, bytes, int], Awaitable[bytes]]
"""(model, version, body, most rows or items) -> body of the answer. Raises RequestError."""


async def _predict(model: ServedModel, version: ServedVersion, body: bytes, max_rows: int) -> bytes:
    rows = Rows(parse_instances(body, version.predictor.raw_rows, max_rows))
    scores = await model.score(version, rows)
    return predictions(model.name, version.version, scores)


async def _recommend(model: ServedModel, version: ServedVersion, body: bytes, max_rows: int) -> bytes:
    if not version.recommends:
        raise RequestError(404, f"model '{model.name}' scores more than a user and an item: it cannot recommend; "
                                f"use /v1/models/{model.name}:predict")  # fmt: skip
    asked = parse_recommend(body, max_rows)
    try:
        best = await version.recommend(asked)
    except UnknownUserError as error:
        raise RequestError(404, str(error)) from None
    return recommendations(model.name, version.version, asked.user, best.items, best.scores)


async def _rank(model: ServedModel, version: ServedVersion, body: bytes, max_rows: int) -> bytes:
    if not version.ranks:
        raise RequestError(404, f"model '{model.name}' has no statistics to look features up in: it cannot rank; "
                                f"use /v1/models/{model.name}:predict")  # fmt: skip
    asked = parse_rank(body, max_rows)
    try:
        rows = await version.rows_to_rank(asked)
    except UserError as error:
        raise RequestError(422, str(error)) from None
    best = Ranking.of(asked.ads, await model.score(version, rows), asked.k)
    return ranked_ads(model.name, version.version, best.candidates, best.scores)


VERBS: dict[str, Verb] = {"predict": _predict, "recommend": _recommend, "rank": _rank}


def routes(models: ServedModels, limits: Limits) -> APIRouter:
    """The routes over `models`."""
    router = APIRouter(prefix="/v1/models")

    async def call(name: str, verb: str, request: Request, version: str | None = None) -> Response:
        if verb not in VERBS:
            raise RequestError(404, f"no method ':{verb[:100]}'; there are {', '.join(f':{known}' for known in VERBS)}")
        if request.method == "GET":
            raise RequestError(405, "use POST with a JSON body", {"Allow": "POST"})
        model = models.model(name)
        chosen = model.version(version)
        note_served_by(request.scope, name, chosen.version, verb)
        body = await read_body(request, limits.max_body_bytes)
        answer = await VERBS[verb](model, chosen, body, limits.max_rows)
        return Response(answer, media_type="application/json")

    router.add_api_route("/{name}:{verb}", call, methods=["GET", "POST"])
    router.add_api_route("/{name}/versions/{version}:{verb}", call, methods=["GET", "POST"])

    @router.get("")
    async def names() -> dict[str, list[str]]:
        return {"models": sorted(models.current)}

    @router.get("/{name}")
    async def model(name: str) -> dict[str, Any]:
        served = models.model(name)
        return {**_described(name, served.version()), "versions": served.describe()}

    @router.get("/{name}/versions/{version}")
    async def version(name: str, version: str) -> dict[str, Any]:
        return _described(name, models.model(name).version(version))

    return router


def _described(name: str, version: ServedVersion) -> dict[str, Any]:
    return {
        "name": name,
        "version": version.version,
        "ready": True,
        "recipe": version.predictor.recipe.name,
        "metrics": version.predictor.metrics,
        "schema": version.predictor.schema.model_dump(mode="json"),
    }
