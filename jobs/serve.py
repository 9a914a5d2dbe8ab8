"""Answer HTTP requests: `python -m jobs.serve --model MODEL [--port 8000]`, until Ctrl-C or SIGTERM."""

import json
import logging
import re
import shlex
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic import Field

from jobs.entry_point import Job, main
from jobs.export import exported, is_run_folder
from jobs.request import Request
from jobs.result import Result
from rayrec.common.errors import UserError
from rayrec.common.progress import Progress

if TYPE_CHECKING:
    from serve.arguments import ServeArguments


_APPLICATION = "rayrec"


class ServeRequest(Request):
    """Serve models over HTTP."""

    model: tuple[Path, ...] = Field(min_length=1)
    """Model folders, folders of the versions of a model or of several models, or run folders; a model's name is its
    folder's, or given as NAME=FOLDER."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 listens on all of the machine's, and there is no authentication."""
    port: int = Field(8000, ge=1, le=65_535)
    log_folder: Path | None = None
    """Where the server writes logs of JSON lines: comparisons with a shadow."""

    def check(self) -> None:
        self.folders()

    def folders(self) -> dict[str, Path]:
        """Absolute folders by model name. Raises ConfigError."""
        from serve.arguments import named_folders

        return named_folders([str(model) for model in self.model])

    def with_absolute_paths(self) -> Self:
        models = tuple(Path(f"{name}={folder}") for name, folder in self.folders().items())
        return super().with_absolute_paths().model_copy(update={"model": models})


def run(request: ServeRequest, progress: Progress) -> Result:
    """Serve until interrupted, then stop in order."""
    interrupted = threading.Event()
    with serving(request, progress) as url, _on_interrupt(interrupted.set):
        progress.message("Ctrl-C stops the server")
        while not interrupted.wait(1.0):
            pass
    return Result(command="serve", details={"url": url})


@contextmanager
def serving(request: ServeRequest, progress: Progress) -> Iterator[str]:
    """Serve for the time of the block; yields the URL, and tells it with a request to try."""
    from cluster.ray_session import ray_session
    from serve.arguments import ServeArguments
    from serve.repository import scan

    _require_free_port(request.host, request.port)
    folders = request.folders()
    with ExitStack() as stack:
        progress.stage("load models")
        served = {
            name: stack.enter_context(exported(folder)) if is_run_folder(folder) else folder
            for name, folder in folders.items()
        }
        arguments = ServeArguments(model=served, log_folder=request.log_folder)
        models = {name: next(iter(source.versions.values())) for name, source in scan(served).items()}
        stack.enter_context(ray_session())
        progress.stage("start server")
        stack.enter_context(_deployed(arguments, request.host, request.port))
        url = f"http://{'127.0.0.1' if request.host == '0.0.0.0' else request.host}:{request.port}"
        progress.finish()
        name, folder = next(iter(models.items()))
        progress.message(f"serving {', '.join(models)} at {url}; try\n  {example(url, name, folder)}")
        yield url


@contextmanager
def _deployed(arguments: "ServeArguments", host: str, port: int) -> Iterator[None]:
    from ray import serve as ray_serve
    from ray.serve.config import HTTPOptions
    from ray.serve.schema import LoggingConfig

    from serve.app import build

    application = build(arguments)
    # What it tells is told here: the address, once requests are answered.
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    try:
        ray_serve.start(
            http_options=HTTPOptions(host=host, port=port), logging_config=LoggingConfig(enable_access_log=False)
        )
        try:
            ray_serve.run(application, name=_APPLICATION, route_prefix="/")
        except RuntimeError as error:
            raise _why_not_deployed(error) from None
        yield
    finally:
        ray_serve.shutdown()


def _why_not_deployed(error: RuntimeError) -> Exception:
    """The user's mistake that a replica met, of whose traceback Serve keeps the text alone; else `error`."""
    from ray import serve as ray_serve

    application = ray_serve.status().applications.get(_APPLICATION)
    deployments = application.deployments.values() if application else ()
    told = "\n".join(deployment.message for deployment in deployments)
    found = re.findall(r"^(?:\w+\.)+UserError: (.+)$", told, re.MULTILINE)
    return UserError(found[-1]) if found else error


def example(url: str, name: str, folder: Path) -> str:
    """A curl command with values that the model knows."""
    from rayrec.features.schema import Schema
    from rayrec.inference.example_row import example_row

    body = json.dumps({"instances": [example_row(Schema.load(folder), folder)]})
    return f"curl -s {url}/v1/models/{name}:predict -d {shlex.quote(body)}"


def _require_free_port(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise UserError(f"--port {port}: cannot listen on {host}:{port} ({reason}); give another --port") from None


@contextmanager
def _on_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C and SIGTERM are the ordinary end of serving, not an error."""
    previous = {number: signal.signal(number, lambda *_: stop()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


JOB = Job("serve", ServeRequest, run)

if __name__ == "__main__":
    raise SystemExit(main(JOB))
