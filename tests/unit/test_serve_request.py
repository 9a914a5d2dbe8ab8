"""Options of `rayrec serve` that cannot go together."""

from pathlib import Path
from typing import Any

import pytest

from jobs.serve import ServeRequest
from rayrec.common.errors import ConfigError

MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "gRPC on one address": ({"grpc_port": 8001}, "gRPC listens on all of the machine's addresses; allow it by --host"),
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
