"""`rayrec serve`: answers HTTP requests until Ctrl-C or SIGTERM."""

import json
import logging
import os
import re
import shlex
import signal
import socket
import ssl
import time
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from http.client import HTTPException
from importlib import import_module
from ipaddress import ip_address
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Annotated, Self
from urllib.parse import quote, urlsplit

from pydantic import Field, field_validator

from cluster.haproxy import addresses
from jobs.command import Command, PathTexts, Positional, Request, Result, main
from jobs.export import exported, is_run_folder
from rayrec.common.errors import ConfigError, UserError
from rayrec.common.progress import Progress
from rayrec.config.evaluate import InferencePrecision
from rayrec.store.paths import LocalPath, location

if TYPE_CHECKING:
    from serve.arguments import ServeArguments


_APPLICATION = "rayrec"
_SECONDS_BETWEEN_LOOKS = 2.0
"""How soon the command tells of another version that answers."""
_ALL_ADDRESSES = {"0.0.0.0", "::"}
_LONGEST_WAIT = 30.0
"""Seconds until the proxy must have heard of a replica that runs."""


class ServeRequest(Request):
    """Answer HTTP and gRPC requests with trained models."""

    model: Annotated[PathTexts, Positional("MODEL"), Field(min_length=1)]
    """Model folder, run folder, folder of models or versions, or URI; NAME=FOLDER sets the model's name; repeatable."""
    port: int = Field(8000, ge=1, le=65_535)
    """Port for HTTP."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 is every IPv4 address, :: every address."""
    grpc_port: int | None = Field(None, ge=1, le=65_535)
    """Port for gRPC (Open Inference Protocol), with --host 0.0.0.0 or ::; by default no gRPC."""
    log_folder: LocalPath | None = None
    """Folder for logs as JSON lines; by default among Ray Serve's logs."""
    token_file: LocalPath | None = None
    """File with one token a line that requests must send; `TOKEN admin` may load and unload models. By default
    RAYREC_SERVE_TOKENS."""
    precision: InferencePrecision | None = None
    """Arithmetic of the dense network (serve.precision); by default that of the first model's recipe."""
    tls_certificate: LocalPath | None = None
    """PEM file of the certificate chain for HTTPS, with --tls-key."""
    tls_key: LocalPath | None = None
    """PEM file of the certificate's private key."""
    root_path: str = ""
    """Path prefix that a proxy adds, such as /rank; paths work with and without it."""
    drain_seconds: float = Field(5.0, ge=0)
    """Seconds after SIGTERM or Ctrl-C in which requests are answered while health checks fail."""

    @field_validator("token_file", "tls_certificate", "tls_key")
    @classmethod
    def _is_file(cls, file: Path | None) -> Path | None:
        if file is not None and not file.is_file():
            raise ValueError("no such file")
        return file

    @field_validator("root_path")
    @classmethod
    def _is_root_path(cls, path: str) -> str:
        from serve.arguments import require_root_path

        return require_root_path(path)

    @field_validator("host")
    @classmethod
    def _in_one_spelling(cls, host: str) -> str:
        with suppress(ValueError):
            return str(ip_address(host.removeprefix("[").removesuffix("]")))
        return host

    @property
    def url(self) -> str:
        """URL of the server for a client on this machine."""
        scheme = "http" if self.tls_certificate is None else "https"
        return f"{scheme}://{_joined({'0.0.0.0': '127.0.0.1', '::': '::1'}.get(self.host, self.host), self.port)}"

    @property
    def is_local(self) -> bool:
        """Return whether only clients on the server's machine reach it."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def check(self) -> None:
        self.folders()
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

    def folders(self) -> dict[str, Path]:
        """Return the absolute folders by model name. Raises ConfigError."""
        from serve.arguments import named_folders

        return named_folders(self.model)

    def reads(self) -> Iterator[Path]:
        yield from super().reads()
        yield from self.folders().values()

    def with_absolute_paths(self) -> Self:
        models = tuple(f"{name}={location(folder)}" for name, folder in self.folders().items())
        return super().with_absolute_paths().model_copy(update={"model": models})


def run(request: ServeRequest, progress: Progress) -> Result:
    """Serve until interrupted, telling which versions answer, then stop in order.

    Health checks fail first, then the ports close.
    """
    from cluster.ray_serve import asking_replicas
    from serve.models.served_models import ServedModel, agreed, news

    # Signals are handled until the last request in work is answered.
    with ExitStack() as handlers, serving(request, progress) as url:
        interrupts = handlers.enter_context(_interrupts())
        progress.message("Ctrl-C stops the server")
        ask = asking_replicas(_APPLICATION)
        told: Mapping[str, ServedModel] = {}
        while True:
            with suppress(Empty):
                interrupts.get(timeout=_SECONDS_BETWEEN_LOOKS)
                break
            models = agreed(told, ask("states"))
            for line in news(told, models):
                progress.message(line)
            told = models
        if not ask("end_soon"):
            progress.message("a replica did not receive the notice to stop, so its health checks still pass")
        progress.message(
            "stopping: health checks fail from now on; requests are accepted for another "
            f"{request.drain_seconds:g} s or until Ctrl-C"
        )
        with suppress(Empty):
            interrupts.get(timeout=request.drain_seconds)
        progress.message("finishing the requests in progress")
    return Result(command="serve", details={"url": url})


@contextmanager
def serving(request: ServeRequest, progress: Progress) -> Iterator[str]:
    """Serve during the block; yields the URL, and shows it with a request to try."""
    from cluster.ray_serve import GRPC_LIMIT, HAPROXY_SWITCH, without_haproxy
    from cluster.ray_session import ray_session
    from rayrec.recipes import CONFIG_FILE, load_recipe
    from serve.arguments import ServeArguments
    from serve.models.repository import scan
    from serve.operations.tokens import read_tokens

    request.check()
    _require_free_port(request.host, request.port)
    if request.grpc_port is not None:
        _require_free_port(request.host, request.grpc_port, "--grpc-port")
    folders = request.folders()
    with ExitStack() as stack:
        progress.stage("load models")
        served = {
            name: stack.enter_context(exported(folder)) if is_run_folder(folder) else folder
            for name, folder in folders.items()
        }
        given = {} if request.precision is None else {"precision": request.precision}
        arguments = ServeArguments(
            model=served,
            log_folder=request.log_folder,
            token_file=request.token_file,
            root_path=request.root_path,
            **given,
        )
        models = {name: next(iter(source.versions.values())) for name, source in scan(served).items()}
        # Opened as a whole later: to import what opens it takes longer than to read its recipe.
        settings = arguments.settings(load_recipe(next(iter(models.values())) / CONFIG_FILE).serve)
        os.environ.setdefault(GRPC_LIMIT, str(int(settings.max_body_mib * 2**20)))
        if request.tls_certificate is not None:
            # HAProxy has no TLS here; Serve's own proxy does.
            os.environ.setdefault(HAPROXY_SWITCH, "0")
        # Its imports take half as long as Ray.
        meanwhile = partial(import_module, "serve.app")
        stack.enter_context(ray_session(meanwhile, trains=False, progress=progress))
        progress.stage("start server")
        stack.enter_context(_deployed(arguments, request))
        url = request.url
        progress.finish()
        tokens = bool(read_tokens(request.token_file))
        if not tokens and not request.is_local:
            progress.message(
                f"anybody who can reach {_joined(request.host, request.port)} can send requests; "
                "--token-file restricts that"
            )
        if (why := without_haproxy()) is not None:
            progress.message(
                f"without HAProxy ({why}), bodies without a Content-Length are not limited; "
                "put a proxy that limits them in front"
            )
        name, folder = next(iter(models.items()))
        progress.message(
            f"serving {', '.join(models)} at {url}\n  in a browser: {url}/ (playground), {url}/#dashboard\n"
            f"  in a shell: {example(url, name, folder, tokens)}"
        )
        yield url


@contextmanager
def _deployed(arguments: "ServeArguments", request: ServeRequest) -> Iterator[None]:
    from ray import serve as ray_serve
    from ray.serve.config import HTTPOptions, gRPCOptions
    from ray.serve.schema import LoggingConfig

    from cluster.ray_serve import close_haproxy, host_for_serve, look_often, shut_down_serve, wait_for_controller
    from serve.app import build, settings_of

    application = build(arguments)
    # The replica answers 504 first; this is the limit for requests that no replica has taken.
    timeout = settings_of(arguments).request_timeout_seconds + 5
    look_often()
    # Ray Serve would show its address before it answers requests; `serving` shows it afterwards.
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    try:
        start = partial(
            ray_serve.start,
            # Proxies on other nodes would listen on those machines' own loopback addresses, where no client is.
            proxy_location="HeadOnly" if request.is_local else "EveryNode",
            http_options=HTTPOptions(
                host=host_for_serve(request.host),
                port=request.port,
                request_timeout_s=timeout,
                ssl_certfile=request.tls_certificate and str(request.tls_certificate.absolute()),
                ssl_keyfile=request.tls_key and str(request.tls_key.absolute()),
            ),
            grpc_options=None
            if request.grpc_port is None
            else gRPCOptions(
                port=request.grpc_port,
                grpc_servicer_functions=["serve.protocols.grpc.service.add_to_server"],
                request_timeout_s=timeout,
                # `add_to_server` does it, with the pool of descriptors that the messages are in.
                enable_reflection=False,
            ),
            logging_config=LoggingConfig(enable_access_log=False),
        )
        with ThreadPoolExecutor(1) as pool:
            starting = pool.submit(start)
            wait_for_controller(starting)
            try:
                ray_serve.run(application, name=_APPLICATION, route_prefix="/")
            except RuntimeError as error:
                raise _why_not_deployed(error) from None
            starting.result()
        if request.tls_certificate is not None:
            _require_tls(request.url)
        _wait_for_an_answer(request.url)
        yield
        # Replicas end when they have answered the requests that they began; the proxies live until then.
        ray_serve.delete(_APPLICATION)
        close_haproxy()
    finally:
        shut_down_serve()


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
    """TLS with a server of this command, whatever its certificate says."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _why_not_deployed(error: RuntimeError) -> Exception:
    """Return the UserError that a replica raised, of which Serve keeps only the text of the traceback; else `error`."""
    from ray import serve as ray_serve

    application = ray_serve.status().applications.get(_APPLICATION)
    deployments = application.deployments.values() if application else ()
    messages = "\n".join(deployment.message for deployment in deployments)
    found = re.findall(r"^(?:\w+\.)+UserError: (.+)$", messages, re.MULTILINE)
    return UserError(found[-1]) if found else error


def example(url: str, name: str, folder: Path, tokens: bool = False) -> str:
    """Return a curl command that sends values of the model's vocabularies."""
    from rayrec.inference.export.examples import example_row

    return curl_line(endpoint_of(url, name, "predict"), json.dumps({"instances": [example_row(folder)]}), tokens)


def endpoint_of(url: str, model: str, verb: str) -> str:
    """Return the URL at which a model of the server at `url` is asked."""
    return f"{url}/v1/models/{quote(model, safe='')}:{verb}"


def curl_line(endpoint: str, body: str, tokens: bool = False) -> str:
    """Return the command that posts `body`, as a shell takes it; `tokens`: with the token in its variable TOKEN."""
    header = '-H "Authorization: Bearer $TOKEN" ' if tokens else ""
    return f"curl -s {header}{shlex.quote(endpoint)} -d {shlex.quote(body)}"


def _joined(host: str, port: int) -> str:
    """Return host and port as a URL has them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _require_free_port(host: str, port: int, option: str = "--port") -> None:
    try:
        for address in addresses(host):
            with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((address, port))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        other = "--host" if isinstance(error, socket.gaierror) or error.errno is None else option
        raise UserError(
            f"{option} {port}: cannot listen on {_joined(host, port)} ({reason}); give another {other}"
        ) from None


@contextmanager
def _interrupts() -> "Iterator[SimpleQueue[int]]":
    """Queue the Ctrl-C and SIGTERM of the block, which are the ordinary end of serving, not an error."""
    # Of all queues this one may be filled by a signal's handler.
    interrupts: SimpleQueue[int] = SimpleQueue()
    previous = {
        number: signal.signal(number, lambda received, _: interrupts.put(received))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield interrupts
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


COMMAND = Command("serve", ServeRequest, run)

if __name__ == "__main__":
    raise SystemExit(main(COMMAND))
