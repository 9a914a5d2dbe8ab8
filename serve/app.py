"""The application that Ray Serve runs: `serve run serve.app:build model=FOLDER`.

One deployment: its replica holds every model, so that a request takes one hop, and joins the requests that wait for
the same model into one forward pass. A request is checked before it is joined, so a bad one cannot fail the others.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from ray import serve as ray_serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, BackpressureConfig
from starlette.types import ASGIApp

from cluster.ray_serve import receive_little_unread
from rayrec.common.machine import keep_freed_memory
from rayrec.config import ServeConfig
from rayrec.inference.folder.table_files import TableMemory
from rayrec.recipes import CONFIG_FILE, load_recipe
from serve.admission import Admission, set_of_this_replica
from serve.arguments import ServeArguments
from serve.dashboard import keep
from serve.folders import scan
from serve.grpc_app import GrpcMethods
from serve.http_app import create_app
from serve.json_log import JsonLog
from serve.metrics import ServingMetrics
from serve.served_models import ServedModel, ServedModels
from serve.served_version import ServedVersion
from serve.tokens import read_tokens
from serve.updates import Updates, poll_forever

_STUCK_SECONDS = 25.0
_KEPT_BYTES = 32 * 2**20


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
