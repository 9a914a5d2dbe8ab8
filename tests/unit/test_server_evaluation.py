"""The client of `rayrec evaluate --server`: addresses, tokens, busy servers, and errors in a line."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from jobs.evaluate import EvaluateRequest
from jobs.server_evaluation import ServedModelClient
from rayrec.common.errors import ConfigError, UserError
from serve import arrow
from serve.tokens import TOKENS_VARIABLE, read_token

ROWS = pa.record_batch({"a": [1.0, 2.0, 3.0]})


class _Handler(BaseHTTPRequestHandler):
    """Gives the answers of `script` in turn; each is a status and a body, or None to close without one."""

    protocol_version = "HTTP/1.1"
    script: list[tuple[int, bytes] | None]
    asked: list[tuple[str, str | None]]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.asked.append((self.path, self.headers["Authorization"]))
        answer = self.script.pop(0)
        if answer is None:
            self.close_connection = True
            return
        status, body = answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if status == 503:
            self.send_header("Retry-After", "0.01")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


GOOD = 200, arrow.scores_stream("m", "7", np.array([0.25, 0.5, 1.0], np.float32))


@pytest.fixture
def server() -> Iterator[tuple[str, type[_Handler]]]:
    handler = type("Handler", (_Handler,), {"script": [], "asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}", handler
        running.shutdown()
        thread.join()


def test_scores_come_over_one_connection(server: tuple[str, type[_Handler]]) -> None:
    address, handler = server
    # A busy server is asked again; one that closed a kept connection, over a new one.
    handler.script += [(503, b"{}"), (503, b"{}"), GOOD, None, GOOD]
    client = ServedModelClient.at(address, "my model", "secret-secret-secret")
    for _ in range(2):
        answer = client.score(ROWS)
        assert answer.scores.tolist() == [0.25, 0.5, 1.0] and answer.version == "7" and answer.seconds > 0
    assert set(handler.asked) == {("/v1/models/my%20model:predict", "Bearer secret-secret-secret")}
    assert handler.script == []


ERRORS: dict[str, tuple[int, bytes, str]] = {
    "ours": (401, json.dumps({"error": "no valid token"}).encode(), "answered 401: no valid token; give --token-file"),
    "a proxy's": (502, b"<html>\n<b>Bad  gateway</b>", "answered 502: <html> <b>Bad gateway</b>$"),
    "another server": (200, b"<html>Welcome</html>", "answered no scores; is it a server of `rayrec serve`"),
    "nothing": (500, b"", "answered 500: Internal Server Error"),
    "json of others": (404, b'["no"]', "answered 404: .*; name the model by --server http://HOST:PORT/v1/models/NAME"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_what_a_server_says_is_a_line(server: tuple[str, type[_Handler]], name: str) -> None:
    address, handler = server
    status, body, message = ERRORS[name]
    handler.script.append((status, body))
    with pytest.raises(UserError, match=message) as raised:
        ServedModelClient.at(address, "m").score(ROWS)
    assert "\n" not in str(raised.value)


def test_a_server_that_hangs_up_is_no_answer(server: tuple[str, type[_Handler]]) -> None:
    address, handler = server
    handler.script.append(None)
    with pytest.raises(UserError, match=f"--server {address}/v1/models/m: no answer"):
        ServedModelClient.at(address, "m").score(ROWS)


ADDRESSES = {
    "http://host:80": "http://host:80/v1/models/m",
    "https://[::1]:8443/": "https://[::1]:8443/v1/models/m",
    "http://host/behind/proxy": "http://host/behind/proxy/v1/models/m",
    "http://host/v1/models/other": "http://host/v1/models/other",
    "http://host/v1/models/other/versions/3/": "http://host/v1/models/other/versions/3",
}


@pytest.mark.parametrize("address", ADDRESSES)
def test_addresses(address: str) -> None:
    assert ServedModelClient.at(address, "m").url == ADDRESSES[address]


@pytest.mark.parametrize("address", ["host:8000", "ftp://host", "http://", "http://host:port", "http://host:99999", ""])
def test_wrong_addresses(address: str) -> None:
    with pytest.raises(ConfigError, match="write it as http://HOST:PORT"):
        ServedModelClient.at(address, "m")


def test_the_first_token_is_sent(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("one-long-enough-token\nanother-long-enough-token\n")
    given = {TOKENS_VARIABLE: "of-the-environment-1, of-the-environment-2"}
    assert read_token(tmp_path / "tokens", given) == "one-long-enough-token"
    assert read_token(None, given) == "of-the-environment-1"
    assert read_token(None, {}) is None


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "data: missing; it is required without --server"),
    "raw rows without a server": ({"data": "d", "input": "x.csv"}, "--input, --token-file: only for --server"),
    "a dataset for a server": ({"server": "http://h", "data": "d", "input": "x.csv"}, "--server: scores raw rows"),
    "no rows for a server": ({"server": "http://h"}, "--server: scores raw rows; give --input"),
    "a precision for a server": (
        {"server": "http://h", "input": "x.csv", "precision": "bf16"},
        "--precision: a server has its own",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_options_that_do_not_go_together(name: str) -> None:
    values, message = WRONG[name]
    with pytest.raises(ConfigError, match=message):
        EvaluateRequest(source="model", **values).check()
