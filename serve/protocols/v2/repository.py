"""The extension for repositories of models, of Triton: which versions there are, and which answer.

    https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_model_repository.md

    POST /v2/repository/index                {"ready": true}: the versions that are loaded alone
                                             -> [{"name": "NAME", "version": "2", "state": "READY", "reason": ""}, ...]
    POST /v2/repository/models/NAME/load     {"parameters": {"version": "2"}}: that version, for all requests
    POST /v2/repository/models/NAME/unload   -> the model's part of the index

All need the token of an administrator. Bodies may be left out.
"""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from serve.engine.admission import Admission
from serve.errors import RequestError
from serve.models.updates import Updates
from serve.protocols.http import call_of, parse_json, read_body


def routes(admission: Admission, updates: Updates) -> list[Route]:
    """Return the routes over the models that `updates` keeps up to date."""

    async def asked(request: Request, known: str) -> Any:
        """Return the value of a key that a body may have. Raises RequestError: 403 no administrator, 422 others."""
        if request.method != "POST":
            raise RequestError(405, "use POST", {"Allow": "POST"})
        admission.require_admin(call_of(request))
        body = await read_body(request, admission)
        content = parse_json(body, "{}") if body else {}
        if not isinstance(content, dict) or content.keys() - {known}:
            raise RequestError(422, f'the body must be {{}} or {{"{known}": ...}}')
        return content.get(known)

    async def index(request: Request) -> Response:
        only_ready = await asked(request, "ready")
        if not isinstance(only_ready, bool | None):
            raise RequestError(422, "ready: must be true or false")
        return JSONResponse(await asyncio.to_thread(entries, updates, only_ready=bool(only_ready)))

    async def change(request: Request, *, loads: bool) -> Response:
        parameters = await asked(request, "parameters") or {}
        if not isinstance(parameters, dict):
            raise RequestError(422, "parameters: must be an object")
        name = request.path_params["name"]
        await asyncio.to_thread(change_model, updates, name, parameters, loads=loads)
        return JSONResponse([entry for entry in await asyncio.to_thread(entries, updates) if entry["name"] == name])

    return [
        Route("/v2/repository/index", index, methods=["GET", "POST"]),
        Route("/v2/repository/models/{name}/load", partial(change, loads=True), methods=["GET", "POST"]),
        Route("/v2/repository/models/{name}/unload", partial(change, loads=False), methods=["GET", "POST"]),
    ]


def entries(updates: Updates, *, only_ready: bool = False) -> list[dict[str, str]]:
    """Return the index of all versions, or of those that are loaded."""
    return [entry for entry in updates.index() if entry["state"] == "READY" or not only_ready]


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
