"""Knows which versions of which models a replica answers with at this moment.

The state of a model is one immutable value that is replaced as a whole: a request sees the old one or the new one, and
keeps the version that it was given until it is answered.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rayrec.common.errors import did_you_mean
from serve.errors import RequestError
from serve.models.served_version import Rows, ServedVersion
from serve.models.shadow import Shadow


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
        """The version that answers a request. Raises RequestError 404 if the one it names is not loaded."""
        if wanted is None:
            names = list(self.weights)
            (wanted,) = names if len(names) == 1 else random.choices(names, list(self.weights.values()))
        if wanted not in self.versions:
            why = ", it failed to load" if wanted in self.failed else ""
            there = ", ".join(sorted(self.versions, key=int))
            raise RequestError(404, f"no version '{wanted[:100]}' of model '{self.name}'{why}; there are: {there}")
        return self.versions[wanted]

    async def score(self, version: ServedVersion, rows: Rows) -> NDArray[np.float32]:
        """Probabilities (n,) of n rows by `version`, compared with those of the shadow afterwards."""
        scores = await version.score(rows)
        if self.shadow is not None and self.shadow.version is not version:
            self.shadow.compare(version.version, rows, scores)
        return scores

    def describe(self) -> dict[str, Any]:
        """The state of each version, for clients."""
        total = sum(self.weights.values())
        states: dict[str, dict[str, Any]] = {
            version: {"state": "ready", "traffic": self.weights.get(version, 0.0) / total} for version in self.versions
        }
        for what, reason in self.failed.items():
            states[what] = {**states.get(what, {"state": "failed"}), "reason": reason}
        if self.shadow is not None:
            states[self.shadow.version.version]["shadow"] = self.shadow.summary()
        return states


class ServedModels:
    """The models of a replica by name; replaced by the thread that updates, read by the event loop."""

    def __init__(self) -> None:
        self.current: Mapping[str, ServedModel] = {}
        self.end_soon = False
        """Set when the server is about to end: health checks fail, so that no more requests are sent to it."""

    @property
    def row_bytes(self) -> int:
        """The most that a row of any model takes; see `ServedVersion.row_bytes`."""
        versions = (version for model in self.current.values() for version in model.versions.values())
        return max((version.row_bytes for version in versions), default=0)

    def require_ready(self) -> None:
        """Raises RequestError 503 if no more requests should come."""
        if self.end_soon:
            raise RequestError(503, "the server is about to end", {"Retry-After": "1"})

    def model(self, name: str) -> ServedModel:
        """The model of that name. Raises RequestError 404 if there is none."""
        models = self.current
        if name not in models:
            raise RequestError(404, f"no model '{name[:100]}'; {did_you_mean(name, sorted(models), 'models:')}")
        return models[name]
