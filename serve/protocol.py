"""What goes over HTTP: the V1 inference protocol of KServe and TensorFlow Serving, with raw features as instances.

    POST /v1/models/NAME:predict   {"instances": [{"I1": 3, "C1": "68fd1e64"}, ...]}   or one such object alone
                                   -> {"model": "NAME", "version": "1", "predictions": [0.0312, ...]}
    POST /v1/models/NAME:recommend {"user": "42", "k": 10, "exclude_known": true}      of a model of users and items
                                   -> {"model": "NAME", "version": "1", "user": "42",
                                       "items": [{"item": "318", "score": 0.97}, ...]}
    POST /v1/models/NAME:rank      {"context": {"uuid": "cb8c55702adb93", "document_id": 379743, "platform": 3, ...},
                                    "ads": [42337, 139684, ...], "k": 3}                of a model of displays
                                   -> {"model": "NAME", "version": "1", "ads": [{"ad": 42337, "score": 0.31}, ...]}

Every error is {"error": "one line"} with its status. Knows neither Ray nor FastAPI.
"""

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pydantic_core
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.inference.raw_rows import RawRows


class RequestError(Exception):
    """A request that cannot be answered: the HTTP status, one line for the client, and headers."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers


def parse_instances(body: bytes, raw_rows: RawRows, max_rows: int) -> pa.RecordBatch:
    """The raw rows of a request's body, checked. Raises RequestError: 400 no JSON, 413 too many, 422 wrong content."""
    rows = _instances(parse_json(body, '{"instances": [{"FEATURE": VALUE, ...}, ...]}'))
    if not rows:
        raise RequestError(422, "instances: empty; send at least one row")
    if len(rows) > max_rows:
        raise RequestError(413, f"instances: {len(rows)} rows, at most {max_rows} a request; send several requests")
    try:
        return raw_rows.from_rows(rows)
    except UserError as error:
        raise RequestError(422, str(error)) from None


@dataclass(frozen=True)
class RecommendRequest:
    """Whom to recommend how many items."""

    user: str
    k: int
    exclude_known: bool


def parse_recommend(body: bytes, max_items: int) -> RecommendRequest:
    """The content of a request for recommendations. Raises RequestError: 400 no JSON, 422 wrong content."""
    content = parse_json(body, '{"user": USER, "k": 10}')
    if not isinstance(content, dict):
        raise RequestError(422, 'the body must be {"user": USER, "k": 10}, not another value')
    if "user" not in content:
        raise RequestError(422, "user: missing; name the user as the training data does")
    unknown = sorted(set(content) - {"user", "k", "exclude_known"})
    if unknown:
        raise RequestError(422, f"unknown key '{unknown[0][:100]}'; there are user, k and exclude_known")
    user, k, exclude_known = content["user"], content.get("k", 10), content.get("exclude_known", True)
    if isinstance(user, int) and not isinstance(user, bool):
        user = str(user)  # ids that are numbers keep their digits in the vocabulary
    if not isinstance(user, str):
        raise RequestError(422, "user: must be a string or a whole number")
    if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= max_items:
        raise RequestError(422, f"k: must be a whole number from 1 to {max_items}")
    if not isinstance(exclude_known, bool):
        raise RequestError(422, "exclude_known: must be true or false")
    return RecommendRequest(user, k, exclude_known)


def recommendations(model: str, version: str, user: str, items: Iterable[str], scores: NDArray[np.float32]) -> bytes:
    """The body of an answer with the items of highest score first."""
    ranked = [{"item": item, "score": score} for item, score in zip(items, scores.tolist(), strict=True)]
    answer = {"model": model, "version": version, "user": user, "items": ranked}
    return json.dumps(answer, allow_nan=False).encode()


@dataclass(frozen=True)
class RankRequest:
    """A context once, and the ads to rank in it; their values are checked by the ranker."""

    context: dict[str, Any]
    ads: list[Any]
    k: int | None


def parse_rank(body: bytes, max_rows: int) -> RankRequest:
    """The content of a request to rank ads. Raises RequestError: 400 no JSON, 413 too many ads, 422 wrong content."""
    example = '{"context": {...}, "ads": [AD, ...]}'
    content = parse_json(body, example)
    if not isinstance(content, dict):
        raise RequestError(422, f"the body must be {example}, not another value")
    unknown = sorted(set(content) - {"context", "ads", "k"})
    if unknown:
        raise RequestError(422, f"unknown key '{unknown[0][:100]}'; there are context, ads and k")
    context, ads, k = content.get("context", {}), content.get("ads"), content.get("k")
    if not isinstance(context, dict):
        raise RequestError(422, "context: must be an object; leave it out where nothing is known")
    if not isinstance(ads, list) or not ads:
        raise RequestError(422, "ads: must be a list of at least one ad id")
    if len(ads) > max_rows:
        raise RequestError(413, f"ads: {len(ads)}, at most {max_rows} a request; send several requests")
    if k is not None and (not isinstance(k, int) or isinstance(k, bool) or k < 1):
        raise RequestError(422, "k: must be a whole number from 1, or left out for all ads")
    return RankRequest(context, ads, k)


def ranked_ads(model: str, version: str, ads: Iterable[int], scores: NDArray[np.float32]) -> bytes:
    """The body of an answer with the ads of highest score first."""
    ranked = [{"ad": ad, "score": score} for ad, score in zip(ads, scores.tolist(), strict=True)]
    return json.dumps({"model": model, "version": version, "ads": ranked}, allow_nan=False).encode()


def unknown_model(name: str, known: Iterable[str]) -> RequestError:
    """The answer to a request for a model that is not served."""
    names = sorted(known)
    nearest = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean '{nearest[0]}'?" if nearest else f"models: {', '.join(names)}"
    return RequestError(404, f"no model '{name[:100]}'; {hint}")


def predictions(model: str, version: str, scores: NDArray[np.float32]) -> bytes:
    """The body of an answer; a score's digits are those of its float32 value."""
    answer = {"model": model, "version": version, "predictions": scores.tolist()}
    return json.dumps(answer, allow_nan=False).encode()


def parse_json(body: bytes, example: str) -> Any:
    """The value of a body. Raises RequestError 400 where it is no JSON; `example` is told where it is empty."""
    if not body:
        raise RequestError(400, f"the body is empty; send {example}")
    try:
        return pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise RequestError(400, f"the body is not valid JSON: {error}") from None


def _instances(content: Any) -> list[Any]:
    if not isinstance(content, dict):
        raise RequestError(422, 'the body must be {"instances": [...]} or one object of features, not another value')
    if "instances" not in content:
        return [content]
    if len(content) > 1:
        other = next(key for key in content if key != "instances")
        raise RequestError(422, f"unknown key '{other[:100]}' beside 'instances'; leave it out")
    rows = content["instances"]
    if not isinstance(rows, list):
        raise RequestError(422, "instances: must be a list of objects of features")
    return rows
