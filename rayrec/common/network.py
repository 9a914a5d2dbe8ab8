"""Ports of this machine for servers that are about to start, and proxies that must not be asked for them."""

import os
import random
import socket
from collections.abc import Mapping, MutableMapping
from contextlib import ExitStack, suppress

_PORTS = range(20_000, 32_768)
"""Above the ports that Ray gives to its workers, and below those that Linux gives to any connection that is made until
the server has started."""


def free_ports(count: int) -> list[int]:
    """Return different ports of 127.0.0.1 on which nothing listens. Raises OSError if there are too few."""
    ports: list[int] = []
    with ExitStack() as stack:
        # Drawn from the system's randomness, so that no two processes draw the same ones.
        candidates = iter(random.SystemRandom().sample(_PORTS, len(_PORTS)))
        while len(ports) < count:
            if (port := next(candidates, None)) is None:
                raise OSError(f"this machine does not have {count} free ports; end other programs that listen")
            one = stack.enter_context(socket.socket())
            with suppress(OSError):
                one.bind(("127.0.0.1", port))
                ports.append(port)
    return ports


def free_port() -> int:
    """Return one port of 127.0.0.1 on which nothing listens."""
    return free_ports(1)[0]


_NAMES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")
_DIRECT = ("no_proxy", "NO_PROXY")
"""The hosts that are reached directly; most programs read the first, and the second where it is not set."""


def proxy_variables(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the variables, in either case, that name a proxy."""
    return [name for name in environment if name.lower() in _NAMES and environment[name]]


def reach_this_machine_directly(environment: MutableMapping[str, str] = os.environ) -> None:
    """Add this machine's names and addresses to the hosts that this process, and those it starts, ask without a proxy.

    Otherwise a proxy, which is elsewhere or does not know them, would be asked for servers on this machine. Does
    nothing where the environment names no proxy.
    """
    if not proxy_variables(environment):
        return
    import psutil

    families = (socket.AF_INET, socket.AF_INET6)
    found = [of for interface in psutil.net_if_addrs().values() for of in interface if of.family in families]
    addresses = ["127.0.0.1", "::1", *(address.address.partition("%")[0] for address in found)]
    # Some programs compare the host as a URL has it.
    own = ["localhost", socket.gethostname(), *addresses, *(f"[{one}]" for one in addresses if ":" in one)]
    given = next((environment[name] for name in _DIRECT if environment.get(name)), "")
    hosts = [host.strip() for host in given.split(",") if host.strip()]
    if "*" not in hosts:
        environment.update(dict.fromkeys(_DIRECT, ",".join(dict.fromkeys([*hosts, *own]))))
