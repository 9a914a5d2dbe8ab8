"""One version of a model in a replica's memory: its predictor, its batches, its recommender and ranker."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.config import ServeConfig
from rayrec.features.stacked_columns import StackedColumns
from rayrec.inference.explanation.additive import Explanation, explainer_of
from rayrec.inference.export.examples import Examples, load_held_out_rows
from rayrec.inference.folder.facts import can_recommend
from rayrec.inference.folder.table_files import TableMemory
from rayrec.inference.predictor import Predictor, load_model
from rayrec.inference.recommender import Recommender
from rayrec.ingest.held_out_rows import HELD_OUT_ROWS_FILE
from rayrec.models.common.precision import resolve_precision
from rayrec.sources.registry import ranker_of
from serve.batching import Batcher
from serve.metrics import ScoredPass, ServingMetrics, VersionStatistics
from serve.requests import RequestError, content_errors

_FEW_VALUES = 50
"""Most values of a vocabulary that is listed as a whole."""
_SMALL_ROWS = 32
"""Most rows of a pass that takes about as long as handing it to the scoring thread does."""

ResultT = TypeVar("ResultT")

logger = logging.getLogger("ray.serve.rayrec")


@dataclass(frozen=True)
class RequestRows:
    """The checked rows of one request: raw columns (`RawRows.columns`), or encoded ones as a dataset holds them."""

    columns: StackedColumns
    encoded: bool = False


class ServedVersion:
    """Answers requests for one model folder; only its queue of waiting requests changes after construction."""

    def __init__(
        self,
        name: str,
        version: str,
        folder: Path,
        executor: Executor,
        settings: ServeConfig,
        metrics: ServingMetrics,
        memory: TableMemory,
    ) -> None:
        """Load a model folder and check that it gives its stored scores. Raises UserError if it does not.

        `executor` has one thread, in which every model of the replica is evaluated, small passes aside.
        """
        self.name = name
        self.version = version
        self.predictor = load_model(folder, memory)
        self.examples = Examples.load(self.predictor.folder)
        self.examples.check(self.predictor)
        self.held_out = load_held_out_rows(self.predictor.model_folder.path(HELD_OUT_ROWS_FILE).parent)
        """Rows of a held-out split as a request has them, if the model was exported with some."""
        self.known_values = _short_vocabularies(self.predictor)
        """All values of the columns that have few."""
        self.predictor.precision = resolve_precision(settings.precision, "cpu", "serve.precision")
        encoded = self.predictor.encode(self.predictor.columns_of(self.examples.instances))
        if (error := self.predictor.amp_error(encoded)).rows:
            logger.warning(
                "model '%s', version %s: %s moves the scores of its %d examples by %.2g at most and %.2g on average",
                name, version, self.predictor.precision.name, error.rows, error.largest, error.total / error.rows,
            )  # fmt: skip
        # The first passes allocate and choose kernels; larger batches take other paths.
        self.predictor.predict([{}] * settings.max_batch_size)
        schema = self.predictor.schema
        self.recommender = Recommender(self.predictor) if can_recommend(schema) else None
        """Present if the model reads a user and an item alone."""
        self.ranker = ranker_of(self.predictor)
        self.explainer = explainer_of(self.predictor)
        """Present if the model was exported with reference rows."""
        self._explaining = asyncio.Lock()
        self.row_bytes = 8 * len(schema.raw_columns)
        """Bytes that a row takes whose features are all missing, at most."""
        self._executor = executor
        self._score = Batcher(
            self._score_together,
            executor,
            size=lambda rows: rows.columns.num_rows,
            max_requests=settings.max_batch_size,
            max_size=settings.max_batch_rows,
            small_size=_SMALL_ROWS,
            wait_seconds=settings.batch_wait_ms / 1000,
        )
        self.statistics = VersionStatistics(metrics, name, version, self.predictor.model_folder)

    async def score(self, rows: RequestRows) -> NDArray[np.float32]:
        """Return the probabilities (n,) of n rows, perhaps from a pass with other requests. Raises RequestError."""
        # The batcher joins it with other requests and calls `_score_together`.
        scores = await self._score(rows)
        if not np.isfinite(scores).all():
            bad = int(np.flatnonzero(~np.isfinite(scores))[0])
            raise RequestError(422, f"row {bad}: its values are so large that the score is not a number")
        if self.statistics.are_due:
            # In the scoring thread, after the answer.
            self._executor.submit(self.statistics.count)
        return scores

    async def explain(self, rows: pa.RecordBatch) -> list[Explanation]:
        """Explain the scores of checked raw rows. Raises RequestError.

        It takes many passes of the scoring thread, between which other requests get theirs: one pass is asked for at a
        time, however many requests wait to be explained.
        """
        assert self.explainer is not None
        async with self._explaining:
            encoded = await self.evaluate(partial(self.predictor.encode, rows))
            found: list[Explanation] = []
            for index in range(encoded.num_rows):
                steps = self.explainer.explaining(encoded.slice(index, 1), index)
                with content_errors():
                    while (explanation := await self.evaluate(partial(next, steps))) is None:
                        pass
                found.append(explanation)
        return found

    async def evaluate(self, function: Callable[[], ResultT]) -> ResultT:
        """Call `function` in the thread in which models are evaluated, as a pass of its own."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)

    def _score_together(self, requests: Sequence[RequestRows]) -> list[NDArray[np.float32]]:
        answers, scored = score_together(self.predictor, requests)
        self.statistics.note(scored)
        return answers


def score_together(
    predictor: Predictor, requests: Sequence[RequestRows]
) -> tuple[list[NDArray[np.float32]], ScoredPass]:
    """Return the scores of each request's rows, from one pass over all of them; and the pass."""
    # All raw rows are encoded in one go; those that came encoded follow them.
    order = sorted(range(len(requests)), key=lambda index: requests[index].encoded)
    raw = [requests[index].columns for index in order if not requests[index].encoded]
    encoded = [requests[index].columns for index in order if requests[index].encoded]
    all_raw = StackedColumns.joined(raw) if raw else None
    rows = StackedColumns.joined([predictor.encode_stacked(all_raw), *encoded] if all_raw is not None else encoded)
    scores = predictor.predict_encoded(rows)
    # Every request gets its own scores, in the order of the requests.
    answers: list[NDArray[np.float32]] = [scores] * len(requests)
    start = 0
    for index in order:
        end = start + requests[index].columns.num_rows
        answers[index], start = scores[start:end], end
    return answers, ScoredPass(len(requests), all_raw, rows, scores)


def _short_vocabularies(predictor: Predictor) -> dict[str, list[str]]:
    """Return the values of the vocabularies that have few, by raw column."""
    found = {}
    for feature in predictor.schema.categorical:
        if feature.vocabulary is not None and 0 < feature.vocabulary.size <= _FEW_VALUES:
            values = predictor.model_folder.vocabulary(feature).values(np.arange(1, feature.vocabulary.size + 1))
            found[feature.columns[0]] = [value for value in values.to_pylist() if value]
    return found
