"""A version that scores the same requests as those that answer, to compare them before it answers itself."""

import asyncio
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from serve.errors import RequestError
from serve.models.served_version import Rows, ServedVersion
from serve.operations.json_log import JsonLog

_MAX_WAITING = 64
"""Requests that may wait for a shadow; further ones are not compared, so that a slow shadow costs no memory."""


class Shadow:
    """Compares one version's scores with those that were answered; belongs to the event loop."""

    def __init__(self, version: ServedVersion, log: JsonLog) -> None:
        self.version = version
        self._log = log
        self._tasks: set[asyncio.Task[None]] = set()
        self._counts = dict.fromkeys(("requests", "rows", "failed", "dropped"), 0)
        self._sum = self._max = 0.0

    def compare(self, answered_by: str, rows: Rows, scores: NDArray[np.float32]) -> None:
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

    async def _compare(self, answered_by: str, rows: Rows, scores: NDArray[np.float32]) -> None:
        model, version = self.version.name, self.version.version
        entry: dict[str, Any] = {"model": model, "answered_by": answered_by, "shadow": version, "rows": len(scores)}
        raw_rows = self.version.predictor.raw_rows
        try:
            # The shadow's schema may be another.
            if not rows.encoded and not rows.columns.schema.equals(raw_rows.columns):
                rows = Rows(raw_rows.from_batch(rows.batch()))
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
