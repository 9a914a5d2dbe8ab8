"""Ports for servers that are about to start."""

import socket

from rayrec.common.ports import free_ports


def test_as_many_as_are_asked_for() -> None:
    assert free_ports(0) == []
    found = free_ports(3)
    assert len(set(found)) == 3
    for port in found:
        with socket.socket() as one:
            one.bind(("127.0.0.1", port))
