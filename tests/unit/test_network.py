"""Ports for servers that are about to start; what goes to this machine passes by the proxies that are named."""

import socket
from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]

import psutil
import pytest
from requests.utils import should_bypass_proxies

from cluster.job_client import JobClient
from rayrec.common.errors import UserError
from rayrec.common.machine import free_port, free_ports, proxy_variables, reach_this_machine_directly


def test_as_many_as_are_asked_for() -> None:
    assert free_ports(0) == []
    found = free_ports(3)
    assert len(set(found)) == 3
    for port in found:
        with socket.socket() as one:
            one.bind(("127.0.0.1", port))


def test_ports_that_somebody_else_will_take_are_left_out() -> None:
    most = set(range(2**16)) - set(free_ports(3))
    assert set(free_ports(3, but=most)).isdisjoint(most)
    with pytest.raises(OSError, match="does not have 4 free ports"):
        free_ports(4, but=most)


PROXY = "http://user:secret@proxy.invalid:3128"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the proxies of the machine that the tests run on."""
    for name in ("http", "https", "all", "grpc", "no", "no_grpc"):
        for variable in (f"{name}_proxy", f"{name}_proxy".upper()):
            monkeypatch.setenv(variable, "")  # so that it is as before after the test, too
            monkeypatch.delenv(variable)


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY", "grpc_proxy"])
@pytest.mark.parametrize("given", [{}, {"no_proxy": ".corp, 10.1.1.1"}, {"NO_PROXY": ".corp,10.1.1.1"}])
def test_this_machine_is_reached_directly_and_others_as_before(name: str, given: dict[str, str]) -> None:
    environment = {name: PROXY, **given}
    reach_this_machine_directly(environment)
    first = dict(environment)
    reach_this_machine_directly(environment)
    assert environment == first and environment[name] == PROXY
    assert environment["no_proxy"] == environment["NO_PROXY"]
    own = [a.address for a in psutil.net_if_addrs()["lo"] if a.family == socket.AF_INET]
    for host in ("localhost", "127.0.0.1", "[::1]", socket.gethostname(), *own):
        assert should_bypass_proxies(f"http://{host}:8265/x", environment["no_proxy"]), host
        assert proxy_bypass_environment(f"{host}:8265", {"no": environment["no_proxy"]}), host
    for host, is_direct in {"a.corp": bool(given), "10.1.1.1": bool(given), "example.org": False}.items():
        assert should_bypass_proxies(f"http://{host}/", environment["no_proxy"]) is is_direct, host


@pytest.mark.parametrize("environment", [{}, {"http_proxy": ""}, {"http_proxy": PROXY, "no_proxy": "*"}])
def test_nothing_is_changed_without_need(environment: dict[str, str]) -> None:
    before = dict(environment)
    reach_this_machine_directly(environment)
    assert environment == before


@pytest.mark.parametrize(
    ("variable", "address", "is_named"),
    [
        ("HTTP_PROXY", "http://head.invalid:{port}", True),
        ("all_proxy", "http://head.invalid:{port}", True),
        ("https_proxy", "http://127.0.0.1:{port}", False),
        ("http_proxy", "http://127.0.0.1:{port}", False),
    ],
)
def test_a_proxy_before_a_dashboard_is_named(
    variable: str, address: str, is_named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, f"http://user:secret@127.0.0.1:{free_port()}")
    reach_this_machine_directly()
    assert proxy_variables() == [variable]
    with pytest.raises(UserError, match="no Ray dashboard answers") as raised:
        JobClient(address.format(port=free_port()))
    message = str(raised.value)
    assert (f"through the proxy of {variable}; add head.invalid to no_proxy" in message) is is_named
    assert "secret" not in message and "\n" not in message
