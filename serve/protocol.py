"""What goes over HTTP: the V1 inference protocol of KServe and TensorFlow Serving, with raw features as instances.

    POST /v1/models/NAME:predict   {"instances": [{"I1": 3, "C1": "68fd1e64"}, ...]}   or one such object alone
                                   -> {"model": "NAME", "predictions": [0.0312, ...]}

Every error is {"error": "one line"} with its status. Knows neither Ray nor FastAPI.
"""

import difflib
import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pydantic_core
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.inference.raw_rows import RawRows

MAX_BODY_BYTES = 64 * 2**20
"""Of one request; beyond it the answer is 413."""


class RequestError(Exception):
    """A request that cannot be answered: the HTTP status and one line for the client."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def parse_instances(body: bytes, raw_rows: RawRows, max_rows: int) -> pa.RecordBatch:
    """The raw rows of a request's body, checked. Raises RequestError: 400 no JSON, 413 too many, 422 wrong content."""
    if not body:
        raise RequestError(400, 'the body is empty; send {"instances": [{"FEATURE": VALUE, ...}, ...]}')
    try:
        content = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise RequestError(400, f"the body is not valid JSON: {error}") from None
    rows = _instances(content)
    if not rows:
        raise RequestError(422, "instances: empty; send at least one row")
    if len(rows) > max_rows:
        raise RequestError(413, f"instances: {len(rows)} rows, at most {max_rows} a request; send several requests")
    try:
        return raw_rows.from_rows(rows)
    except UserError as error:
        raise RequestError(422, str(error)) from None


def unknown_model(name: str, known: Iterable[str]) -> RequestError:
    """The answer to a request for a model that is not served."""
    names = sorted(known)
    nearest = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean '{nearest[0]}'?" if nearest else f"models: {', '.join(names)}"
    return RequestError(404, f"no model '{name[:100]}'; {hint}")


def predictions(model: str, scores: NDArray[np.float32]) -> bytes:
    """The body of an answer; a score's digits are those of its float32 value."""
    return json.dumps({"model": model, "predictions": scores.tolist()}, allow_nan=False).encode()


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
