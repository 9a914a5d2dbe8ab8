"""The routes of the V1 protocol: `POST /v1/models/NAME[/versions/VERSION]:VERB`.

A verb is one entry of `VERBS`: a coroutine from the model, the version that was chosen and the body to the answer.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from rayrec.common.errors import UserError
from rayrec.config import ServeConfig
from rayrec.inference.ranker import Ranking
from rayrec.inference.recommender import UnknownUserError
from serve.errors import RequestError
from serve.models.served_models import ServedModel, ServedModels
from serve.models.served_version import Rows, ServedVersion
from serve.protocols.http import call_of, read_body
from serve.protocols.v1 import messages

Verb = Callable[[ServedModel, ServedVersion, bytes, int], Awaitable[bytes]]
"""(model, version, body, most rows or items) -> body of the answer. Raises RequestError."""


async def _predict(model: ServedModel, version: ServedVersion, body: bytes, max_rows: int) -> bytes:
    rows = Rows(messages.parse_instances(body, version.predictor.raw_rows, max_rows))
    return messages.predictions(model.name, version.version, await model.score(version, rows))


async def _recommend(model: ServedModel, version: ServedVersion, body: bytes, max_rows: int) -> bytes:
    if version.recommender is None:
        raise _cannot(model, "scores more than a user and an item: it cannot recommend")
    asked = messages.parse_recommend(body, max_rows)
    recommend = partial(version.recommender.recommend, asked.user, asked.k, exclude_known=asked.exclude_known)
    try:
        best = await version.evaluate(recommend)
    except UnknownUserError as error:
        raise RequestError(404, str(error)) from None
    items = messages.with_scores("item", best.items, best.scores)
    return messages.answer(model.name, version.version, user=asked.user, items=items)


async def _rank(model: ServedModel, version: ServedVersion, body: bytes, max_rows: int) -> bytes:
    if version.ranker is None:
        raise _cannot(model, "has no statistics to look features up in: it cannot rank")
    asked = messages.parse_rank(body, max_rows)
    try:
        rows = await version.evaluate(partial(version.ranker.rows, asked.context, asked.candidates))
    except UserError as error:
        raise RequestError(422, str(error)) from None
    best = Ranking.of(asked.candidates, await model.score(version, Rows(rows)), asked.k)
    candidates = messages.with_scores("candidate", best.candidates, best.scores)
    return messages.answer(model.name, version.version, candidates=candidates)


def _cannot(model: ServedModel, why: str) -> RequestError:
    return RequestError(404, f"model '{model.name}' {why}; use /v1/models/{model.name}:predict")


VERBS: dict[str, Verb] = {"predict": _predict, "recommend": _recommend, "rank": _rank}


def routes(models: ServedModels, settings: ServeConfig) -> APIRouter:
    """The routes over `models`."""
    router = APIRouter(prefix="/v1/models")

    async def call(name: str, verb: str, request: Request, version: str | None = None) -> Response:
        if verb not in VERBS:
            raise RequestError(404, f"no method ':{verb[:100]}'; there are {', '.join(f':{known}' for known in VERBS)}")
        if request.method == "GET":
            raise RequestError(405, "use POST with a JSON body", {"Allow": "POST"})
        model = models.model(name)
        chosen = model.version(version)
        call_of(request).answered_by(name, chosen.version, verb)
        body = await read_body(request, settings)
        answer = await VERBS[verb](model, chosen, body, settings.max_rows_per_request)
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
