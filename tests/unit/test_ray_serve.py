"""Ray Serve is as `cluster.ray_serve` expects beyond its public interface; HAProxy listens to no network unasked."""

import os
from pathlib import Path

import pytest
from ray._private import ray_constants
from ray.serve._private import constants, controller, grpc_util, haproxy
from ray.serve._private.haproxy_templates import HAPROXY_CONFIG_TEMPLATE

from cluster import haproxy as haproxy_program
from cluster import ray_serve
from cluster.ray_serve import HAPROXY_SWITCH, serve_behind_haproxy
from rayrec.common.machine import free_ports


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment without settings of Serve."""
    for name in [name for name in os.environ if name.startswith("RAY_SERVE")]:
        monkeypatch.delenv(name)


def test_the_environment_is_set_for_the_block(plain: None) -> None:
    before = dict(os.environ)
    with serve_behind_haproxy():
        assert os.environ[HAPROXY_SWITCH] == "1"
        program = Path(os.environ["RAY_SERVE_HAPROXY_BINARY_PATH"])
        assert os.access(program, os.X_OK)
        # Whoever reaches the control socket may change what HAProxy does.
        assert Path(os.environ["RAY_SERVE_HAPROXY_SOCKET_PATH"]).parent.stat().st_mode & 0o077 == 0
        # All servers of a machine would share the ports that Serve has by default.
        kinds = ("HAPROXY_STATS", "HAPROXY_METRICS", "FALLBACK_PROXY_HTTP", "FALLBACK_PROXY_GRPC")
        assert len({os.environ[f"RAY_SERVE_{kind}_PORT"] for kind in kinds} - {"8500", "9500"}) == 4
    assert dict(os.environ) == before
    assert not program.exists()


def test_haproxy_takes_no_port_of_the_server(plain: None) -> None:
    others = set(range(2**16)) - set(free_ports(4))
    with serve_behind_haproxy(others):
        kinds = ("HAPROXY_STATS", "HAPROXY_METRICS", "FALLBACK_PROXY_HTTP", "FALLBACK_PROXY_GRPC")
        assert others.isdisjoint({int(os.environ[f"RAY_SERVE_{kind}_PORT"]) for kind in kinds})


def test_every_setting_is_one_that_ray_serve_reads(plain: None) -> None:
    """Most of them are not documented: a release of Ray that renames one would silently ignore it."""
    known = Path(constants.__file__).read_text() + Path(haproxy.__file__).read_text()
    before = set(os.environ)
    with serve_behind_haproxy():
        unknown = [name for name in os.environ if name not in before and f'"{name}"' not in known]
    assert unknown == []


def test_the_controller_is_found_by_its_name() -> None:
    """Otherwise a server ends without waiting for its replicas."""
    assert (ray_serve._CONTROLLER, ray_serve._NAMESPACE) == (constants.SERVE_CONTROLLER_NAME, constants.SERVE_NAMESPACE)
    assert callable(controller.ServeController.graceful_shutdown)


def test_the_niceness_of_processes_is_a_setting_of_ray() -> None:
    assert ray_constants.RAY_WORKER_NICENESS == ray_serve.NICENESS


def test_servers_of_grpc_take_over_what_is_added_to_the_options() -> None:
    """An upgrade may change this private part of Ray Serve: adapt `receive_little_unread`."""
    before = list(constants.DEFAULT_GRPC_SERVER_OPTIONS)
    try:
        ray_serve.receive_little_unread()
        ray_serve.receive_little_unread()
        assert [*before, ("grpc.http2.bdp_probe", 0)] == grpc_util.DEFAULT_GRPC_SERVER_OPTIONS
    finally:
        constants.DEFAULT_GRPC_SERVER_OPTIONS[:] = before


def test_a_setting_of_the_user_stands(plain: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HAPROXY_SWITCH, "0")
    before = dict(os.environ)
    with serve_behind_haproxy():
        added = dict(os.environ.items() - before.items())
        # Serve's own servers answer in JSON in any case.
        assert added == {"RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "serve.http.middlewares"}


def test_statistics_are_this_machines() -> None:
    """The lines of Ray's own template, with the ports filled in."""
    metrics, statistics = "9101", "8404"
    config = haproxy_program.changed(
        HAPROXY_CONFIG_TEMPLATE.replace("{{ config.metrics_port }}", metrics)
        .replace("{{ config.stats_port }}", statistics)
        .replace("{{ config.frontend_host }}:{{ config.frontend_port }}", "*:8000")
        .replace("{{ config.grpc_frontend_host }}:{{ config.grpc_frontend_port }}", "*:9000")
    )
    lines = [line.strip() for line in config.splitlines()]
    assert [line for line in lines if line.startswith("bind ")] == [
        f"bind 127.0.0.1:{metrics}",
        "bind *:8000",
        "bind *:9000 proto h2",
        f"bind 127.0.0.1:{statistics}",
    ]


@pytest.mark.parametrize("temporary", ["short", "a/folder/whose/path/is/too/long/for/a/socket", "not there"])
def test_the_socket_has_a_short_path_wherever_temporary_files_are(
    plain: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, temporary: str
) -> None:
    folder = Path("/dev/shm") if temporary == "short" else tmp_path / temporary
    if temporary != "not there":
        folder.mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    with serve_behind_haproxy():
        node = "0" * 56
        socket = Path(os.environ["RAY_SERVE_HAPROXY_SOCKET_PATH"])
        # HAProxy binds it under another name first.
        assert len(f"{socket.parent}/{node}/{socket.name}.1234567.tmp") <= 107
        assert os.access(os.environ["RAY_SERVE_HAPROXY_BINARY_PATH"], os.X_OK)
