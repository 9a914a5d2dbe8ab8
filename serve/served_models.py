"""Knows which versions of which models a replica answers with at this moment.

The state of a model is one immutable value that is replaced as a whole: a request sees the old one or the new one, and
keeps the version that it was given until it is answered.
"""

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.common.errors import UserError, did_you_mean
from rayrec.features.stacked_columns import StackedColumns
from serve.json_log import JsonLog
from serve.requests import RequestError
from serve.served_version import RequestRows, ServedVersion

_MAX_WAITING = 64
"""Requests that may wait for a shadow; further ones are not compared, so that a slow shadow costs no memory."""


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
        return ServedModel(self.name, {}, self.weights, None, self.failed)

    def news(self, before: "ServedModel | None") -> list[str]:
        """Tell, a line each, what has changed since `before`: which versions answer, and what cannot be loaded."""
        was = _shares(before.weights) if before is not None else ""
        lines = []
        if self.weights and (before is None or self.weights != before.weights):
            verb = "answers" if len(self.weights) == 1 else "answer"
            lines.append(f"model '{self.name}': version {_shares(self.weights)} {verb}{f' (was {was})' if was else ''}")
        if not self.weights and (was or before is None):
            lines.append(f"model '{self.name}': no version answers{f' (was {was})' if was else ''}")
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


def agreed(
    before: Mapping[str, ServedModel], replicas: Sequence[Mapping[str, ServedModel]]
) -> Mapping[str, ServedModel]:
    """Return what replicas answer with, `before` where they differ, as each looks at the folders for itself."""
    models = {}
    for name in {name for replica in replicas for name in replica}:
        found = [replica.get(name, ServedModel(name, {}, {})) for replica in replicas]
        failed = {what: why for one in found for what, why in one.failed.items()}
        if all(one.weights == found[0].weights for one in found):
            models[name] = ServedModel(name, {}, found[0].weights, None, failed)
        elif name in before:
            models[name] = ServedModel(name, {}, before[name].weights, None, failed)
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

    def model(self, name: str) -> ServedModel:
        """Return the model of that name. Raises RequestError 404 if there is none."""
        models = self.current
        if name in self.absent:
            raise RequestError(404, f"model '{name}': {self.absent[name]}")
        if name not in models:
            raise RequestError(404, f"no model '{name[:100]}'; {did_you_mean(name, sorted(models), 'models:')}")
        return models[name]
