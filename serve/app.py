"""The application that Ray Serve runs: `serve run serve.app:build model=MODEL_FOLDER`.

One deployment: its replica holds every model, so that a request takes one hop, and joins the requests that wait for
the same model into one forward pass. A request is checked before it is joined, so a bad one cannot fail the others.
"""

import asyncio
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from fastapi import FastAPI
from numpy.typing import NDArray
from ray import serve as ray_serve
from ray.serve import Application

from rayrec.config import ServeConfig
from rayrec.inference.known_items import can_recommend
from rayrec.inference.model_folder import ModelFolder
from rayrec.inference.predictor import Predictor, load_model
from rayrec.inference.recommender import Recommendations, Recommender
from serve.arguments import ServeArguments
from serve.http_app import Recommend, Scorer, create_app
from serve.protocol import RecommendRequest


def build(args: ServeArguments) -> Application:
    """The Serve application for `args`. Raises UserError where a folder is no whole model folder."""
    opened = {name: ModelFolder.open(folder) for name, folder in args.model.items()}
    settings = args.settings(next(iter(opened.values())).recipe.serve)
    deployment = ModelServer.options(  # type: ignore[attr-defined]
        num_replicas=settings.replicas,
        ray_actor_options={"num_cpus": settings.threads_per_replica},
        # One batch in the forward pass while the next one gathers; more wait in the proxy's queue.
        max_ongoing_requests=2 * settings.max_batch_size,
        max_queued_requests=settings.max_queued_requests,
    )
    return deployment.bind({name: folder.folder for name, folder in opened.items()}, settings)


# A folder that does not load at once does not load at the twentieth try.
@ray_serve.deployment(max_constructor_retry_count=1)
@ray_serve.ingress()
class ModelServer:
    """A replica: the models in its memory, their routes and their batches."""

    def __init__(self, folders: dict[str, Path], settings: ServeConfig) -> None:
        torch.set_num_threads(settings.threads_per_replica)
        self._max_rows = settings.max_rows_per_request
        self._predictors = {name: load_model(folder) for name, folder in folders.items()}
        # Beside the event loop, so that requests are read and checked while a batch is scored.
        executor = ThreadPoolExecutor(1, "scoring")
        self._scorers = {name: _batched(p, executor, settings) for name, p in self._predictors.items()}
        self._recommenders = {
            name: _off_the_loop(Recommender(p), executor)
            for name, p in self._predictors.items()
            if can_recommend(p.schema)
        }
        for predictor in self._predictors.values():
            # The first passes allocate and choose kernels; the second size takes the paths of larger batches.
            for rows in (1, settings.max_batch_size):
                predictor.predict([{}] * rows)

    def __serve_build_asgi_app__(self) -> FastAPI:
        return create_app(self._predictors, self._scorers, self._recommenders, self._max_rows)


def _batched(predictor: Predictor, executor: Executor, settings: ServeConfig) -> Scorer:
    """A scorer that joins the calls that come within `batch_wait_ms` into one pass of the model."""

    @ray_serve.batch(max_batch_size=settings.max_batch_size, batch_wait_timeout_s=settings.batch_wait_ms / 1000)
    async def score(requests: list[pa.RecordBatch]) -> list[NDArray[np.float32]]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(executor, score_together, predictor, requests)

    return score


def _off_the_loop(recommender: Recommender, executor: Executor) -> Recommend:
    """Ranks in the thread that scores: a catalogue is a large pass of its own, which others cannot share."""

    async def recommend(request: RecommendRequest) -> Recommendations:
        loop = asyncio.get_running_loop()
        rank = partial(recommender.recommend, request.user, request.k, exclude_known=request.exclude_known)
        return await loop.run_in_executor(executor, rank)

    return recommend


def score_together(predictor: Predictor, requests: list[pa.RecordBatch]) -> list[NDArray[np.float32]]:
    """The scores of each request's rows, from one pass over all of them."""
    scores = predictor.predict(pa.concat_batches(requests))
    ends = np.cumsum([request.num_rows for request in requests])
    return np.split(scores, ends[:-1])
