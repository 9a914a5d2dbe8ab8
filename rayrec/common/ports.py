"""Finds ports of this machine for servers that are about to start."""

import socket


def free_ports(count: int) -> list[int]:
    """Different ports of 127.0.0.1 on which nothing listens."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def free_port() -> int:
    """One port of 127.0.0.1 on which nothing listens."""
    return free_ports(1)[0]
