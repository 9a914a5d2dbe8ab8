"""A command attaches to a cluster, or says at once that none answers."""

import os
import socket

import pytest

from cluster.ray_session import attach, has_cluster
from rayrec.common.errors import UserError
from rayrec.common.machine import free_port
from rayrec.internals.ray_core import head_address


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "auto", "nowhere.invalid:6379", "x"])
def test_no_cluster_is_said_in_one_line(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = free_port()
    address = host.format(port=closed)
    # Ray prefers the variable to the address that it is given; `auto` stands for it.
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{closed}" if address == "auto" else address)
    with pytest.raises(UserError) as raised:
        attach(address, {})
    message = str(raised.value)
    assert message.startswith(f"RAY_ADDRESS={address}: no Ray cluster answers (")
    assert "ray start --head" in message and "\n" not in message
    assert "RAY_ADDRESS" in os.environ


@pytest.mark.parametrize(("address", "is_cluster"), [(None, False), ("local", False), ("10.0.0.1:6379", True)])
def test_a_machine_without_address_and_other_nodes_is_alone(
    address: str | None, is_cluster: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if address is None:
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
    else:
        monkeypatch.setenv("RAY_ADDRESS", address)
    assert has_cluster() is is_cluster


def test_the_head_of_an_address_is_its_host_and_port() -> None:
    """An upgrade may change this private part of Ray: adapt rayrec/internals/ray_core.py."""
    assert head_address("192.0.2.1:6379") == head_address("ray://192.0.2.1:6379") == ("192.0.2.1", 6379)
    with socket.socket() as listening:
        listening.bind(("0.0.0.0", 0))
        listening.listen()
        socket.create_connection(head_address(f"127.0.0.1:{listening.getsockname()[1]}"), timeout=5).close()
