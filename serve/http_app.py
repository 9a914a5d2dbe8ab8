"""The HTTP application over the models of a replica: the routes of all protocols, its pages and its figures."""

import asyncio
import re
import time
from collections.abc import Callable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from serve import v1, v2
from serve.admission import Admission
from serve.dashboard import figures
from serve.http import Gate, Route, Router
from serve.metrics import of_all_nodes, refused_requests
from serve.openapi import document
from serve.served_models import ServedModels
from serve.updates import Updates

# The page contains its style and script, and talks to this server alone.
_PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# What a proxy in front may say that it took away.
_PREFIX = re.compile(r"(/[\w.~%-]+)+/?", re.ASCII)


def create_app(
    models: ServedModels, admission: Admission, updates: Updates, read_history: Callable[[], list[bytes]]
) -> Gate:
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
    return Gate(Router(routes), admission)
