"""Options of `rayrec serve`: what cannot go together, addresses, and the request that it prints."""

import json
import shlex
import socket
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from jobs.serve import ServeRequest, curl_line, endpoint_of
from rayrec.common.errors import ConfigError, UserError
from serve.http import below
from serve.server import Listener

MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "gRPC on HTTP's port": ({"host": "0.0.0.0", "port": 8001, "grpc_port": 8001}, "--grpc-port 8001: is also --port"),
    "gRPC and HTTPS": (
        {"host": "0.0.0.0", "grpc_port": 8001, "tls_certificate": __file__, "tls_key": __file__},
        "Ray Serve has no TLS for gRPC",
    ),
    "a certificate without its key": ({"tls_certificate": __file__}, "give both or none"),
    "a name twice": ({"model": (Path("a/ctr"), Path("b/ctr"))}, "the name 'ctr' is used twice"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes(case: str) -> None:
    options, message = MISTAKES[case]
    with pytest.raises(ConfigError, match=message):
        ServeRequest(**{"model": (Path("model"),), **options}).check()


def test_what_goes_together() -> None:
    ServeRequest(model=(Path("model"),), host="0.0.0.0", grpc_port=8001).check()
    ServeRequest(model=(Path("model"),), tls_certificate=Path(__file__), tls_key=Path(__file__)).check()


@pytest.mark.parametrize(
    ("host", "url", "is_local"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000", True),
        ("0.0.0.0", "http://127.0.0.1:8000", False),
        ("::1", "http://[::1]:8000", True),
        ("[0:0:0:0:0:0:0:1]", "http://[::1]:8000", True),
        ("::", "http://[::1]:8000", False),
        ("2001:db8::7", "http://[2001:db8::7]:8000", False),
        ("localhost", "http://localhost:8000", True),
        ("ranker.internal", "http://ranker.internal:8000", False),
    ],
)
def test_where_a_client_of_this_machine_finds_it(host: str, url: str, is_local: bool) -> None:
    request = ServeRequest(model=("m",), host=host)
    assert (request.listener.url, request.listener.is_local) == (url, is_local)


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_port_that_is_taken_at_one_address_of_a_name(monkeypatch: pytest.MonkeyPatch, family: int) -> None:
    monkeypatch.setattr("serve.server.addresses", lambda _: ["127.0.0.1", "::1"])
    address = "::1" if family == socket.AF_INET6 else "127.0.0.1"
    with socket.create_server((address, 0), family=family) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"--port {port}: cannot listen on both.test:{port} \(.*in use\); give"):
            Listener("both.test", port, None, None, None).require_free_ports()


def test_a_host_that_is_none_of_this_machine() -> None:
    with pytest.raises(UserError, match=r"cannot listen on \[2001:db8::7\]:8000 \(.*\); give another --host"):
        Listener("2001:db8::7", 8000, None, None, None).require_free_ports()


@pytest.mark.parametrize("name", ["ctr", "5% a", "x;y&z", "q'u\"o`te$HOME", "日本", "a+b?#"])
@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "https://[::1]:8443"])
def test_the_printed_request_survives_a_shell(url: str, name: str) -> None:
    line = curl_line(endpoint_of(url, name, "predict"), json.dumps({"it's": name}), tokens=True)
    program, silent, _, header, endpoint, _, body = shlex.split(line)
    assert (program, silent, header) == ("curl", "-s", "Authorization: Bearer $TOKEN")
    assert endpoint.isascii() and not set(endpoint) & set(" \"'`#?;&$")
    assert unquote(urlsplit(endpoint).path) == f"/v1/models/{name}:predict"
    assert json.loads(body) == {"it's": name}


@pytest.mark.parametrize("path", ["rank", "/rank/", "/a b", "/a//b", "/ä", "/"])
def test_a_root_path_that_is_none(path: str) -> None:
    with pytest.raises(ValueError, match="write it as /rank"):
        ServeRequest(model=("m",), root_path=path)


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/team/x", "/"), ("/team/x/", "/"), ("/team/x/v2", "/v2"), ("/team/xy", "/team/xy"), ("/v2", "/v2")],
)
def test_paths_below_a_prefix(path: str, expected: str) -> None:
    assert below("/team/x", {"type": "http", "path": path})["path"] == expected
    assert below("", {"type": "http", "path": path})["path"] == path
