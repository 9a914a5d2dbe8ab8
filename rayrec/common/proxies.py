"""Proxies that the environment names, and what must not go through them."""

import os
import socket
from collections.abc import Mapping, MutableMapping

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
