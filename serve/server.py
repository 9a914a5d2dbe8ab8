"""Start and end of Ray Serve with the application, as `rayrec serve` does it: where it listens, TLS, and why not.

Imports no Ray, whose settings are read when it is imported.
"""

import logging
import re
import socket
import ssl
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from cluster.haproxy import addresses
from rayrec.common.errors import ConfigError, UserError
from serve.arguments import ServeArguments

APPLICATION = "rayrec"
_ALL_ADDRESSES = {"0.0.0.0", "::"}
_LONGEST_WAIT = 30.0
"""Seconds until the proxy must have heard of a replica that runs."""


@dataclass(frozen=True)
class Listener:
    """Where and how a server listens; its errors name the options of `rayrec serve`."""

    host: str
    port: int
    grpc_port: int | None
    tls_certificate: Path | None
    tls_key: Path | None

    @property
    def url(self) -> str:
        """URL of the server for a client on this machine."""
        scheme = "http" if self.tls_certificate is None else "https"
        return f"{scheme}://{self.at({'0.0.0.0': '127.0.0.1', '::': '::1'}.get(self.host, self.host), self.port)}"

    @property
    def is_local(self) -> bool:
        """Return whether only clients on the server's machine reach it."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def check(self) -> None:
        """Raise ConfigError if options do not go together."""
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ConfigError("--tls-certificate and --tls-key: give both or none")
        if self.grpc_port is None:
            return
        # Ray Serve's gRPC server listens on all addresses and has no TLS: the user must accept both.
        if self.host not in _ALL_ADDRESSES:
            raise ConfigError(
                "--grpc-port: gRPC listens on all addresses of the machine; add --host 0.0.0.0 to allow it"
            )
        if self.tls_certificate is not None:
            raise ConfigError("--grpc-port: Ray Serve has no TLS for gRPC; leave out --tls-certificate, or --grpc-port")
        if self.grpc_port == self.port:
            raise ConfigError(f"--grpc-port {self.grpc_port}: is also --port; give another one")

    def require_free_ports(self) -> None:
        """Raise UserError unless this process could listen at every address that the host stands for."""
        for option, port in (("--port", self.port), ("--grpc-port", self.grpc_port)):
            try:
                for address in addresses(self.host) if port is not None else ():
                    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
                        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                        probe.bind((address, port))
            except OSError as error:
                assert port is not None
                reason = (error.strerror or str(error)).lower()
                other = "--host" if isinstance(error, socket.gaierror) or error.errno is None else option
                where = self.at(self.host, port)
                raise UserError(f"{option} {port}: cannot listen on {where} ({reason}); give another {other}") from None

    @staticmethod
    def at(host: str, port: int) -> str:
        """Return host and port as a URL has them."""
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextmanager
def deployed(arguments: ServeArguments, listener: Listener) -> Iterator[None]:
    """Let the application answer during the block, in the Ray session of this process.

    Requests are answered from the start of the block on, and those in work are still answered when it has ended.
    Raises UserError if a model does not load, or the server does not speak TLS though it should.
    """
    from ray import serve as ray_serve
    from ray.serve.config import HTTPOptions, gRPCOptions
    from ray.serve.schema import LoggingConfig

    from cluster.ray_serve import close_haproxy, host_for_serve, shut_down_serve, wait_for_controller
    from serve.app import build, settings_of

    application = build(arguments)
    # The replica answers 504 first; this is the limit for requests that no replica has taken.
    timeout = settings_of(arguments).request_timeout_seconds + 5
    # Ray Serve would show its address before it answers requests; the command shows it afterwards.
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    certificate, key = listener.tls_certificate, listener.tls_key
    try:
        start = partial(
            ray_serve.start,
            # Proxies on other nodes would listen on those machines' own loopback addresses, where no client is.
            proxy_location="HeadOnly" if listener.is_local else "EveryNode",
            http_options=HTTPOptions(
                host=host_for_serve(listener.host),
                port=listener.port,
                request_timeout_s=timeout,
                ssl_certfile=certificate and str(certificate.absolute()),
                ssl_keyfile=key and str(key.absolute()),
            ),
            grpc_options=None
            if listener.grpc_port is None
            else gRPCOptions(
                port=listener.grpc_port,
                grpc_servicer_functions=["serve.grpc_server.add_to_server"],
                request_timeout_s=timeout,
                # `add_to_server` does it, with the pool of descriptors that the messages are in.
                enable_reflection=False,
            ),
            logging_config=LoggingConfig(enable_access_log=False),
        )
        # Replicas start while Serve still waits for its proxies.
        with ThreadPoolExecutor(1) as pool:
            starting = pool.submit(start)
            wait_for_controller(starting)
            try:
                ray_serve.run(application, name=APPLICATION, route_prefix="/")
            except RuntimeError as error:
                raise _why_not_deployed(error) from None
            starting.result()
        if certificate is not None:
            _require_tls(listener.url)
        _wait_for_an_answer(listener.url)
        yield
        # Replicas end when they have answered the requests that they began; the proxies live until then.
        ray_serve.delete(APPLICATION)
        close_haproxy()
    finally:
        shut_down_serve()


def _why_not_deployed(error: RuntimeError) -> Exception:
    """Return the UserError that a replica raised, of which Serve keeps only the text of the traceback; else `error`."""
    from ray import serve as ray_serve

    application = ray_serve.status().applications.get(APPLICATION)
    deployments = application.deployments.values() if application else ()
    messages = "\n".join(deployment.message for deployment in deployments)
    found = re.findall(r"^(?:\w+\.)+UserError: (.+)$", messages, re.MULTILINE)
    return UserError(found[-1]) if found else error


def _require_tls(url: str) -> None:
    """Raise UserError if the server has no TLS: behind HAProxy, Ray Serve leaves it out and does not say so."""
    try:
        address = urlsplit(url)
        with socket.create_connection((address.hostname, address.port or 443), timeout=10) as connection:
            _trusting().wrap_socket(connection).close()
    except OSError as error:
        raise UserError(
            f"--tls-certificate: the server does not speak TLS ({type(error).__name__}); start Ray with "
            "RAY_SERVE_ENABLE_HA_PROXY=0, and check that the key fits the certificate"
        ) from None


def _wait_for_an_answer(url: str) -> None:
    """Wait until a request reaches a replica: proxies learn of replicas after Ray Serve has called them running.

    Where all proxies are on other nodes nobody answers here, so it gives up after a while.
    """
    deadline = time.monotonic() + _LONGEST_WAIT
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"{url}/healthz", timeout=5, context=_trusting()).close()
            return
        except (OSError, HTTPException):
            time.sleep(0.05)


def _trusting() -> ssl.SSLContext:
    """Return TLS with a server of this command, whatever its certificate says."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
