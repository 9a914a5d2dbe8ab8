"""What is refused before the routes: tokens, sizes, times; and the id of each request."""

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from rayrec.common.errors import ConfigError, UserError
from rayrec.config import ServeConfig
from serve.admission import Admission
from serve.http import Gate, read_body
from serve.json_log import JsonLog
from serve.metrics import ServingMetrics
from serve.tokens import is_allowed, read_tokens

TOKEN = "0123456789abcdef"
METRICS = ServingMetrics()
SETTINGS = ServeConfig(max_body_mib=1000 / 2**20, request_timeout_seconds=0.2)


async def answering(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


async def sleeping(scope: Scope, receive: Receive, send: Send) -> None:
    await asyncio.sleep(20)


def ask(
    path: str = "/v1/models",
    headers: dict[str, str] | None = None,
    app: Any = answering,
    tokens: tuple[str, ...] = (),
    log: JsonLog | None = None,
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of an answer behind the gate."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    known = read_tokens(None, {"RAYREC_SERVE_TOKENS": ",".join(tokens)} if tokens else {})
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in (headers or {}).items()]
    scope = {"type": "http", "method": "POST", "path": path, "headers": raw}
    gate = Gate(app, Admission(SETTINGS, known, METRICS, log))
    asyncio.run(asyncio.wait_for(gate(scope, receive, send), 10))
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
    status, _, body = ask(headers={"Content-Length": "1001"}, app=sleeping)
    assert status == 413
    assert "the body is larger than" in json.loads(body)["error"]
    assert ask(headers={"Content-Length": "1000"})[0] == 200


def test_what_takes_too_long_is_504() -> None:
    status, _, body = ask(app=sleeping)
    assert status == 504
    assert json.loads(body) == {"error": "the request timed out after 0.2 s; send fewer rows, or try again"}


async def failing(scope: Scope, receive: Receive, send: Send) -> None:
    raise KeyError("a secret of the server")


async def reading(scope: Scope, receive: Receive, send: Send) -> None:
    async def disconnected() -> Any:
        return {"type": "http.disconnect"}

    await read_body(Request(scope, disconnected), Admission(SETTINGS, {}, METRICS))


async def leaving(scope: Scope, receive: Receive, send: Send) -> None:
    raise asyncio.CancelledError


def test_an_unexpected_error_is_500_without_its_text(tmp_path: Path) -> None:
    status, _, body = ask(app=failing, log=JsonLog("access", tmp_path, "r1"))
    assert status == 500
    assert json.loads(body) == {"error": "internal error; the server's log has the details"}
    assert json.loads((tmp_path / "access-r1.jsonl").read_text())["status"] == 500


@pytest.mark.parametrize("app", [reading, leaving])
def test_a_client_that_leaves_is_logged_as_499(app: Any, tmp_path: Path) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        ask(app=app, log=JsonLog("access", tmp_path, "r1"))
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
