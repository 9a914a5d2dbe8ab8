"""The application that Ray Serve runs: `serve run serve.app:build model=FOLDER`.

One deployment: its replica holds every model, so that a request takes one hop, and joins the requests that wait for
the same model into one forward pass. A request is checked before it is joined, so a bad one cannot fail the others.
`create_app` joins the routes of all protocols with the pages and figures.
"""

import asyncio
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from ray import serve as ray_serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, BackpressureConfig
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp

from cluster.ray_serve import receive_little_unread
from rayrec.common.machine import keep_freed_memory
from rayrec.config import ServeConfig
from rayrec.inference.folder.table_files import TableMemory
from rayrec.recipes import CONFIG_FILE, load_recipe
from serve import v1, v2
from serve.admission import Admission, set_of_this_replica
from serve.arguments import ServeArguments
from serve.dashboard import figures, keep
from serve.folders import scan
from serve.grpc_app import GrpcMethods
from serve.http import Front, Route, Router
from serve.json_log import JsonLog
from serve.metrics import ServingMetrics, of_all_nodes, refused_requests
from serve.models import ServedModel, ServedModels, ServedVersion
from serve.openapi import document
from serve.tokens import read_tokens
from serve.updates import Updates, poll_forever

_STUCK_SECONDS = 25.0
_KEPT_BYTES = 32 * 2**20
# The page contains its style and script, and talks to this server alone.
_PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# What a proxy in front may say that it took away.
_PREFIX = re.compile(r"(/[\w.~%-]+)+/?", re.ASCII)


def build(args: ServeArguments) -> Application:
    """Return the Serve application for `args`. Raises UserError if a folder holds no whole model."""
    settings = settings_of(args)
    scale: dict[str, Any] = {"num_replicas": settings.replicas}
    if settings.max_replicas is not None:
        scale = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=settings.replicas,
                max_replicas=settings.max_replicas,
                target_ongoing_requests=settings.target_ongoing_requests,
            )
        }
    deployment = ModelServer.options(  # type: ignore[attr-defined]
        **scale,
        ray_actor_options={"num_cpus": settings.threads_per_replica},
        # One batch in the forward pass while the next one gathers; more wait in the proxy's queue.
        max_ongoing_requests=2 * settings.max_batch_size,
        max_queued_requests=settings.max_queued_requests,
        backpressure_config=BackpressureConfig(retry_after_s=settings.retry_after_seconds),
        # Requests in work are answered before a replica ends.
        graceful_shutdown_timeout_s=settings.request_timeout_seconds + 5,
    )
    return deployment.bind(args.model, settings, args.log_folder, read_tokens(args.token_file), args.root_path)


def settings_of(args: ServeArguments) -> ServeConfig:
    """Return the settings given, else those of the first model's recipe.

    Raises UserError if a folder holds no model.
    """
    first = next(iter(scan(args.model).values()))
    return args.settings(load_recipe(next(iter(first.versions.values())) / CONFIG_FILE).serve)


# A folder that does not load at once does not load at the twentieth try.
@ray_serve.deployment(max_constructor_retry_count=1)
@ray_serve.ingress()
class ModelServer(GrpcMethods):
    """A replica: the models in its memory, their routes and calls, and the thread that loads new versions."""

    def __init__(
        self,
        folders: dict[str, Path],
        settings: ServeConfig,
        log_folder: Path | None,
        tokens: dict[str, bool],
        root_path: str,
    ) -> None:
        torch.set_num_threads(settings.threads_per_replica)
        # Arrow's own allocator would keep what large requests have used; the system's gives it back (`Memory`), but for
        # as much as passes use again and again.
        pa.set_memory_pool(pa.system_memory_pool())
        keep_freed_memory(_KEPT_BYTES)
        receive_little_unread()
        # One thread scores, beside the event loop: requests are read and checked while a batch is in its pass.
        self._executor = executor = ThreadPoolExecutor(1, "scoring")
        # What requests are answered with, and by which rule.
        metrics = ServingMetrics()
        memory = TableMemory(settings.table_memory_gib * 2**30)
        context = ray_serve.get_replica_context()
        replica = context.replica_id.unique_id
        access_log = JsonLog("access", log_folder, replica) if log_folder is not None else None
        models = ServedModels()
        admission = Admission(settings, tokens, metrics, access_log, root_path)
        set_of_this_replica(admission)

        def load(name: str, version: str, folder: Path) -> ServedVersion:
            return ServedVersion(name, version, folder, executor, settings, metrics, memory)

        # The models are loaded now, and changed by a thread of their own afterwards.
        updates = Updates(folders, load, models, JsonLog("shadow", log_folder, replica), metrics)
        updates.load_all()
        super().__init__(models, admission, updates)
        self._read_history = keep(metrics.history, context.app_name, replica)
        poll_forever(updates, settings.poll_seconds)

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return create_app(self._models, self._admission, self._updates, self._read_history)

    async def states(self) -> dict[str, ServedModel]:
        """Return the models of the replica as they are now, for the command, which tells what changes."""
        return {name: model.without_versions() for name, model in self._updates.states.items()}

    async def end_soon(self) -> None:
        """Let health checks of clients fail from now on; `jobs.serve` calls it before the server ends."""
        self._models.end_soon = True

    async def check_health(self) -> None:
        """Raise TimeoutError if the scoring thread is stuck: Serve asks every few seconds and replaces the replica."""
        loop = asyncio.get_running_loop()
        await asyncio.wait_for(loop.run_in_executor(self._executor, lambda: None), _STUCK_SECONDS)


def create_app(
    models: ServedModels, admission: Admission, updates: Updates, read_history: Callable[[], list[bytes]]
) -> Front:
    """Make the application that answers for `models`, whatever they are at the moment of a request.

    `read_history` returns the records of all replicas (`serve.dashboard`).
    """
    page = Path(__file__).with_name("playground.html").read_bytes()

    async def playground(_: Request) -> Response:
        return Response(page, media_type="text/html", headers={"Content-Security-Policy": _PAGE_POLICY})

    async def openapi(request: Request) -> Response:
        given = request.headers.get("X-Forwarded-Prefix", "")
        prefix = given.rstrip("/") if _PREFIX.fullmatch(given) else admission.root_path
        return JSONResponse(document(models, admission.settings.max_rows_per_request, prefix))

    async def metrics(_: Request) -> Response:
        counted = await asyncio.gather(asyncio.to_thread(of_all_nodes), asyncio.to_thread(refused_requests))
        return PlainTextResponse(b"".join(counted))

    async def history(_: Request) -> Response:
        records = await asyncio.to_thread(read_history)
        served = {name: model for name, model in models.current.items() if model.weights}
        references = {
            name: {version: loaded.statistics.references for version, loaded in model.versions.items()}
            for name, model in served.items()
        }
        found = figures(records, time.time(), references)
        for name, model in served.items():
            found["models"][name] |= {"states": model.states(), "recipe": model.version().predictor.recipe.name}
        return JSONResponse({**found, "absent": dict(models.absent)})

    async def health(_: Request) -> Response:
        models.require_ready()
        return JSONResponse({"status": "ok"})

    routes = [
        # The first that fits answers: most requests are for scores.
        *v1.routes(models, admission),
        *v2.routes(models, admission),
        *v2.repository_routes(admission, updates),
        Route("/", playground),
        Route("/openapi.json", openapi),
        Route("/metrics", metrics),
        Route("/history.json", history),
        Route("/healthz", health),
    ]
    return Front(Router(routes, admission), admission)
