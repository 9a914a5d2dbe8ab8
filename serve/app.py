"""The application that Ray Serve runs: `serve run serve.app:build model=FOLDER`.

One deployment: its replica holds every model, so that a request takes one hop, and joins the requests that wait for
the same model into one forward pass. A request is checked before it is joined, so a bad one cannot fail the others.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from fastapi import FastAPI
from ray import serve as ray_serve
from ray.serve import Application

from rayrec.config import ServeConfig
from rayrec.inference.model_folder import ModelFolder
from serve.arguments import ServeArguments
from serve.http_app import create_app
from serve.json_log import JsonLog
from serve.repository import scan
from serve.served_models import ServedModels
from serve.served_version import ServedVersion
from serve.updates import Updates, poll_forever


def build(args: ServeArguments) -> Application:
    """The Serve application for `args`. Raises UserError where a folder holds no whole model."""
    newest = [next(iter(source.versions.values())) for source in scan(args.model).values()]
    settings = args.settings(ModelFolder.open(newest[0]).recipe.serve)
    deployment = ModelServer.options(  # type: ignore[attr-defined]
        num_replicas=settings.replicas,
        ray_actor_options={"num_cpus": settings.threads_per_replica},
        # One batch in the forward pass while the next one gathers; more wait in the proxy's queue.
        max_ongoing_requests=2 * settings.max_batch_size,
        max_queued_requests=settings.max_queued_requests,
    )
    return deployment.bind(args.model, settings, args.log_folder)


# A folder that does not load at once does not load at the twentieth try.
@ray_serve.deployment(max_constructor_retry_count=1)
@ray_serve.ingress()
class ModelServer:
    """A replica: the models in its memory, their routes, and the thread that brings new versions."""

    def __init__(self, folders: dict[str, Path], settings: ServeConfig, log_folder: Path | None) -> None:
        torch.set_num_threads(settings.threads_per_replica)
        self._max_rows = settings.max_rows_per_request
        self._models = ServedModels()
        # Beside the event loop, so that requests are read and checked while a batch is scored.
        executor = ThreadPoolExecutor(1, "scoring")
        replica = ray_serve.get_replica_context().replica_id.unique_id

        def load(name: str, version: str, folder: Path) -> ServedVersion:
            return ServedVersion.load(name, version, folder, executor, settings)

        updates = Updates(folders, load, self._models, JsonLog("shadow", log_folder, replica))
        updates.load_all()
        poll_forever(updates, settings.poll_seconds)

    def __serve_build_asgi_app__(self) -> FastAPI:
        return create_app(self._models, self._max_rows)
