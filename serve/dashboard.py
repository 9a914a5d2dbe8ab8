"""The last ten minutes of a server, for its dashboard: what the replicas counted, in buckets of ten seconds.

Each replica counts for itself and writes its counts under a key of the Ray session every two seconds. The replica that
is asked for the history reads the keys of all replicas and adds them up. So the history outlives the replicas; one that
is killed loses its last two seconds.
"""

import json
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypedDict

from rayrec.internals.ray_core import note, notes, remove_note

BUCKET_SECONDS, BUCKETS = 10, 60
SECONDS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0]
"""Upper limits of the latencies that are counted together; longer ones are counted after the last limit."""
RECENT = 3
"""Buckets, beside the one that fills, of which "now" is the mean, and in which ids are counted by feature."""
_ENOUGH_IDS = 100
"""Ids of a feature from which on its share of unknown ones says something."""
_SECONDS_BETWEEN_WRITES = 2.0
_ALIVE_SECONDS = 15.0
"""A replica that has written for so long belongs to the server; it may be gone, or start anew under another key."""
_KEPT_SECONDS = BUCKET_SECONDS * (BUCKETS + 1)


class BucketCounts(TypedDict, total=False):
    """BucketCounts of one replica, for one version of a model in one bucket."""

    statuses: dict[str, int]
    """Answers by status."""
    seconds: list[int]
    """Answers by latency: len(SECONDS) + 1."""
    ids: dict[str, list[int]]
    """Missing or unknown ids, and all ids, of each feature; "" is their sum, the only one in older buckets."""
    drift: float
    """The newest population stability index of the scores."""


Buckets = dict[int, dict[str, dict[str, BucketCounts]]]
"""Number of the bucket (seconds since 1970 / 10) -> model -> version -> counts."""


@dataclass
class History:
    """BucketCounts of one replica in the last ten minutes. Threads may share it."""

    clock: Callable[[], float] = time.time
    began: float = field(init=False)
    _buckets: Buckets = field(init=False, default_factory=dict)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.began = self.clock()

    def answered(self, model: str, version: str, status: int, seconds: float | None) -> None:
        """Count an answer; `seconds` is its latency, None where nothing was computed. `model` may be empty."""
        with self._lock:
            counts = self._counts(model, version)
            statuses = counts.setdefault("statuses", {})
            statuses[str(status)] = statuses.get(str(status), 0) + 1
            if seconds is not None:
                counts.setdefault("seconds", [0] * (len(SECONDS) + 1))[bisect_left(SECONDS, seconds)] += 1

    def scored(self, model: str, version: str, ids: Mapping[str, tuple[int, int]], drift: float | None = None) -> None:
        """Count (unknown, all) ids of each feature, and take the newest drift of the scores."""
        with self._lock:
            counts = self._counts(model, version)
            known = counts.setdefault("ids", {})
            for name, (unknown, every) in ids.items():
                for key in (name, ""):
                    before = known.setdefault(key, [0, 0])
                    known[key] = [before[0] + unknown, before[1] + every]
            if drift is not None:
                counts["drift"] = drift

    def _counts(self, model: str, version: str) -> BucketCounts:
        now = int(self.clock() // BUCKET_SECONDS)
        if now not in self._buckets:
            self._buckets = {number: of for number, of in self._buckets.items() if number > now - BUCKETS}
            for number, models in self._buckets.items():
                if number < now - RECENT:
                    for counts in (counts for versions in models.values() for counts in versions.values()):
                        if counts.get("ids"):
                            counts["ids"] = {"": counts["ids"][""]}
        return self._buckets.setdefault(now, {}).setdefault(model, {}).setdefault(version, {})

    def record(self) -> bytes:
        """Return the history as the key of the replica holds it."""
        with self._lock:
            return json.dumps({"began": self.began, "written": self.clock(), "buckets": self._buckets}).encode()


def keep(history: History, application: str, replica: str) -> Callable[[], list[bytes]]:
    """Start a thread that writes the history of this replica; return a function that reads those of all replicas."""
    prefix = f"rayrec-history/{application}/"

    def write() -> None:
        note(f"{prefix}{replica}", history.record(), overwrite=True)

    def read() -> list[bytes]:
        write()
        found = []
        for key, record in notes(prefix):
            if history.clock() - json.loads(record)["written"] > _KEPT_SECONDS:
                remove_note(key)  # that of a replica that is gone
            else:
                found.append(record)
        return found

    def run() -> None:
        while True:
            # The head of a cluster may be away for a while: the next write makes up for it.
            with suppress(Exception):
                write()
            time.sleep(_SECONDS_BETWEEN_WRITES)

    read()
    threading.Thread(target=run, name="history", daemon=True).start()
    return read


@dataclass(frozen=True)
class References:
    """Figures of a loaded version, to compare its traffic with."""

    unknown_share: Mapping[str, float]
    """Share of missing and unknown ids at export, by feature."""
    has_scores: bool
    """Whether the model has the distribution of its scores at export."""
    data_time: float | None
    """When the newest row happened that it was trained on, in seconds since 1970."""
    deltas: int
    """Deltas that it is made of, beside a whole model."""


def figures(records: Iterable[bytes], now: float, references: Mapping[str, Mapping[str, References]]) -> dict[str, Any]:
    """Return what the dashboard shows: for each model points, one for each bucket that is over, and the state now.

    `references`: of the versions that are loaded, by model. Null is what is not known; 0 was counted.
    """
    replicas = [json.loads(record) for record in records]
    began = min((one["began"] for one in replicas), default=now)
    current = int(now // BUCKET_SECONDS)
    # Other replicas may not have written yet what they counted at the end of the last bucket.
    end = int((now - _SECONDS_BETWEEN_WRITES) // BUCKET_SECONDS)
    oldest = max(current - BUCKETS, int(began // BUCKET_SECONDS))
    counted: dict[str, dict[str, dict[int, list[BucketCounts]]]] = {}
    """By model, version and bucket, those of the replicas."""
    for one in replicas:
        for number, models in one["buckets"].items():
            for model, versions in models.items() if int(number) >= oldest else ():
                for version, counts in versions.items():
                    counted.setdefault(model, {}).setdefault(version, {}).setdefault(int(number), []).append(counts)

    def seconds(first: int, last: int) -> float:
        """Return the seconds in buckets `first` ... `last` in which the server counted."""
        return max(1e-3, min(now, (last + 1) * BUCKET_SECONDS) - max(began, first * BUCKET_SECONDS))

    def within(buckets: Mapping[int, list[BucketCounts]], first: int, last: int) -> list[BucketCounts]:
        return [counts for n in range(first, last + 1) for counts in buckets.get(n, ())]

    def of_model(name: str) -> dict[str, Any]:
        versions, known = counted.get(name, {}), references.get(name, {})
        every: dict[int, list[BucketCounts]] = {}
        for buckets in versions.values():
            for n, counts in buckets.items():
                every.setdefault(n, []).extend(counts)
        first = max(oldest, current - RECENT)
        recent = {version: within(versions.get(version, {}), first, current) for version in known}
        drifts = {v: drift for v, of in versions.items() if v in known and (drift := _newest_drift(of)) is not None}
        drifted = max(drifts, key=drifts.__getitem__, default=None)
        return {
            "points": [
                {"time": n * BUCKET_SECONDS, **_point(every.get(n, []), seconds(n, n))} for n in range(oldest, end)
            ],
            "now": {
                **_point(within(every, first, current), seconds(first, current)),
                "drift": None if drifted is None else drifts[drifted],
                "drifted": drifted,
                **_against_export(recent, known),
            },
            "answers": _statuses(within(every, oldest, current)),
            "has_reference": any(of.has_scores for of in known.values()),
            "versions": {
                version: {
                    "requests": sum(_statuses(recent[version]).values()) / seconds(first, current),
                    "data_time": of.data_time,
                    "deltas": of.deltas,
                }
                for version, of in known.items()
            },
        }

    refused = _statuses([counts for of in counted.get("", {}).values() for one in of.values() for counts in one])
    return {
        "time": now,
        "began": began,
        "bucket_seconds": BUCKET_SECONDS,
        "buckets": BUCKETS,
        "replicas": sum(now - one["written"] < _ALIVE_SECONDS for one in replicas),
        "refused": {status: count for status, count in refused.items() if _is_error(status)},
        "models": {name: of_model(name) for name in sorted(references)},
    }


def _point(counted: Sequence[BucketCounts], seconds: float) -> dict[str, float | None]:
    """Return the rates a second, latencies in milliseconds, the share of unknown ids and the drift, of counts of some
    seconds.
    """
    statuses = _statuses(counted)
    latencies = [sum(column) for column in zip(*(c["seconds"] for c in counted if "seconds" in c), strict=True)]
    unknown, ids = (sum(c["ids"][""][place] for c in counted if c.get("ids")) for place in (0, 1))
    return {
        "requests": sum(statuses.values()) / seconds,
        "errors": sum(count for status, count in statuses.items() if _is_error(status)) / seconds,
        "p50": quantile(0.5, latencies),
        "p99": quantile(0.99, latencies),
        "unknown": unknown / ids if ids else None,
        "drift": max((c["drift"] for c in counted if "drift" in c), default=None),
    }


def _against_export(
    recent: Mapping[str, Sequence[BucketCounts]], known: Mapping[str, References]
) -> dict[str, float | str | None]:
    """Return the share of unknown ids that the traffic would have at export's shares, and the feature furthest above
    its own.

    Of versions and features whose share at export is known.
    """
    found: dict[tuple[str, str], list[int]] = {}
    for version, counted in recent.items():
        for counts in counted:
            for name, (unknown, ids) in counts.get("ids", {}).items():
                if name in known[version].unknown_share:
                    before = found.get((version, name), [0, 0])
                    found[version, name] = [before[0] + unknown, before[1] + ids]
    shares = {key: (unknown / ids, known[key[0]].unknown_share[key[1]]) for key, (unknown, ids) in found.items() if ids}
    if not shares:
        return {"at_export": None, "worst": None, "worst_unknown": None, "worst_at_export": None}
    every = sum(found[key][1] for key in shares)
    compared = [key for key in shares if found[key][1] >= _ENOUGH_IDS]
    worst = max(compared, key=lambda key: shares[key][0] - shares[key][1], default=None)
    worst_share, worst_at_export = (None, None) if worst is None else shares[worst]
    return {
        "at_export": sum(found[key][1] * share for key, (_, share) in shares.items()) / every,
        "worst": None if worst is None else worst[1],
        "worst_unknown": worst_share,
        "worst_at_export": worst_at_export,
    }


def _newest_drift(buckets: Mapping[int, Sequence[BucketCounts]]) -> float | None:
    """Return the largest of the replicas in the newest bucket that has one."""
    for number in sorted(buckets, reverse=True):
        if found := [counts["drift"] for counts in buckets[number] if "drift" in counts]:
            return max(found)
    return None


def quantile(share: float, counts: Sequence[int]) -> float | None:
    """Return a quantile of latencies in milliseconds, linear within a bucket as Prometheus has it; None without
    answers.

    `counts`: (len(SECONDS) + 1,) answers by latency, or none.
    """
    wanted, below, low = share * sum(counts), 0, 0.0
    if not wanted:
        return None
    for count, limit in zip(counts, SECONDS, strict=False):
        if below + count >= wanted:
            return 1000 * (low + (limit - low) * (wanted - below) / count)
        below, low = below + count, limit
    return 1000 * low


def _statuses(counted: Iterable[BucketCounts]) -> dict[str, int]:
    total = Counter[str]()
    for counts in counted:
        total.update(counts.get("statuses", {}))
    return dict(sorted(total.items()))


def _is_error(status: str) -> bool:
    return not status.startswith("2")
