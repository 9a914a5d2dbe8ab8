"""What a replica counts: Prometheus' metrics, which Ray exports on the metrics port of each node, and the history.

`ServingMetrics.answered` counts answers and `VersionStatistics` what passes see, each for both.
"""

import collections
import logging
import os
import re
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from http.client import HTTPException
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import ray
from numpy.typing import NDArray
from ray.util.metrics import Counter, Gauge, Histogram

from rayrec.common.text import ascii_name, printable, with_names
from rayrec.features.lookups import Lookups
from rayrec.features.stacked_columns import StackedColumns
from rayrec.inference.examples import ReferenceTraffic, score_counts, unknown_counts
from rayrec.inference.folder.model_folder import ModelFolder
from rayrec.inference.past import known_until
from rayrec.inference.unknown_values import ENOUGH, UnknownValues, count_unknown
from serve.dashboard import SECONDS, History, References

logger = logging.getLogger("ray.serve.rayrec")

_MODEL = ("model", "version")
_ROWS = [1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0]
# Scores before the drift is worth showing, and scores after which older ones count half.
_ENOUGH, _WINDOW = 1_000, 50_000
_PASSES = 64
_FEW_ROWS = 32
"""Most passes that are counted together. Large ones take so long that time ends before there are as many."""
_SECONDS_BETWEEN_COUNTS, _SECONDS_BETWEEN_REPORTS = 0.1, 1.0
_NODES_AT_ONCE, _NODE_SECONDS = 16, 3.0
_HAPROXY_ANSWERS = re.compile(
    rb"haproxy_(frontend|server)_http_responses_total"
    rb'\{proxy="http[_-][^"]*",(?:server="[^"]*",)?code="([45]xx)"\} (\d+)'
)
# Nodes are reached directly, whatever proxy the environment names.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ServingMetrics:
    """All metrics of a replica; names as Ray exports them begin with `ray_`."""

    def __init__(self) -> None:
        self.history = History()
        self.requests = Counter("rayrec_requests", "Answers by status.", (*_MODEL, "method", "status"))
        self.seconds = Histogram(
            "rayrec_request_seconds", "From the first byte in a replica to the answer.", SECONDS, (*_MODEL, "method")
        )
        self.batch_rows = Histogram("rayrec_batch_rows", "Rows of one forward pass.", _ROWS, _MODEL)
        self.batch_requests = Histogram("rayrec_batch_requests", "Requests of one forward pass.", _ROWS, _MODEL)
        self.ids = Counter("rayrec_ids", "Ids looked up.", (*_MODEL, "feature"))
        self.unknown_ids = Counter("rayrec_unknown_ids", "Of those, missing or unknown.", (*_MODEL, "feature"))
        self.unknown_values = Counter(
            "rayrec_unknown_values", "Values that requests gave and the model does not know.", (*_MODEL, "column")
        )
        self.unknown_share = Gauge(
            "rayrec_reference_unknown_share", "Share of unknown ids at export.", (*_MODEL, "feature")
        )
        self.drift = Gauge(
            "rayrec_score_drift", "Population stability index of the scores against those at export.", _MODEL
        )
        self.data_time = Gauge(
            "rayrec_model_data_time_seconds", "Unix time of the newest row that the model was trained on.", _MODEL
        )
        self.known_until = Gauge(
            "rayrec_histories_known_until_seconds", "Unix time up to which its histories know events.", _MODEL
        )
        self.traffic = Gauge("rayrec_version_traffic", "Share of the requests that a version answers.", _MODEL)
        self.switches = Counter("rayrec_version_switches", "Changes of the versions that answer.", ("model",))
        self.failed_loads = Counter("rayrec_failed_loads", "Versions that were tried and not loaded.", _MODEL)
        self.deltas = Gauge("rayrec_deltas_applied", "1 if the model is a delta on a whole one, else 0.", _MODEL)

    def answered(self, model: str, version: str, method: str, status: int, seconds: float) -> None:
        """Count an answer; `model` and `version` may be empty, and `method` is where nothing was computed."""
        tags = {"model": ascii_name(model), "version": version, "method": method}
        self.requests.inc(1, {**tags, "status": str(status)})
        if method:
            self.seconds.observe(seconds, tags)
        self.history.answered(model, version, status, seconds if method else None)


class ScoredPass(NamedTuple):
    """The rows of one pass."""

    requests: int
    """How many requests it joined."""
    raw: StackedColumns | None
    """The rows that came as raw columns, which are the first ones; None if all came encoded."""
    encoded: StackedColumns
    scores: NDArray[np.float32]
    """(n,) of n encoded rows."""

    @property
    def is_small(self) -> bool:
        """Tell whether it had a few rows, which all came as raw columns."""
        return self.raw is not None and self.raw.num_rows == len(self.scores) <= _FEW_ROWS


@dataclass
class VersionStatistics:
    """Counts what the passes of one version see.

    To count a pass, and to report the counters of all features to Ray, takes longer than a small pass: passes are noted
    as they come, by any thread, and counted together after answers, by the scoring thread.
    """

    metrics: ServingMetrics
    model: str
    version: str
    folder: ModelFolder
    _noted: collections.deque[ScoredPass] = field(default_factory=collections.deque)
    _ids: dict[str, tuple[int, int]] = field(default_factory=dict)
    _unknown: dict[str, int] = field(default_factory=dict)
    _window: dict[str, UnknownValues] = field(default_factory=dict)
    """Values by column since the last look at whether most are unknown."""
    _warned: set[str] = field(default_factory=set)
    """The columns that the log has."""
    _scores: NDArray[np.float64] | None = None
    _counted: float = 0.0
    _reported: float = 0.0

    def __post_init__(self) -> None:
        self._data_time = self.folder.manifest.data_time
        self._known_until = known_until(self.folder.schema)
        self._reference = ReferenceTraffic.load(self.folder)
        if self._reference is not None:
            self._edges = np.array(self._reference.score_edges)
            self._scores = np.zeros(len(self._edges) + 1)

    @property
    def _tags(self) -> dict[str, str]:
        return {"model": ascii_name(self.model), "version": self.version}

    def report_facts(self) -> None:
        """Report what does not change: Ray forgets a gauge that was not set for some 20 seconds."""
        self.metrics.deltas.set(int(self.folder.delta is not None), self._tags)
        self.metrics.data_time.set(self._data_time, self._tags)
        if self._known_until is not None:
            self.metrics.known_until.set(self._known_until, self._tags)
        if self._reference is not None:
            for name, share in self._reference.unknown_share.items():
                self.metrics.unknown_share.set(share, {**self._tags, "feature": ascii_name(name)})

    @property
    def references(self) -> References:
        """Return what the dashboard compares the traffic of the version with."""
        reference, deltas = self._reference, int(self.folder.delta is not None)
        return References(reference.unknown_share if reference else {}, reference is not None, self._data_time, deltas)

    def note(self, scored: ScoredPass) -> None:
        """Note one pass."""
        self._noted.append(scored)

    @property
    def are_due(self) -> bool:
        """Return whether the passes noted so far should be counted now."""
        return len(self._noted) >= _PASSES or time.monotonic() - self._counted > _SECONDS_BETWEEN_COUNTS

    def count(self) -> None:
        """Count the passes noted so far; report what was counted once a second."""
        self._counted = time.monotonic()
        passes = [self._noted.popleft() for _ in range(len(self._noted))]
        if not passes:
            return
        for one in passes:
            self.metrics.batch_requests.observe(one.requests, self._tags)
            self.metrics.batch_rows.observe(len(one.scores), self._tags)
        # Ids that are missing or unknown, of all rows.
        batches = _batches(passes)
        encoded = pa.concat_batches([of_pass for _, of_pass in batches])
        for name, (unknown, ids) in unknown_counts(self.folder.schema, encoded).items():
            before = self._ids.get(name, (0, 0))
            self._ids[name] = (before[0] + unknown, before[1] + ids)
        # Values can be unknown in raw rows alone; those that came encoded are the last ones of a pass.
        if raw := [given for given, _ in batches if given is not None]:
            # A table of batches copies nothing of the columns whose values are all known.
            rows = pa.Table.from_batches(raw)
            if rows.num_rows < encoded.num_rows:
                encoded = pa.concat_batches([of[: given.num_rows] for given, of in batches if given is not None])
            self._count_unknown(rows, encoded)
        # Scores, to compare their distribution with that at export.
        if self._scores is not None:
            self._scores += score_counts(np.concatenate([one.scores for one in passes]), self._edges)
        if time.monotonic() - self._reported > _SECONDS_BETWEEN_REPORTS:
            self._report()

    @cached_property
    def _lookups(self) -> Lookups | None:
        schema, here = self.folder.schema, self.folder.here
        return Lookups(schema, here, open_table=self.folder.lookup_table) if schema.lookups else None

    def _count_unknown(self, raw: pa.Table, encoded: pa.RecordBatch) -> None:
        """Count the unknown values of rows; log once of a column that most of its values are unknown."""
        schema = self.folder.schema
        for column, found in count_unknown(schema, raw, encoded, self._lookups).items():
            self._unknown[column] = self._unknown.get(column, 0) + found.unknown
            window = self._window.pop(column, UnknownValues()) + found
            if window.values < ENOUGH:
                self._window[column] = window
            elif window.are_most and column not in self._warned:
                self._warned.add(column)
                logger.warning(
                    "model '%s', version %s: %s", self.model, self.version, printable(window.described(column))
                )

    def _report(self) -> None:
        self._reported = time.monotonic()
        for name, (unknown, ids) in self._ids.items():
            tags = {**self._tags, "feature": ascii_name(name)}
            # Ray's counters refuse zero.
            if ids:
                self.metrics.ids.inc(ids, tags)
            if unknown:
                self.metrics.unknown_ids.inc(unknown, tags)
        for column, unknown in self._unknown.items():
            if unknown:
                self.metrics.unknown_values.inc(unknown, {**self._tags, "column": ascii_name(column)})
        drift = None
        if self._scores is not None and self._reference is not None and self._scores.sum() >= _ENOUGH:
            drift = self._reference.drift(self._scores)
            self.metrics.drift.set(drift, self._tags)
            if self._scores.sum() > _WINDOW:
                self._scores /= 2
        self.metrics.history.scored(self.model, self.version, self._ids, drift)
        self._ids.clear()
        self._unknown.clear()


def _batches(passes: list[ScoredPass]) -> list[tuple[pa.RecordBatch | None, pa.RecordBatch]]:
    """Return the raw and the encoded rows of passes as Arrow's batches; one for all passes of a few raw rows."""
    few = [(one.raw, one.encoded) for one in passes if one.raw is not None and one.is_small]
    others = [one for one in passes if one.raw is None or not one.is_small]
    batches = [(one.raw and one.raw.batch(), one.encoded.batch()) for one in others]
    if few:
        raw, encoded = zip(*few, strict=True)
        batches.append((StackedColumns.joined(raw).batch(), StackedColumns.joined(encoded).batch()))
    return batches


def of_all_nodes() -> bytes:
    """Return what the replicas of all nodes have published, as Ray collects it every ten seconds: lines of Prometheus'
    text.

    Of rayrec's own metrics alone, with users' names as they are. A node that does not answer is left out.
    """
    nodes = [node for node in ray.nodes() if node["Alive"]]
    with ThreadPoolExecutor(_NODES_AT_ONCE) as pool:
        return with_names(b"".join(pool.map(_of_node, nodes)))


def _of_node(node: dict[str, Any]) -> bytes:
    exported = _read(f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics")
    return b"".join(line for line in exported.splitlines(keepends=True) if line.startswith(b"ray_rayrec_"))


def _read(url: str) -> bytes:
    """Return what a node answers; nothing if it does not."""
    try:
        with _OPENER.open(url, timeout=_NODE_SECONDS) as answer:
            content: bytes = answer.read()
            return content
    except (OSError, HTTPException):
        return b""


def refused_requests() -> bytes:
    """Return a line of Prometheus' text for 4xx and one for 5xx: answers of this node's HAProxy that are no replica's.

    Empty where requests do not come through HAProxy. The counts begin anew when the number of replicas changes.
    """
    port = os.environ.get("RAY_SERVE_HAPROXY_METRICS_PORT", "9101")
    return count_refused(_read(f"http://127.0.0.1:{port}/metrics?scope=frontend&scope=server"))


def count_refused(metrics: bytes) -> bytes:
    """Return the lines of `refused_requests` from HAProxy's own metrics."""
    refused = collections.Counter[bytes]()
    for kind, code, answers in _HAPROXY_ANSWERS.findall(metrics):
        refused[code] += int(answers) if kind == b"frontend" else -int(answers)
    # A replica's answer may be counted before it is sent.
    return b"".join(b'ray_rayrec_refused_requests_total{code="%s"} %d\n' % (c, max(0, n)) for c, n in refused.items())
