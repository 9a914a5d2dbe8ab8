"""Finds ports of this machine for servers that are about to start."""

import random
import socket
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
