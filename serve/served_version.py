"""One version of a model in a replica's memory: its predictor, its batches, its recommender or ranker."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.config import ServeConfig
from rayrec.inference.folder.examples import Examples
from rayrec.inference.folder.reference_traffic import ReferenceTraffic
from rayrec.inference.folder.table_memory import TableMemory
from rayrec.inference.known_items import can_recommend
from rayrec.inference.predictor import Predictor, load_model
from rayrec.inference.ranker import Ranker
from rayrec.inference.recommender import Recommendations, Recommender
from rayrec.sources.registry import lookup_of
from serve.batching import Batcher
from serve.metrics import ServingMetrics, VersionStatistics
from serve.protocol import RankRequest, RecommendRequest, RequestError


@dataclass(frozen=True)
class Rows:
    """The checked rows of one request: raw columns (`RawRows.columns`), or encoded ones as a dataset holds them."""

    columns: pa.RecordBatch
    encoded: bool = False


class ServedVersion:
    """Answers requests for one model folder; nothing in it changes after construction but the waiting requests."""

    def __init__(
        self,
        name: str,
        version: str,
        predictor: Predictor,
        examples: Examples,
        executor: Executor,
        settings: ServeConfig,
        metrics: ServingMetrics,
    ) -> None:
        """`executor` has one thread, in which every model of the replica is evaluated."""
        self.name = name
        self.version = version
        self.predictor = predictor
        self.examples = examples
        self._executor = executor
        self._score = Batcher(
            self._score_together,
            executor,
            size=lambda rows: rows.columns.num_rows,
            max_requests=settings.max_batch_size,
            max_size=settings.max_batch_rows,
            wait_seconds=settings.batch_wait_ms / 1000,
        )
        reference = ReferenceTraffic.load(predictor.folder)
        self._statistics = VersionStatistics(metrics, name, version, predictor.schema, reference)
        self._recommender = Recommender(predictor) if can_recommend(predictor.schema) else None
        lookup = lookup_of(predictor.folder)
        self.ranker = Ranker(predictor, lookup) if lookup is not None else None

    @classmethod
    def load(
        cls,
        name: str,
        version: str,
        folder: Path,
        executor: Executor,
        settings: ServeConfig,
        metrics: ServingMetrics,
        memory: TableMemory,
    ) -> "ServedVersion":
        """Load a model folder and check that it gives its stored scores. Raises UserError where it does not."""
        predictor = load_model(folder, memory)
        examples = Examples.load(predictor.folder)
        examples.check(predictor)
        # The first passes allocate and choose kernels; larger batches take other paths.
        predictor.predict([{}] * settings.max_batch_size)
        return cls(name, version, predictor, examples, executor, settings, metrics)

    @property
    def waiting(self) -> int:
        """Requests that no pass has taken yet."""
        return self._score.waiting

    @property
    def recommends(self) -> bool:
        """Whether it is a model of users and items alone."""
        return self._recommender is not None

    @property
    def ranks(self) -> bool:
        """Whether its features are looked up from a context and ads."""
        return self.ranker is not None

    async def score(self, rows: Rows) -> NDArray[np.float32]:
        """Probabilities (n,) of n rows, maybe from a pass with other requests. Raises RequestError."""
        scores = await self._score(rows)
        if not np.isfinite(scores).all():
            bad = int(np.flatnonzero(~np.isfinite(scores))[0])
            raise RequestError(422, f"row {bad}: its values are so large that the score is not a number")
        return scores

    async def recommend(self, request: RecommendRequest) -> Recommendations:
        """Ranks the catalogue for a user: a large pass of its own. Raises UnknownUserError."""
        assert self._recommender is not None
        rank = partial(self._recommender.recommend, request.user, request.k, exclude_known=request.exclude_known)
        return await asyncio.get_running_loop().run_in_executor(self._executor, rank)

    async def rows_to_rank(self, request: RankRequest) -> Rows:
        """The features of each ad, to be scored as other rows are. Raises UserError naming a wrong field."""
        assert self.ranker is not None
        rows = partial(self.ranker.rows, request.context, request.ads)
        return Rows(await asyncio.get_running_loop().run_in_executor(self._executor, rows))

    def _score_together(self, requests: Sequence[Rows]) -> list[NDArray[np.float32]]:
        answers, encoded, scores = score_together(self.predictor, requests)
        self._statistics.observe(len(requests), encoded, scores)
        return answers


def score_together(
    predictor: Predictor, requests: Sequence[Rows]
) -> tuple[list[NDArray[np.float32]], pa.RecordBatch, NDArray[np.float32]]:
    """The scores of each request's rows, from one pass over all of them; its encoded rows and all their scores."""
    order = sorted(range(len(requests)), key=lambda index: requests[index].encoded)
    raw = [requests[index].columns for index in order if not requests[index].encoded]
    encoded = [requests[index].columns for index in order if requests[index].encoded]
    if raw:
        encoded.insert(0, predictor.encode(pa.concat_batches(raw)))
    rows = pa.concat_batches(encoded)
    scores = predictor.predict_encoded(rows)
    ends = np.cumsum([requests[index].columns.num_rows for index in order])
    answers: list[NDArray[np.float32]] = [scores] * len(requests)
    for index, part in zip(order, np.split(scores, ends[:-1]), strict=True):
        answers[index] = part
    return answers, rows, scores
