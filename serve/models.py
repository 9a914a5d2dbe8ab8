"""Versions of models in a replica's memory, and which of them answer at this moment.

A `ServedVersion` has its predictor, its batches, its recommender and ranker. The state of a model, `ServedModel`, is
one immutable value that is replaced as a whole: a request sees the old one or the new one, and keeps the version that
it was given until it is answered.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.common.errors import UserError, did_you_mean
from rayrec.config import ServeConfig
from rayrec.features.stacked_columns import StackedColumns
from rayrec.inference.examples import Examples, load_held_out_rows
from rayrec.inference.explanation import Explanation, explainer_of
from rayrec.inference.folder.facts import can_recommend
from rayrec.inference.folder.table_files import TableMemory
from rayrec.inference.past import describe_stale
from rayrec.inference.predictor import Predictor, load_model
from rayrec.inference.recommender import Recommender
from rayrec.ingest.held_out_rows import HELD_OUT_ROWS_FILE
from rayrec.models.common.precision import resolve_precision
from rayrec.sources.registry import ranker_of
from serve.batching import Batcher
from serve.json_log import JsonLog
from serve.metrics import ScoredPass, ServingMetrics, VersionStatistics
from serve.requests import RequestError, content_errors

_FEW_VALUES = 50
"""Most values of a vocabulary that is listed as a whole."""
_SMALL_ROWS = 32
"""Most rows of a pass that takes about as long as handing it to the scoring thread does."""

_MAX_WAITING = 64
"""Requests that may wait for a shadow; further ones are not compared, so that a slow shadow costs no memory."""

NO_ROWS = "scores the next items of people, and no rows"
"""Why some models cannot be asked for scores of rows."""

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
        if not self.predictor.scores_next_items:
            encoded = self.predictor.encode(self.predictor.columns_of(self.examples.instances))
            if (error := self.predictor.amp_error(encoded)).rows:
                logger.warning(
                    "model '%s', version %s: %s moves the scores of its %d examples by %.2g at most and %.2g on "
                    "average",
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
        self.stale = describe_stale(schema, time.time())
        """What to say of its histories, if they end too early."""

    async def score(self, rows: RequestRows) -> NDArray[np.float32]:
        """Return the probabilities (n,) of n rows, perhaps from a pass with other requests. Raises RequestError."""
        if self.predictor.scores_next_items:
            raise RequestError(404, f"model '{self.name}' {NO_ROWS}; use /v1/models/{self.name}:{self.examples.verb}")
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


class Shadow:
    """A version that scores the same requests as those that answer, to compare them before it answers itself.

    It belongs to the event loop.
    """

    def __init__(self, version: ServedVersion, log: JsonLog) -> None:
        self.version = version
        self._log = log
        self._tasks: set[asyncio.Task[None]] = set()
        self._counts = dict.fromkeys(("requests", "rows", "failed", "dropped"), 0)
        self._sum = self._max = 0.0

    def compare(self, answered_by: str, rows: RequestRows, scores: NDArray[np.float32]) -> None:
        """Score `rows` too, after the answer; never delays or fails the request itself."""
        if len(self._tasks) >= _MAX_WAITING:
            self._counts["dropped"] += 1
            return
        task = asyncio.get_running_loop().create_task(self._compare(answered_by, rows, scores))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def summary(self) -> dict[str, Any]:
        """Return what was found so far: counts, and differences of probabilities over all rows."""
        rows = self._counts["rows"]
        found = {"mean_difference": self._sum / rows, "max_difference": self._max} if rows else {}
        return {**self._counts, "mean_difference": None, "max_difference": None, **found}

    async def _compare(self, answered_by: str, rows: RequestRows, scores: NDArray[np.float32]) -> None:
        model, version = self.version.name, self.version.version
        entry: dict[str, Any] = {"model": model, "answered_by": answered_by, "shadow": version, "rows": len(scores)}
        raw_rows = self.version.predictor.raw_rows
        try:
            # The shadow's schema may be another.
            if not rows.encoded and not rows.columns.schema.equals(raw_rows.columns):
                rows = RequestRows(StackedColumns.of(raw_rows.from_batch(rows.columns.batch())))
            difference = np.abs(await self.version.score(rows) - scores)
        except (RequestError, UserError, pa.ArrowException) as error:
            self._counts["failed"] += 1
            self._log.write({**entry, "error": str(error)})
            return
        mean, largest = float(difference.mean()), float(difference.max())
        self._counts["requests"] += 1
        self._counts["rows"] += len(scores)
        self._sum += float(difference.sum())
        self._max = max(self._max, largest)
        self._log.write({**entry, "mean_difference": mean, "max_difference": largest})


@dataclass(frozen=True)
class ServedModel:
    """One model: its loaded versions and how requests are split between them."""

    name: str
    versions: Mapping[str, ServedVersion]
    weights: Mapping[str, float]
    """Version -> share of the requests that name no version, of those above 0."""
    shadow: Shadow | None = None
    failed: Mapping[str, str] = field(default_factory=dict)
    """What should answer but does not: version, or `serving.json` -> why."""
    stale: Mapping[str, str] = field(default_factory=dict)
    """Versions that answer though their histories end too early -> what to say."""

    def version(self, wanted: str | None = None) -> ServedVersion:
        """Return the version that answers a request. Raises RequestError 404 if the one it names is not loaded."""
        if wanted is None:
            names = list(self.weights)
            (wanted,) = names if len(names) == 1 else random.choices(names, list(self.weights.values()))
        if wanted not in self.versions:
            why = ", it failed to load" if wanted in self.failed else ""
            there = ", ".join(sorted(self.versions, key=int))
            raise RequestError(404, f"no version '{wanted[:100]}' of model '{self.name}'{why}; there are: {there}")
        return self.versions[wanted]

    async def score(self, version: ServedVersion, rows: RequestRows) -> NDArray[np.float32]:
        """Return the probabilities (n,) of n rows by `version`, compared with those of the shadow afterwards."""
        scores = await version.score(rows)
        if self.shadow is not None and self.shadow.version is not version:
            self.shadow.compare(version.version, rows, scores)
        return scores

    def without_versions(self) -> "ServedModel":
        """Return what answers and what does not, without what it answers with, for another process."""
        return ServedModel(self.name, {}, self.weights, None, self.failed, self.stale)

    def news(self, before: "ServedModel | None") -> list[str]:
        """Tell, a line each, what has changed since `before`: which versions answer, and what cannot be loaded."""
        was = _shares(before.weights) if before is not None else ""
        lines = []
        if self.weights and (before is None or self.weights != before.weights):
            verb = "answers" if len(self.weights) == 1 else "answer"
            lines.append(f"model '{self.name}': version {_shares(self.weights)} {verb}{f' (was {was})' if was else ''}")
        if not self.weights and (was or before is None):
            lines.append(f"model '{self.name}': no version answers{f' (was {was})' if was else ''}")
        for version, what in self.stale.items():
            if before is None or version not in before.stale:
                lines.append(f"model '{self.name}': version {version}: {what}")
        stays = f"; version {_shares(self.weights)} keeps serving" if self.weights else ""
        for what, why in self.failed.items():
            if before is None or before.failed.get(what) != why:
                subject = f"version {what} cannot be loaded" if what.isdigit() else what
                lines.append(f"model '{self.name}': {subject}: {why}{stays}")
        return lines

    def states(self) -> dict[str, Any]:
        """Return the state of each version, for clients."""
        total = sum(self.weights.values())
        states: dict[str, dict[str, Any]] = {
            version: {"state": "ready", "traffic": self.weights.get(version, 0.0) / total} for version in self.versions
        }
        for what, reason in self.failed.items():
            states[what] = {**states.get(what, {"state": "failed"}), "reason": reason}
        if self.shadow is not None:
            states[self.shadow.version.version]["shadow"] = self.shadow.summary()
        return states


def _shares(weights: Mapping[str, float]) -> str:
    """`3`, or `3 (90%), 4 (10%)`."""
    total = sum(weights.values())
    if len(weights) == 1:
        return next(iter(weights))
    return ", ".join(f"{version} ({weight / total:.0%})" for version, weight in weights.items())


def news(before: Mapping[str, ServedModel], models: Mapping[str, ServedModel]) -> list[str]:
    """Tell, a line each, what has changed of the models by name."""
    lines = [line for name, model in sorted(models.items()) for line in model.news(before.get(name))]
    return lines + [f"model '{name}': removed" for name in sorted(before.keys() - models.keys())]


def why_not_ranked(version: ServedVersion, models: Mapping[str, ServedModel]) -> str | None:
    """Return why the items that a version recommends cannot be ranked by the model that its recipe names; None if they
    can, or it names none.
    """
    if version.recommender is None or (rank := version.recommender.settings.rank) is None:
        return None
    _, item = version.recommender.columns
    says = f"has its items ranked by '{rank}' (serve.recommend.rank)"
    if rank not in models or not models[rank].weights:
        return f"{says}, which does not answer; {did_you_mean(rank, sorted(models), 'models:')}"
    ranker = models[rank].version()
    if ranker.predictor.scores_next_items:
        return f"{says}, which {NO_ROWS}"
    if ranker.ranker.lookup is not None or item not in ranker.predictor.raw_rows.columns.names:
        return f"{says}, which does not read the item's column '{item}'"
    return None


def agreed(
    before: Mapping[str, ServedModel], replicas: Sequence[Mapping[str, ServedModel]]
) -> Mapping[str, ServedModel]:
    """Return what replicas answer with, `before` where they differ, as each looks at the folders for itself."""
    models = {}
    for name in {name for replica in replicas for name in replica}:
        found = [replica.get(name, ServedModel(name, {}, {})) for replica in replicas]
        failed = {what: why for one in found for what, why in one.failed.items()}
        if all(one.weights == found[0].weights for one in found):
            models[name] = ServedModel(name, {}, found[0].weights, None, failed, found[0].stale)
        elif name in before:
            models[name] = ServedModel(name, {}, before[name].weights, None, failed, before[name].stale)
    return models if replicas else before


class ServedModels:
    """The models of a replica by name; replaced by the thread that updates, read by the event loop."""

    def __init__(self) -> None:
        self.current: Mapping[str, ServedModel] = {}
        """Those of which a version answers."""
        self.absent: Mapping[str, str] = {}
        """Those of which none does -> why."""
        self.end_soon = False
        """Set when the server is stopping: health checks fail, so that no more requests are sent to it."""

    @property
    def row_bytes(self) -> int:
        """Most that a row of any model takes; see `ServedVersion.row_bytes`."""
        versions = (version for model in self.current.values() for version in model.versions.values())
        return max((version.row_bytes for version in versions), default=0)

    def require_ready(self) -> None:
        """Raise RequestError 503 if no more requests should come."""
        if self.end_soon:
            raise RequestError(503, "the server is stopping", {"Retry-After": "1"})

    def model(self, name: str, models: Mapping[str, ServedModel] | None = None) -> ServedModel:
        """Return the model of that name, of those of a moment or of now. Raises RequestError 404 if there is none."""
        models = self.current if models is None else models
        if name in self.absent:
            raise RequestError(404, f"model '{name}': {self.absent[name]}")
        if name not in models:
            raise RequestError(404, f"no model '{name[:100]}'; {did_you_mean(name, sorted(models), 'models:')}")
        return models[name]
