"""The V1 inference protocol of KServe and TensorFlow Serving, with raw features as instances.

    POST /v1/models/NAME:predict   {"instances": [{"I1": 3, "C1": "68fd1e64"}, ...]}   or one such object alone
                                   -> {"model": "NAME", "version": "1", "predictions": [0.0312, ...]}
    POST /v1/models/NAME:recommend {"user": "42", "k": 10, "exclude_known": true}      for a model of users and items;
                                   of one that reads histories instead of or beside a known user
                                   {"events": ["318", "50"]}, what the user has, the newest one last
                                   -> {"model": "NAME", "version": "1", "user": "42",
                                       "items": [{"item": "318", "score": 0.97}, ...], "unknown_events": []}
                                   where another model ranks the best of these (serve.recommend.rank), "context" has
                                   what it reads beside user and item
    POST /v1/models/NAME:similar   {"item": "318", "k": 10}                            for a model with vectors of items
                                   -> {"model": "NAME", "version": "1", "item": "318",
                                       "items": [{"item": "50", "cosine": 0.83}, ...]}
                                   both with "allow": [...] and "deny": [...], items that alone or never are answered,
                                   and "filter": {"genre": ["drama"]}, values of columns of the items
    POST /v1/models/NAME:rank      {"context": {"platform": 3, ...}, "candidates": [42337, 139684, ...], "k": 5}
                                   -> {"model": "NAME", "version": "1",
                                       "candidates": [{"candidate": 42337, "score": 0.31}, ...]}
                                   candidates are ids of items, or objects of raw features
    POST /v1/models/NAME:explain   {"instances": [{"I1": 3, "C1": "68fd1e64"}]}, as for :predict, a few rows at most
                                   -> {"model": "NAME", "version": "1", "explanations": [{"score": 0.0312,
                                       "logit": -3.44, "base": -1.68, "parts": {"I1": -0.93, ...}}]}

`:predict` also takes an Arrow IPC stream or file of raw columns, and then answers with a stream (`serve.arrow`). A
version is named by /v1/models/NAME/versions/VERSION:predict. Every error is {"error": "one line"} with its status.

`VERBS` says of each verb what a body holds, what an answer has, and which function makes one of the other; the route,
the check of a body and `/openapi.json` follow from it. A new verb is an entry there.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationInfo, WithJsonSchema
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rayrec.features.stacked_columns import StackedColumns
from rayrec.inference.explanation import Explanation
from rayrec.inference.rank import Ranking
from rayrec.inference.raw_rows import RawRows
from rayrec.inference.recommender import UnknownItemError, UnknownUserError
from serve import arrow
from serve.admission import Admission
from serve.http import Route, call_of, headers_of
from serve.models import NO_ROWS, RequestRows, ServedModel, ServedModels, ServedVersion, why_not_ranked
from serve.requests import MOST, Body, RequestError, content_errors, of_model, parse_body, parse_json


def routes(models: ServedModels, admission: Admission) -> list[Route]:
    """Return the routes over `models`."""

    async def call(request: Request) -> Response:
        verb = request.path_params["verb"]
        if verb not in VERBS:
            raise RequestError(404, f"no verb ':{verb[:100]}'; there are {', '.join(f':{known}' for known in VERBS)}")
        # The version that answers is chosen once: a request keeps it, whatever is loaded meanwhile.
        served = models.current
        model = models.model(request.path_params["name"], served)
        version = model.version(request.path_params.get("version"))
        # Metrics and log call it the method of a request, which it is for gRPC, too.
        asked = call_of(request)
        asked.answered_by(model.name, version.version, verb)
        # Of the verbs, only `:predict` also speaks Arrow.
        given = headers_of(request.scope).get(b"content-type", b"").decode("latin-1")
        is_arrow = given.partition(";")[0].strip().lower() in (arrow.MEDIA_TYPE, arrow.FILE_MEDIA_TYPE)
        if is_arrow and verb != "predict":
            raise RequestError(415, f"':{verb}' takes JSON; send Arrow to :predict")
        answer = _predict_columns if is_arrow else VERBS[verb]
        content = await answer(model, version, asked.body, admission, served)
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


def _as_text(name: Any) -> Any:
    return str(name) if isinstance(name, int | float) and not isinstance(name, bool) else name


def _up_to_most(given: int | list[str], info: ValidationInfo) -> int | list[str]:
    """Refuse a greater number, or a longer list, than `parse_body` was given as the most of a request."""
    assert info.context is not None
    if (given if isinstance(given, int) else len(given)) > info.context["most"]:
        raise ValueError
    return given


Row = Annotated[dict[str, Any], of_model("Row")]
"""A row of raw features; which there are depends on the model."""
Score = Annotated[float, Field(ge=0, le=1, description="Probability of a positive label.")]


class Instances(Body):
    """Rows of raw features."""

    instances: Annotated[list[Row], Field(min_length=1, json_schema_extra={"maxItems": MOST})]


Name = Annotated[str, BeforeValidator(_as_text), WithJsonSchema({"type": ["string", "number"]})]
"""A user or an item, as the training data names it."""
Names = Annotated[list[Name], Field(json_schema_extra={"maxItems": MOST}), AfterValidator(_up_to_most)]


class _WantedItems(Body):
    """How many items are wanted, and which ones."""

    k: Annotated[int, Field(ge=1, json_schema_extra={"maximum": MOST}), AfterValidator(_up_to_most)] = 10
    """a whole number from 1 to $most"""
    allow: Names | None = None
    """a list of at most $most strings or numbers: the items that alone may be in the answer"""
    deny: Names = []
    """a list of at most $most strings or numbers: items that may not be in the answer"""
    filter: dict[str, Names] = {}
    """an object of lists of strings or numbers: values that items have, by column of the table of items"""


class RecommendRequest(_WantedItems):
    """Whom to recommend items to: a user, and what the user has beside what is known."""

    user: Name | None = None
    """a string or a number, as the training data names the user"""
    events: Names = []
    """a list of at most $most strings or numbers: items after those that are known of the user, the newest one last"""
    exclude_known: bool = True
    """true or false: whether to leave out what the user has in the training data, and the events"""
    context: dict[str, Any] = {}
    """an object: raw features that the model reads which ranks the best items again, beside the user and the item"""


class SimilarRequest(_WantedItems):
    """The item that others are to be like."""

    item: Name
    """a string or a number, as the training data names the item"""


class RankRequest(Body):
    """A context and the candidates to rank in it; the ranker checks their values."""

    context: Annotated[dict[str, Any], of_model("Context")] = {}
    """an object; leave it out if nothing is known"""
    candidates: Annotated[list[Annotated[Any, of_model("Candidate")]], Field(min_length=1)]
    """a list of at least one id"""
    k: Annotated[int, Field(ge=1)] | None = None
    """a whole number from 1, or left out for all candidates"""


class Answer(BaseModel):
    """What every answer has: the version that gave it."""

    model: str
    version: str


class Predictions(Answer):
    predictions: list[Score]


class RecommendedItem(BaseModel):
    item: str
    score: Score


class RecommendedItems(Answer):
    user: str | None
    items: list[RecommendedItem]
    unknown_events: Annotated[list[str], Field(description="Events whose items the model does not know: left out.")]
    ranked_by: Answer | None = Field(None, exclude_if=lambda ranker: ranker is None)
    """The model and version that ranked the best items again, and whose scores these are."""


class SimilarItem(BaseModel):
    item: str
    cosine: Annotated[float, Field(ge=-1, le=1, description="Cosine of the vectors of the two items.")]


class SimilarItems(Answer):
    item: str
    items: list[SimilarItem]


class RankedCandidate(BaseModel):
    candidate: Annotated[Any, of_model("Candidate")]
    score: Score


class RankedCandidates(Answer):
    candidates: list[RankedCandidate]


class Explanations(Answer):
    explanations: list[Explanation]


@dataclass(frozen=True)
class Asked:
    """What a request asks of a version of a model."""

    model: ServedModel
    version: ServedVersion
    body: bytes
    admission: Admission
    most: int
    """Rows, items or candidates that it may be about."""
    served: Mapping[str, ServedModel]
    """All models, as they were when the version was chosen."""


@dataclass(frozen=True)
class Verb:
    """What can be asked by POST /v1/models/NAME:VERB with JSON."""

    summary: str
    """What is answered, for the OpenAPI document."""
    body: Any
    """Type of a request's body."""
    answer: type[Answer]
    run: Callable[[Asked], Awaitable[dict[str, Any]]]
    """Returns what the answer has beside model and version. Raises RequestError."""
    lacks: Callable[[ServedVersion], str | None] = lambda version: None
    """Returns why a version cannot be asked, if it cannot."""
    limit: int = 2**31
    """Most rows, items or candidates of a request, where `max_rows_per_request` is no less."""

    def most(self, max_rows: int) -> int:
        """Return the most rows, items or candidates of a request to a server that takes `max_rows`."""
        return min(self.limit, max_rows)

    async def __call__(
        self,
        model: ServedModel,
        version: ServedVersion,
        body: bytes,
        admission: Admission,
        served: Mapping[str, ServedModel],
    ) -> bytes:
        """Return the body of the answer. Raises RequestError."""
        if why := self.lacks(version):
            raise RequestError(404, f"model '{model.name}' {why}; use /v1/models/{model.name}:{version.examples.verb}")
        most = self.most(admission.settings.max_rows_per_request)
        found = await self.run(Asked(model, version, body, admission, most, served))
        # Its numbers are float32 values in the digits of their float64.
        return self.answer(model=model.name, version=version.version, **found).model_dump_json().encode()


WantedT = TypeVar("WantedT", bound=_WantedItems)
_NAME_BYTES = 3 * 80
"""Bytes that the names at one place of a request's lists take, about."""
MOST_EXPLAINED = 8
"""Rows that a request may have explained: one takes as long as thousands of scores."""


async def _predict(asked: Asked) -> dict[str, Any]:
    version, body = asked.version, asked.body
    parse = partial(parse_instances, body, version.predictor.raw_rows, asked.most)
    # Every row is an object. Who sends few rows is not to wait with those who send many.
    async with asked.admission.parsed(len(body), body.count(b"{"), version.row_bytes, parse) as rows:
        return {"predictions": (await asked.model.score(version, rows)).tolist()}


async def _recommend(asked: Asked) -> dict[str, Any]:
    recommender = asked.version.recommender
    assert recommender is not None
    async with _wanted_items(asked, RecommendRequest) as wanted:
        settings, given = recommender.settings, wanted.model_dump(exclude={"user", "k", "context"})
        if settings.rank is None and wanted.context:
            raise RequestError(422, "context: no other model ranks the items (serve.recommend.rank); leave it out")
        k = wanted.k if settings.rank is None else max(wanted.k, settings.retrieve)
        best = await asked.version.evaluate(partial(recommender.recommend, wanted.user, k, **given))
        items, scores, ranked_by = best.items, best.scores, None
        if settings.rank is not None:
            # What `:rank` of the other model answers for the user and these candidates.
            if why := why_not_ranked(asked.version, asked.served):
                raise RequestError(503, f"model '{asked.model.name}' {why}", {"Retry-After": "1"})
            model = asked.served[settings.rank]
            version, (of_user, of_item) = model.version(), recommender.columns
            reads = version.predictor.raw_rows.columns.names
            context = {of_user: wanted.user, **wanted.context} if of_user in reads else wanted.context
            ranking = await _ranked(model, version, context, [{of_item: item} for item in items], wanted.k)
            items, scores = [candidate[of_item] for candidate in ranking.candidates], ranking.scores
            ranked_by = Answer(model=model.name, version=version.version)
    found = [{"item": item, "score": score} for item, score in zip(items, scores.tolist(), strict=True)]
    return {"user": wanted.user, "items": found, "unknown_events": best.unknown_events, "ranked_by": ranked_by}


async def _similar(asked: Asked) -> dict[str, Any]:
    recommender = asked.version.recommender
    assert recommender is not None
    async with _wanted_items(asked, SimilarRequest) as wanted:
        given = wanted.model_dump(exclude={"item", "k"})
        best = await asked.version.evaluate(partial(recommender.similar, wanted.item, wanted.k, **given))
    found = zip(best.items, best.scores.tolist(), strict=True)
    return {"item": wanted.item, "items": [{"item": item, "cosine": cosine} for item, cosine in found]}


@asynccontextmanager
async def _wanted_items(asked: Asked, kind: type[WantedT]) -> AsyncIterator[WantedT]:
    """Yield the content of a request for items. Raises RequestError, also for what the block raises: 404 for a user or
    an item that is not known, 422 for other content.
    """
    parse = partial(parse_body, kind, asked.body, asked.most)
    # No row is parsed, but any byte may be an item of a list.
    async with asked.admission.parsed(len(asked.body), len(asked.body), _NAME_BYTES, parse) as wanted:
        with content_errors():
            try:
                yield wanted
            except (UnknownUserError, UnknownItemError) as error:
                raise RequestError(404, str(error)) from None


async def _rank(asked: Asked) -> dict[str, Any]:
    version, body = asked.version, asked.body
    parse = partial(parse_body, RankRequest, body, asked.most)
    # Any byte may be a candidate, which becomes a row.
    async with asked.admission.parsed(len(body), len(body), version.row_bytes, parse) as wanted:
        if (count := len(wanted.candidates)) > asked.most:
            raise RequestError(413, f"candidates: {count}, at most {asked.most} a request; send several requests")
        best = await _ranked(asked.model, version, wanted.context, wanted.candidates, wanted.k)
    found = zip(best.candidates, best.scores.tolist(), strict=True)
    return {"candidates": [{"candidate": candidate, "score": score} for candidate, score in found]}


async def _ranked(
    model: ServedModel, version: ServedVersion, context: dict[str, Any], candidates: list[Any], k: int | None
) -> Ranking:
    """Return the best of candidates in a context, by a version of a model. Raises RequestError."""
    if not candidates:
        return Ranking.of([], np.empty(0, np.float32))
    # The features of the candidates are looked up, and scored as the rows of `:predict` are.
    with content_errors():
        columns = await version.evaluate(partial(version.ranker.rows, context, candidates))
    scores = await model.score(version, RequestRows(StackedColumns.of(columns)))
    return Ranking.of(candidates, scores, k)


async def _explain(asked: Asked) -> dict[str, Any]:
    parse = partial(parse_instances, asked.body, asked.version.predictor.raw_rows, asked.most)
    async with asked.admission.parsed(len(asked.body), asked.most, asked.version.row_bytes, parse) as rows:
        return {"explanations": await asked.version.explain(rows.columns.batch())}


def _no_rows(version: ServedVersion) -> str | None:
    return NO_ROWS if version.predictor.scores_next_items else None


def _no_recommender(version: ServedVersion) -> str | None:
    return None if version.recommender else "needs more features than a user and an item, so it cannot recommend"


def _no_similar(version: ServedVersion) -> str | None:
    compares = version.recommender is not None and version.recommender.compares_items
    return None if compares else "has no vectors of items, so none is like another"


def _no_explainer(version: ServedVersion) -> str | None:
    return _no_rows(version) or (
        None if version.explainer else "was exported without reference rows, so it cannot explain"
    )


VERBS: dict[str, Verb] = {
    "predict": Verb(
        "Scores of rows; an Arrow stream of raw columns gets one of scores.",
        Instances | Row,
        Predictions,
        _predict,
        _no_rows,
    ),
    "recommend": Verb("Items for a user.", RecommendRequest, RecommendedItems, _recommend, _no_recommender),
    "similar": Verb("Items like an item.", SimilarRequest, SimilarItems, _similar, _no_similar),
    "rank": Verb("Candidates in a context, best first.", RankRequest, RankedCandidates, _rank, _no_rows),
    "explain": Verb(
        "What each feature adds to the logit of a row: base and parts add up to it.",
        Instances | Row,
        Explanations,
        _explain,
        _no_explainer,
        MOST_EXPLAINED,
    ),
}


async def _predict_columns(
    model: ServedModel, version: ServedVersion, body: bytes, admission: Admission, _: Mapping[str, ServedModel]
) -> bytes:
    """Answer `:predict` for an Arrow stream with another one."""
    max_rows, most = admission.settings.max_rows_per_request, admission.most_bytes
    parse = partial(arrow.parse_columns, body, version.predictor.raw_rows, max_rows, most)
    size = arrow.memory_of(body, most)
    async with admission.parsed(size, max_rows, version.row_bytes, parse, arrow.AT_ONCE_BYTES) as columns:
        scores = await model.score(version, RequestRows(StackedColumns.of(columns)))
        return arrow.scores_stream(model.name, version.version, scores)


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
        return RequestRows(raw_rows.stacked(rows))
