"""The layer before the routes: tokens, sizes, times, bodies as they come, Ray Serve's own errors, ids and the log."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from rayrec.common.errors import ConfigError, UserError
from rayrec.config import ServeConfig
from serve.admission import Admission
from serve.app import create_app
from serve.http import Front, ProxyFront, Route, Router
from serve.json_log import JsonLog
from serve.metrics import ServingMetrics
from serve.models import ServedModels
from serve.tokens import is_allowed, read_tokens
from serve.updates import Updates

TOKEN = "0123456789abcdef"
METRICS = ServingMetrics()
SETTINGS = ServeConfig(max_body_mib=1000 / 2**20, request_timeout_seconds=0.2)


async def answering(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


def routed(answer: Callable[[Request], Awaitable[Response]]) -> Router:
    return Router([Route("/v1/models", answer, "POST")], Admission(SETTINGS, {}, METRICS))


async def sleep(request: Request) -> Response:
    await asyncio.sleep(20)
    return Response()


async def fail(request: Request) -> Response:
    raise KeyError("a secret of the server")


async def never(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("the request was let through")


def ask(
    path: str = "/v1/models",
    headers: dict[str, str] | None = None,
    app: ASGIApp = answering,
    tokens: tuple[str, ...] = (),
    log: JsonLog | None = None,
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of an answer behind the layer."""
    known = read_tokens(None, {"RAYREC_SERVE_TOKENS": ",".join(tokens)} if tokens else {})
    return answer_of(Front(app, Admission(SETTINGS, known, METRICS, log)), path, "POST", headers)


def answer_of(
    app: ASGIApp, path: str = "/", method: str = "GET", headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of an answer to a request without a body."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in (headers or {}).items()]
    scope = {"type": "http", "method": method, "path": path, "headers": raw, "query_string": b""}
    asyncio.run(asyncio.wait_for(app(scope, receive, send), 10))
    start, body = sent
    return start["status"], {name.decode(): value.decode() for name, value in start["headers"]}, body["body"]


AUTHORIZATIONS = {
    "none": ({}, 401),
    "right": ({"Authorization": f"Bearer {TOKEN}"}, 200),
    "second of two": ({"Authorization": "bearer fedcba9876543210"}, 200),
    "wrong": ({"Authorization": f"Bearer {TOKEN}0"}, 401),
    "empty": ({"Authorization": "Bearer "}, 401),
    "another scheme": ({"Authorization": f"Basic {TOKEN}"}, 401),
    "not ASCII": ({"Authorization": "Bearer \xe9\xff"}, 401),
}


@pytest.mark.parametrize("case", AUTHORIZATIONS)
def test_tokens(case: str) -> None:
    headers, status = AUTHORIZATIONS[case]
    found, answered, body = ask(headers=headers, tokens=(TOKEN, "fedcba9876543210"))
    assert found == status
    if status == 401:
        assert json.loads(body)["error"].startswith("no valid token")
        assert answered["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("path", ["/", "/healthz", "/v2/health/live", "/v2/health/ready"])
def test_health_needs_no_token(path: str) -> None:
    assert ask(path, tokens=(TOKEN,))[0] == 200


@pytest.mark.parametrize("path", ["/v1/models/healthz", "/healthz/", "//healthz", "/openapi.json", "/metrics", "/v2"])
def test_all_else_does(path: str) -> None:
    assert ask(path, tokens=(TOKEN,))[0] == 401


def test_tokens_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"{TOKEN}\n\nfedcba9876543210\n")
    tokens = read_tokens(file, {"RAYREC_SERVE_TOKENS": "not-this-one-1234567"})
    assert len(tokens) == 2
    assert not any(TOKEN in token for token in tokens)
    assert is_allowed(f"Bearer {TOKEN}", tokens)
    assert not is_allowed("Bearer not-this-one-1234567", tokens)
    assert is_allowed(None, read_tokens(None, {}))


def test_tokens_that_are_no_use(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    for file in ("empty", "absent"):
        with pytest.raises(UserError, match=file):
            read_tokens(tmp_path / file, {})
    for nothing in ("", " , ", "admin"):
        with pytest.raises(ConfigError, match="RAYREC_SERVE_TOKENS: contains no token"):
            read_tokens(None, {"RAYREC_SERVE_TOKENS": nothing})
    with pytest.raises(ConfigError, match="RAYREC_SERVE_TOKENS: a token of fewer than 16") as raised:
        read_tokens(None, {"RAYREC_SERVE_TOKENS": "hunter2"})
    assert "hunter2" not in str(raised.value)


def test_a_stated_size_beyond_the_limit_is_not_read() -> None:
    status, _, body = ask(headers={"Content-Length": "1001"}, app=never)
    assert status == 413
    assert "the body is larger than" in json.loads(body)["error"]
    assert ask(headers={"Content-Length": "1000"})[0] == 200


def test_what_takes_too_long_is_504() -> None:
    status, _, body = ask(app=routed(sleep))
    assert status == 504
    assert json.loads(body) == {"error": "the request timed out after 0.2 s; send fewer rows, or try again"}


def test_an_unexpected_error_is_500_without_its_text(tmp_path: Path) -> None:
    status, _, body = ask(app=routed(fail), log=JsonLog("access", tmp_path, "r1"))
    assert status == 500
    assert json.loads(body) == {"error": "internal error; the server's log has the details"}
    assert json.loads((tmp_path / "access-r1.jsonl").read_text())["status"] == 500


async def leaving(scope: Scope, receive: Receive, send: Send) -> None:
    raise asyncio.CancelledError


def test_a_client_that_leaves_is_logged_as_499(tmp_path: Path) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        ask(app=leaving, log=JsonLog("access", tmp_path, "r1"))
    assert json.loads((tmp_path / "access-r1.jsonl").read_text())["status"] == 499


IDS = {"abc-1": True, "": False, "a" * 129: False, "a\xe9": False}


@pytest.mark.parametrize("given", IDS, ids=ascii)
def test_request_ids(given: str, tmp_path: Path) -> None:
    ask(headers={"X-Request-Id": given}, log=JsonLog("access", tmp_path, "r1"))
    logged = json.loads((tmp_path / "access-r1.jsonl").read_text())["request_id"]
    assert logged == given if IDS[given] else len(logged) == 32


def test_each_request_is_a_line_of_the_log(tmp_path: Path) -> None:
    log = JsonLog("access", tmp_path, "r1")
    ask("/v1/models", {"X-Request-Id": "one"}, log=log)
    ask("/v1/models", {"X-Request-Id": "two", "Content-Length": "1001"}, log=log)
    lines = [json.loads(line) for line in (tmp_path / "access-r1.jsonl").read_text().splitlines()]
    assert [(line["request_id"], line["status"], line["path"]) for line in lines] == [
        ("one", 200, "/v1/models"),
        ("two", 413, "/v1/models"),
    ]
    assert all(0 <= line["seconds"] < 5 for line in lines)


@pytest.mark.parametrize(
    ("given", "status", "error"),
    [
        (PlainTextResponse("Request dropped", 503, {"Retry-After": "7"}), 503, "Request dropped"),
        (PlainTextResponse("Internal Server Error", 500), 500, "Internal Server Error"),
        (PlainTextResponse("Path '/' not found.", 404), 503, "no model is ready; try again"),
    ],
)
@pytest.mark.parametrize("layer", [ask, lambda app: answer_of(ProxyFront(app))], ids=["replica", "proxy"])
def test_plain_errors_of_ray_serve_become_json(layer: Any, given: Response, status: int, error: str) -> None:
    found, headers, body = layer(app=given)
    assert (found, headers["content-type"], json.loads(body)) == (status, "application/json", {"error": error})
    assert int(headers["content-length"]) == len(body)
    assert headers.get("retry-after") == ({"Request dropped": "7"}.get(error) or ("1" if "is ready" in error else None))


@pytest.mark.parametrize("given", [JSONResponse({"error": "no model 'x'"}, 404), PlainTextResponse("a_metric 1", 200)])
def test_all_else_passes(given: Response) -> None:
    assert ask(app=given) == answer_of(ProxyFront(given)) == answer_of(given)


def test_a_proxy_takes_no_body_that_says_it_is_too_large() -> None:
    headers = {"Content-Length": str(2**24 + 1)}
    status, _, body = answer_of(ProxyFront(never), method="POST", headers=headers)
    assert (status, json.loads(body)) == (413, {"error": "the body is too large; send several requests"})


@pytest.fixture
def models() -> ServedModels:
    return ServedModels()


@pytest.fixture
def app(models: ServedModels, tmp_path: Path) -> Front:
    metrics = ServingMetrics()
    updates = Updates({}, Mock(), models, JsonLog("shadow", tmp_path, "test"), metrics)
    return create_app(models, Admission(ServeConfig(), read_tokens(None, {}), metrics), updates, list)


@pytest.mark.parametrize("path", ["/healthz", "/v2/health/ready"])
def test_health_checks_fail_before_the_end(app: Front, models: ServedModels, path: str) -> None:
    assert answer_of(app, path)[0] == 200
    models.end_soon = True
    status, headers, body = answer_of(app, path)
    assert (status, headers["retry-after"], json.loads(body)) == (503, "1", {"error": "the server is stopping"})
    for still in ("/v2/health/live", "/v1/models"):
        assert answer_of(app, still)[0] == 200
