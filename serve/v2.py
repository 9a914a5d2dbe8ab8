"""The Open Inference Protocol, version 2, of KServe and Triton over HTTP, with two extensions of Triton's.

    https://github.com/kserve/open-inference-protocol
    https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md
    https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_model_repository.md

An input is a feature: n raw values, shape [n] or [n, 1] (multi-hot: [n, most values of a row], padded). With the
parameter `encoded: true` it is a column of a dataset folder. The output `score` is n probabilities.

Administrators see which versions there are, and choose which answer; bodies may be left out:

    POST /v2/repository/index                {"ready": true}: the versions that are loaded alone
                                             -> [{"name": "NAME", "version": "2", "state": "READY", "reason": ""}, ...]
    POST /v2/repository/models/NAME/load     {"parameters": {"version": "2"}}: that version, for all requests
    POST /v2/repository/models/NAME/unload   -> the model's part of the index
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version as installed_version
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rayrec.inference.predictor import Predictor
from serve.admission import Admission
from serve.http import Route, call_of
from serve.models import RequestRows, ServedModel, ServedModels, ServedVersion
from serve.request_tensors import Tensor, make_tensor, rows_of, tensor_columns
from serve.requests import RequestError, parse_json
from serve.updates import Updates

SERVER = {
    "name": "rayrec",
    "version": installed_version("rayrec"),
    "extensions": ["binary_tensor_data", "model_repository"],
}
"""What the server says of itself."""
OUTPUT = "score"
_JSON_LENGTH = "Inference-Header-Content-Length"
_EXAMPLE = '{"inputs": [{"name": FEATURE, "shape": [1], "datatype": DATATYPE, "data": [VALUE]}, ...]}'


def routes(models: ServedModels, admission: Admission) -> list[Route]:
    """Return the routes over `models`."""

    async def server(_: Request) -> Response:
        return JSONResponse(SERVER)

    async def live(_: Request) -> Response:
        return JSONResponse({"live": True})

    async def ready(_: Request) -> Response:
        models.require_ready()
        return JSONResponse({"ready": True})

    async def about_model(request: Request) -> Response:
        name, model, version = asked(request)
        return JSONResponse(metadata(name, sorted(model.versions, key=int), version.predictor))

    async def model_ready(request: Request) -> Response:
        """Answer 200 as soon as a version of the model answers, else 404."""
        name, _, version = asked(request)
        return JSONResponse({"name": name, "version": version.version, "ready": True})

    async def infer(request: Request) -> Response:
        name, model, chosen = asked(request)
        call = call_of(request)
        call.answered_by(name, chosen.version, "infer")
        body = call.body
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

    found = [Route("/v2", server), Route("/v2/health/live", live), Route("/v2/health/ready", ready)]
    for path in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
        found += [Route(f"{path}/infer", infer, "POST"), Route(path, about_model), Route(f"{path}/ready", model_ready)]
    return found


@dataclass(frozen=True)
class InferRequest:
    """A request to score rows."""

    rows: RequestRows
    id: str | None
    binary: bool
    """Whether the scores are sent as bytes."""


def metadata(name: str, versions: list[str], predictor: Predictor) -> dict[str, Any]:
    """Return the answer to `GET /v2/models/NAME`: name, data type and shape of each input and of the output."""
    inputs = []
    for field in tensor_columns(predictor.raw_rows):
        is_list = pa.types.is_list(field.type)
        kind = field.type.value_type if is_list else field.type
        datatype = "FP64" if pa.types.is_floating(kind) else "INT64" if pa.types.is_integer(kind) else "BYTES"
        inputs.append({"name": field.name, "datatype": datatype, "shape": [-1, -1] if is_list else [-1]})
    outputs = [{"name": OUTPUT, "datatype": "FP32", "shape": [-1]}]
    return {"name": name, "versions": versions, "platform": "rayrec", "inputs": inputs, "outputs": outputs}


def require_known_outputs(names: Iterable[Any]) -> None:
    """Raise RequestError 422 for an output that is not the score."""
    if any(name != OUTPUT for name in names):
        raise RequestError(422, f"outputs: the model has one, '{OUTPUT}'")


def parse_infer(body: bytes, json_length: str | None, predictor: Predictor, max_rows: int) -> InferRequest:
    """Return the checked content of a request. Raises RequestError: 400 not JSON, 413 too many rows, 422 wrong content.

    `json_length` is the header `Inference-Header-Content-Length`: the length of the JSON before binary tensors.
    """
    length = len(body)
    if json_length is not None:
        is_number = json_length.isascii() and json_length.isdigit() and len(json_length) <= 12
        if not is_number or int(json_length) > len(body):
            raise RequestError(400, "Inference-Header-Content-Length: must be the length of the body's JSON part")
        length = int(json_length)
    content = parse_json(body[:length], _EXAMPLE)
    if not isinstance(content, dict) or not isinstance(content.get("inputs"), list) or not content["inputs"]:
        raise RequestError(422, f"inputs: missing or empty; send {_EXAMPLE}")
    parameters = content.get("parameters") or {}
    identifier = content.get("id")
    if not isinstance(parameters, dict) or not isinstance(identifier, str | None):
        raise RequestError(422, "id must be a string, parameters an object")
    encoded = parameters.get("encoded", False)
    if not isinstance(encoded, bool):
        raise RequestError(422, "parameters.encoded: must be true or false")
    rows = rows_of(_tensors(content["inputs"], body[length:]), predictor, max_rows, encoded=encoded)
    return InferRequest(rows, identifier, _wants_binary(content.get("outputs"), parameters))


def answer(name: str, version: str, request: InferRequest, scores: NDArray[np.float32]) -> tuple[bytes, int | None]:
    """Return the body of an answer, and the length of its JSON if bytes follow it."""
    output: dict[str, Any] = {"name": OUTPUT, "datatype": "FP32", "shape": [len(scores)]}
    head: dict[str, Any] = {"model_name": name, "model_version": version}
    if request.id is not None:
        head["id"] = request.id
    if not request.binary:
        output["data"] = scores.tolist()
        return to_json({**head, "outputs": [output]}), None
    data = scores.astype("<f4").tobytes()
    output["parameters"] = {"binary_data_size": len(data)}
    text = to_json({**head, "outputs": [output]})
    return text + data, len(text)


def _tensors(inputs: list[Any], binary: bytes) -> list[Tensor]:
    tensors = []
    for index, entry in enumerate(inputs):
        tensor, taken = _read_tensor(entry, index, binary)
        binary = binary[taken:]
        tensors.append(tensor)
    if binary:
        raise RequestError(422, f"{len(binary)} bytes follow the last binary tensor; check binary_data_size")
    return tensors


def _read_tensor(entry: Any, index: int, binary: bytes) -> tuple[Tensor, int]:
    """Return the tensor of one entry of `inputs`, and how many bytes of `binary` it took. Raises RequestError 422."""
    if not isinstance(entry, dict):
        raise RequestError(422, f"inputs[{index}]: must be an object with name, shape, datatype and data")
    head = index, entry.get("name"), entry.get("datatype"), entry.get("shape")
    parameters = entry.get("parameters")
    size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
    if size is None:
        return make_tensor(*head, entry.get("data")), 0
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= len(binary):
        most = f"a whole number up to the {len(binary)} bytes left"
        raise RequestError(422, f"inputs[{index}]: binary_data_size must be {most}")
    return make_tensor(*head, None, binary[:size]), size


def _wants_binary(outputs: Any, parameters: dict[str, Any]) -> bool:
    wanted = parameters.get("binary_data_output", False) is True
    if outputs is None:
        return wanted
    if not isinstance(outputs, list) or not all(isinstance(output, dict) for output in outputs):
        raise RequestError(422, "outputs: must be a list of objects with a name")
    require_known_outputs(output.get("name") for output in outputs)
    for output in outputs:
        own = output.get("parameters")
        wanted = bool(own.get("binary_data", wanted)) if isinstance(own, dict) else wanted
    return wanted


def repository_routes(admission: Admission, updates: Updates) -> list[Route]:
    """Return the routes over the models that `updates` keeps up to date."""

    def asked(request: Request, known: str) -> Any:
        """Return the value of a key that a body may have. Raises RequestError: 403 no administrator, 422 others."""
        call = call_of(request)
        admission.require_admin(call)
        content = parse_json(call.body, "{}") if call.body else {}
        if not isinstance(content, dict) or content.keys() - {known}:
            raise RequestError(422, f'the body must be {{}} or {{"{known}": ...}}')
        return content.get(known)

    async def index(request: Request) -> Response:
        only_ready = asked(request, "ready")
        if not isinstance(only_ready, bool | None):
            raise RequestError(422, "ready: must be true or false")
        return JSONResponse(await asyncio.to_thread(updates.index, only_ready=bool(only_ready)))

    async def change(request: Request, *, loads: bool) -> Response:
        parameters = asked(request, "parameters") or {}
        if not isinstance(parameters, dict):
            raise RequestError(422, "parameters: must be an object")
        name = request.path_params["name"]
        await asyncio.to_thread(change_model, updates, name, parameters, loads=loads)
        return JSONResponse([entry for entry in await asyncio.to_thread(updates.index) if entry["name"] == name])

    return [
        Route("/v2/repository/index", index, "POST"),
        Route("/v2/repository/models/{name}/load", partial(change, loads=True), "POST"),
        Route("/v2/repository/models/{name}/unload", partial(change, loads=False), "POST"),
    ]


def change_model(updates: Updates, name: str, parameters: Mapping[str, Any], *, loads: bool) -> None:
    """Load or unload a model. Raises RequestError: 404 no such model or version, 409 it does not load, 422 parameters.

    Triton's clients always send `unload_dependents`, which no model has.
    """
    known = "version" if loads else "unload_dependents"
    if unknown := sorted(parameters.keys() - {known}):
        raise RequestError(422, f"unknown parameter '{unknown[0][:100]}'; there is '{known}'")
    version = parameters.get("version")
    if not isinstance(version, str | None):
        raise RequestError(422, "version: must be text, as in the index")
    if loads:
        updates.load(name, version)
    else:
        updates.unload(name)
