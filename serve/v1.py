"""The V1 inference protocol of KServe and TensorFlow Serving, with raw features as instances.

    POST /v1/models/NAME:predict   {"instances": [{"I1": 3, "C1": "68fd1e64"}, ...]}   or one such object alone
                                   -> {"model": "NAME", "version": "1", "predictions": [0.0312, ...]}
    POST /v1/models/NAME:recommend {"user": "42", "k": 10, "exclude_known": true}      for a model of users and items
                                   -> {"model": "NAME", "version": "1", "user": "42",
                                       "items": [{"item": "318", "score": 0.97}, ...]}
    POST /v1/models/NAME:rank      {"context": {"platform": 3, ...}, "candidates": [42337, 139684, ...], "k": 5}
                                   -> {"model": "NAME", "version": "1",
                                       "candidates": [{"candidate": 42337, "score": 0.31}, ...]}
                                   candidates are ids of what the model looks up, or objects of raw features
    POST /v1/models/NAME:explain   {"instances": [{"I1": 3, "C1": "68fd1e64"}]}, as for :predict, a few rows at most
                                   -> {"model": "NAME", "version": "1", "explanations": [{"score": 0.0312,
                                       "logit": -3.44, "base": -1.68, "parts": {"I1": -0.93, ...}}]}

`:predict` also takes an Arrow IPC stream of raw columns, and then answers with one (`serve.arrow`). A version is named
by /v1/models/NAME/versions/VERSION:predict. Every error is {"error": "one line"} with its status.

A verb is a function from the version that is asked and the body to the body of the answer; `VERBS` has them by name.
"""

import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rayrec.inference.ranker import Ranking
from rayrec.inference.raw_rows import RawRows
from rayrec.inference.recommender import UnknownUserError
from serve import arrow
from serve.admission import Admission
from serve.http import Route, call_of, headers_of, read_body
from serve.requests import RequestError, content_errors, parse_json
from serve.served_models import ServedModel, ServedModels
from serve.served_version import RequestRows, ServedVersion

MOST_EXPLAINED = 8
"""Rows that a request may have explained: one takes as long as thousands of scores."""

_JSON = json.JSONEncoder(allow_nan=False)
Verb = Callable[[ServedModel, ServedVersion, bytes, Admission], Awaitable[bytes]]
"""(model, version, body, admission) -> body of the answer. Raises RequestError."""


def routes(models: ServedModels, admission: Admission) -> list[Route]:
    """Return the routes over `models`."""

    async def call(request: Request) -> Response:
        verb = request.path_params["verb"]
        if verb not in VERBS:
            raise RequestError(404, f"no method ':{verb[:100]}'; there are {', '.join(f':{known}' for known in VERBS)}")
        # The version that answers is chosen once: a request keeps it, whatever is loaded meanwhile.
        model = models.model(request.path_params["name"])
        version = model.version(request.path_params.get("version"))
        call_of(request).answered_by(model.name, version.version, verb)
        given = headers_of(request.scope).get(b"content-type", b"").decode("latin-1")
        is_arrow = given.partition(";")[0].strip().lower() == arrow.MEDIA_TYPE
        if is_arrow and verb != "predict":
            raise RequestError(415, f"':{verb}' takes JSON; send Arrow to :predict")
        body = await read_body(request, admission)
        answer = _predict_columns if is_arrow else VERBS[verb]
        content = await answer(model, version, body, admission)
        return Response(content, media_type=arrow.MEDIA_TYPE if is_arrow else "application/json")

    async def names(_: Request) -> Response:
        return JSONResponse({"models": sorted(models.current)})

    async def about_model(request: Request) -> Response:
        model = models.model(request.path_params["name"])
        return JSONResponse({**_about(model.name, model.version()), "versions": model.states()})

    async def about_version(request: Request) -> Response:
        model = models.model(request.path_params["name"])
        return JSONResponse(_about(model.name, model.version(request.path_params["version"])))

    return [
        Route("/v1/models/{name}:{verb}", call, "POST"),
        Route("/v1/models/{name}/versions/{version}:{verb}", call, "POST"),
        Route("/v1/models", names),
        Route("/v1/models/{name}", about_model),
        Route("/v1/models/{name}/versions/{version}", about_version),
    ]


def _about(name: str, version: ServedVersion) -> dict[str, Any]:
    return {
        "name": name,
        "version": version.version,
        "ready": True,
        "recipe": version.predictor.recipe.name,
        "metrics": version.predictor.metrics,
        "schema": version.predictor.schema.model_dump(mode="json"),
    }


async def _predict(model: ServedModel, version: ServedVersion, body: bytes, admission: Admission) -> bytes:
    max_rows = admission.settings.max_rows_per_request
    parse = partial(parse_instances, body, version.predictor.raw_rows, max_rows)
    # Every row is an object. Who sends few rows is not to wait with those who send many.
    async with admission.parsed(len(body), body.count(b"{"), version.row_bytes, parse) as rows:
        return predictions(model.name, version.version, await model.score(version, rows))


async def _predict_columns(model: ServedModel, version: ServedVersion, body: bytes, admission: Admission) -> bytes:
    """Answer `:predict` for an Arrow stream with another one."""
    max_rows = admission.settings.max_rows_per_request
    parse = partial(arrow.parse_columns, body, version.predictor.raw_rows, max_rows)
    async with admission.parsed(len(body), max_rows, version.row_bytes, parse, arrow.AT_ONCE_BYTES) as columns:
        scores = await model.score(version, RequestRows(columns))
        return arrow.scores_stream(model.name, version.version, scores)


async def _recommend(model: ServedModel, version: ServedVersion, body: bytes, admission: Admission) -> bytes:
    if version.recommender is None:
        raise _cannot(model, "needs more features than a user and an item, so it cannot recommend")
    parse = partial(parse_recommend, body, admission.settings.max_rows_per_request)
    async with admission.parsed(len(body), 0, 0, parse) as asked:
        recommend = partial(version.recommender.recommend, asked.user, asked.k, exclude_known=asked.exclude_known)
        try:
            best = await version.evaluate(recommend)
        except UnknownUserError as error:
            raise RequestError(404, str(error)) from None
    items = _with_scores("item", best.items, best.scores)
    return _answer(model.name, version.version, user=asked.user, items=items)


async def _rank(model: ServedModel, version: ServedVersion, body: bytes, admission: Admission) -> bytes:
    parse = partial(parse_rank, body, admission.settings.max_rows_per_request)
    async with admission.parsed(len(body), len(body), version.row_bytes, parse) as asked:
        with content_errors():
            columns = await version.evaluate(partial(version.ranker.rows, asked.context, asked.candidates))
        best = Ranking.of(asked.candidates, await model.score(version, RequestRows(columns)), asked.k)
    candidates = _with_scores("candidate", best.candidates, best.scores)
    return _answer(model.name, version.version, candidates=candidates)


async def _explain(model: ServedModel, version: ServedVersion, body: bytes, admission: Admission) -> bytes:
    if version.explainer is None:
        raise _cannot(model, "was exported without reference rows, so it cannot explain")
    max_rows = min(MOST_EXPLAINED, admission.settings.max_rows_per_request)
    parse = partial(parse_instances, body, version.predictor.raw_rows, max_rows)
    async with admission.parsed(len(body), max_rows, version.row_bytes, parse) as rows:
        explanations = await version.explain(rows.batch())
    return _answer(model.name, version.version, explanations=list(map(asdict, explanations)))


VERBS: dict[str, Verb] = {"predict": _predict, "recommend": _recommend, "rank": _rank, "explain": _explain}


def _cannot(model: ServedModel, why: str) -> RequestError:
    return RequestError(404, f"model '{model.name}' {why}; use /v1/models/{model.name}:predict")


def predictions(model: str, version: str, scores: NDArray[np.float32]) -> bytes:
    """Return the body of an answer with (n,) scores; their digits are those of the float32 values."""
    return _answer(model, version, predictions=scores.tolist())


def _answer(model: str, version: str, **content: Any) -> bytes:
    return _JSON.encode({"model": model, "version": version, **content}).encode()


def _with_scores(kind: str, ids: Iterable[Any], scores: NDArray[np.float32]) -> list[dict[str, Any]]:
    return [{kind: id_, "score": score} for id_, score in zip(ids, scores.tolist(), strict=True)]


@dataclass(frozen=True)
class RecommendRequest:
    """The user to recommend items to, and how many."""

    user: str
    k: int
    exclude_known: bool


@dataclass(frozen=True)
class RankRequest:
    """A context and the candidates to rank in it; the ranker checks their values."""

    context: dict[str, Any]
    candidates: list[Any]
    k: int | None


def parse_instances(body: bytes, raw_rows: RawRows, max_rows: int) -> RequestRows:
    """Return the checked raw rows of a request. Raises RequestError: 400 not JSON, 413 too many, 422 wrong content."""
    content = parse_json(body, '{"instances": [{"FEATURE": VALUE, ...}, ...]}')
    if not isinstance(content, dict):
        raise RequestError(422, 'the body must be {"instances": [...]} or one object of features, not another value')
    rows = content.get("instances", [content])
    if "instances" in content and len(content) > 1:
        other = next(key for key in content if key != "instances")
        raise RequestError(422, f"unknown key '{other[:100]}' beside 'instances'; leave it out")
    if not isinstance(rows, list):
        raise RequestError(422, "instances: must be a list of objects of features")
    if not rows:
        raise RequestError(422, "instances: empty; send at least one row")
    if len(rows) > max_rows:
        raise RequestError(413, f"instances: {len(rows)} rows, at most {max_rows} a request; send several requests")
    with content_errors():
        return RequestRows(raw_rows.few(rows))


def parse_recommend(body: bytes, max_items: int) -> RecommendRequest:
    """Return the content of a request for recommendations. Raises RequestError: 400 not JSON, 422 wrong content."""
    content = _object(body, '{"user": USER, "k": 10}', ("user", "k", "exclude_known"))
    if "user" not in content:
        raise RequestError(422, "user: missing; name the user as the training data does")
    user, k, exclude_known = content["user"], content.get("k", 10), content.get("exclude_known", True)
    if isinstance(user, int | float) and not isinstance(user, bool):
        user = str(user)
    if not isinstance(user, str):
        raise RequestError(422, "user: must be a string or a number")
    if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= max_items:
        raise RequestError(422, f"k: must be a whole number from 1 to {max_items}")
    if not isinstance(exclude_known, bool):
        raise RequestError(422, "exclude_known: must be true or false")
    return RecommendRequest(user, k, exclude_known)


def parse_rank(body: bytes, max_rows: int) -> RankRequest:
    """Return the content of a request to rank. Raises RequestError: 400 not JSON, 413 too many, 422 wrong content."""
    content = _object(body, '{"context": {...}, "candidates": [ID, ...]}', ("context", "candidates", "k"))
    context, candidates, k = content.get("context", {}), content.get("candidates"), content.get("k")
    if not isinstance(context, dict):
        raise RequestError(422, "context: must be an object; leave it out if nothing is known")
    if not isinstance(candidates, list) or not candidates:
        raise RequestError(422, "candidates: must be a list of at least one id")
    if len(candidates) > max_rows:
        raise RequestError(413, f"candidates: {len(candidates)}, at most {max_rows} a request; send several requests")
    if k is not None and (not isinstance(k, int) or isinstance(k, bool) or k < 1):
        raise RequestError(422, "k: must be a whole number from 1, or left out for all candidates")
    return RankRequest(context, candidates, k)


def _object(body: bytes, example: str, keys: tuple[str, ...]) -> dict[str, Any]:
    content = parse_json(body, example)
    if not isinstance(content, dict):
        raise RequestError(422, f"the body must be {example}, not another value")
    unknown = sorted(set(content) - set(keys))
    if unknown:
        raise RequestError(422, f"unknown key '{unknown[0][:100]}'; there are {', '.join(keys[:-1])} and {keys[-1]}")
    return content
