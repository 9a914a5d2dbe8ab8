"""Ray Serve's own answers in plain text become JSON, and a server that is about to end says so where it is asked."""

import asyncio
import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import Message, Receive, Scope, Send

from rayrec.config import ServeConfig
from serve import admission
from serve.admission import Admission
from serve.app import create_app
from serve.http import Gate, JsonErrors
from serve.json_log import JsonLog
from serve.metrics import ServingMetrics
from serve.served_models import ServedModels
from serve.tokens import read_tokens
from serve.updates import Updates


def answer_of(app: Any, path: str = "/") -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer to a GET request."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "headers": [],
        "query_string": b"",
    }
    asyncio.run(app(scope, receive, send))
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers, b"".join(message.get("body", b"") for message in sent[1:])


@pytest.mark.parametrize(
    ("given", "status", "error"),
    [
        (PlainTextResponse("Request dropped", 503, {"Retry-After": "7"}), 503, "Request dropped"),
        (PlainTextResponse("Internal Server Error", 500), 500, "Internal Server Error"),
        (PlainTextResponse("Path '/' not found.", 404), 503, "no model is ready; try again"),
    ],
)
def test_text_becomes_json(given: Response, status: int, error: str) -> None:
    found, headers, body = answer_of(JsonErrors(given))
    assert (found, headers["content-type"], json.loads(body)) == (status, "application/json", {"error": error})
    assert int(headers["content-length"]) == len(body)
    assert headers.get("retry-after") == ({"Request dropped": "7"}.get(error) or ("1" if "is ready" in error else None))


def test_text_in_pieces_is_joined() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 500, "headers": [(b"content-type", b"text/plain")]})
        for part in ("Ä".encode()[:1], "Ä".encode()[1:]):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"!"})

    status, _, body = answer_of(JsonErrors(app))
    assert (status, json.loads(body)) == (500, {"error": "Ä!"})


@pytest.mark.parametrize("given", [JSONResponse({"error": "no model 'x'"}, 404), PlainTextResponse("a_metric 1", 200)])
def test_all_else_passes(given: Response) -> None:
    assert answer_of(JsonErrors(given)) == answer_of(given)


def test_a_replica_has_no_404_of_its_own_but_those_of_its_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_replica", [object()])
    status, _, _ = answer_of(JsonErrors(PlainTextResponse("Path '/x' not found.", 404)))
    assert status == 404


@pytest.fixture
def models() -> ServedModels:
    return ServedModels()


@pytest.fixture
def app(models: ServedModels, tmp_path: Path) -> Gate:
    metrics = ServingMetrics()
    updates = Updates({}, Mock(), models, JsonLog("shadow", tmp_path, "test"), metrics)
    return create_app(models, Admission(ServeConfig(), read_tokens(None, {}), metrics), updates, list)


@pytest.mark.parametrize("path", ["/healthz", "/v2/health/ready"])
def test_health_checks_fail_before_the_end(app: Gate, models: ServedModels, path: str) -> None:
    assert answer_of(app, path)[0] == 200
    models.end_soon = True
    status, headers, body = answer_of(app, path)
    assert (status, headers["retry-after"], json.loads(body)) == (503, "1", {"error": "the server is stopping"})
    for still in ("/v2/health/live", "/v1/models"):
        assert answer_of(app, still)[0] == 200
