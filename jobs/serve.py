"""`rayrec serve`: answers HTTP requests until Ctrl-C or SIGTERM."""

import json
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib import import_module
from ipaddress import ip_address
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Annotated, ClassVar, Self
from urllib.parse import quote

from pydantic import Field, field_validator

from jobs.command import Command, PathTexts, Positional, Request, Result, main
from jobs.export import exported, is_run_folder
from rayrec.common.progress import Progress
from rayrec.common.text import shell_line
from rayrec.config.evaluate import InferencePrecision
from rayrec.store.folders import OutputKind
from rayrec.store.paths import LocalPath

if TYPE_CHECKING:
    from serve.server import Listener

_SECONDS_BETWEEN_LOOKS = 2.0
"""How soon the command tells of another version that answers."""


class ServeRequest(Request):
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

    outputs: ClassVar[Mapping[str, OutputKind]] = {"log_folder": "place"}

    def owns(self, output: Path) -> bool:
        return output.is_dir()

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
    def listener(self) -> "Listener":
        """Return where and how the server listens."""
        from serve.server import Listener

        return Listener(self.host, self.port, self.grpc_port, self.tls_certificate, self.tls_key)

    def check(self) -> None:
        self.folders()
        self.listener.check()

    def folders(self) -> dict[str, Path]:
        """Return the absolute folders by model name. Raises ConfigError."""
        from serve.arguments import named_folders

        return named_folders(self.model)

    def with_absolute_paths(self) -> Self:
        models = tuple(f"{name}={folder}" for name, folder in self.folders().items())
        return super().with_absolute_paths().model_copy(update={"model": models})


def run(request: ServeRequest, progress: Progress) -> Result:
    """Serve until interrupted, telling which versions answer, then stop in order.

    Health checks fail first, then the ports close.
    """
    from cluster.ray_serve import asking_replicas
    from rayrec.config.execution import SERVE, Execution
    from serve.models import ServedModel, agreed, news
    from serve.server import APPLICATION

    # Signals are handled until the last request in work is answered.
    with ExitStack() as handlers, serving(request, progress) as url:
        interrupts = handlers.enter_context(_interrupts())
        progress.message("Ctrl-C stops the server")
        ask = asking_replicas(APPLICATION)
        execution = Execution.on_ray(SERVE, max(1, len(ask("states"))))
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
    return Result(command="serve", execution=execution, details={"url": url})


@contextmanager
def serving(request: ServeRequest, progress: Progress) -> Iterator[str]:
    """Serve during the block; yields the URL, and shows it with a request to try."""
    from cluster.ray_serve import GRPC_LIMIT, HAPROXY_SWITCH, without_haproxy
    from cluster.ray_session import ray_session
    from rayrec.recipes import CONFIG_FILE, load_recipe
    from serve.arguments import ServeArguments
    from serve.folders import scan
    from serve.server import deployed
    from serve.tokens import read_tokens

    request.check()
    listener = request.listener
    listener.require_free_ports()
    with ExitStack() as stack:
        progress.stage("load models")
        # A run is exported into a temporary folder, which lives as long as the server.
        served = {
            name: stack.enter_context(exported(folder)) if is_run_folder(folder) else folder
            for name, folder in request.folders().items()
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
        # What Ray must be started with. Models are opened later: to import what opens them takes longer than to read
        # a recipe.
        settings = arguments.settings(load_recipe(next(iter(models.values())) / CONFIG_FILE).serve)
        os.environ.setdefault(GRPC_LIMIT, str(int(settings.max_body_mib * 2**20)))
        if request.tls_certificate is not None:
            # HAProxy has no TLS here; Serve's own proxy does.
            os.environ.setdefault(HAPROXY_SWITCH, "0")
        # Its imports take half as long as Ray.
        meanwhile = partial(import_module, "serve.app")
        ports = [port for port in (listener.port, listener.grpc_port) if port is not None]
        stack.enter_context(ray_session(meanwhile, serves=ports, progress=progress))
        progress.stage("start server")
        stack.enter_context(deployed(arguments, listener))
        progress.finish()
        # It answers: tell how to ask, and what is open.
        url, tokens = listener.url, bool(read_tokens(request.token_file))
        if not tokens and not listener.is_local:
            progress.message(
                f"anybody who can reach {listener.at(request.host, request.port)} can send requests; "
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


def example(url: str, name: str, folder: Path, tokens: bool = False) -> str:
    """Return a curl command that sends values of the model's vocabularies."""
    from rayrec.inference.examples import example_request

    verb, content = example_request(folder)
    return curl_line(endpoint_of(url, name, verb), json.dumps(content), tokens)


def endpoint_of(url: str, model: str, verb: str) -> str:
    """Return the URL at which a model of the server at `url` is asked."""
    return f"{url}/v1/models/{quote(model, safe='')}:{verb}"


def curl_line(endpoint: str, body: str, tokens: bool = False) -> str:
    """Return the command that posts `body`, as a shell takes it; `tokens`: with the token in its variable TOKEN."""
    header = '-H "Authorization: Bearer $TOKEN" ' if tokens else ""
    return f"curl -s {header}{shell_line([endpoint])} -d {shell_line([body])}"


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
