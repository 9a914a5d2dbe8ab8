"""The history behind the dashboard: buckets, their bound in time, several replicas, restarts, what is not known."""

import json
from dataclasses import dataclass

import pytest

from serve.dashboard import BUCKET_SECONDS, BUCKETS, History, References, figures, quantile

LOADED = {"shop": {"1": References({"C1": 0.1}, True, 1_300_000_000.0, 0)}}


@dataclass
class Clock:
    """A clock that tests move."""

    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def test_counts_of_two_replicas_add_up_and_survive_a_restart() -> None:
    clock = Clock()
    one, other = History(clock), History(clock)
    for _ in range(20):
        one.answered("shop", "1", 200, 0.004)
    for _ in range(10):
        other.answered("shop", "1", 503, 0.004)
    other.answered("", "", 401, None)
    # The other replica dies, and a new one begins with nothing.
    dead = other.record()
    clock.now += 20
    new = History(clock)
    new.answered("shop", "1", 200, 0.004)
    clock.now += 3
    seen = figures([one.record(), dead, new.record()], clock(), LOADED)
    shop = seen["models"]["shop"]
    assert shop["answers"] == {"200": 21, "503": 10}
    assert seen["refused"] == {"401": 1}
    assert seen["replicas"] == 2, "the dead one has not written for a while"
    assert [(point["requests"], point["errors"]) for point in shop["points"]] == [(3.0, 1.0), (0.0, 0.0)]
    assert shop["points"][0]["p50"] == pytest.approx(3.5)
    assert shop["points"][1]["p50"] is None, "no answer has no latency"
    assert shop["versions"]["1"]["data_time"] == 1_300_000_000.0


def test_ten_minutes_are_kept() -> None:
    clock = Clock()
    history = History(clock)
    for _ in range(3 * BUCKETS):
        history.answered("shop", "1", 200, 0.004)
        history.scored("shop", "1", {f"C{n}": (1, 10) for n in range(50)}, 0.2)
        clock.now += BUCKET_SECONDS
    record = history.record()
    assert len(json.loads(record)["buckets"]) == BUCKETS
    assert len(record) < 20_000, "ids by feature are kept for the last buckets alone"
    shop = figures([record], clock(), LOADED)["models"]["shop"]
    assert len(shop["points"]) == BUCKETS - 1 or len(shop["points"]) == BUCKETS
    assert {point["requests"] for point in shop["points"]} == {1 / BUCKET_SECONDS}
    assert sum(shop["answers"].values()) <= BUCKETS


def test_what_is_not_known_is_not_zero() -> None:
    clock = Clock()
    history = History(clock)
    clock.now += 25
    seen = figures([history.record()], clock(), LOADED)
    (shop,) = seen["models"].values()
    assert [point["time"] for point in shop["points"]] == [1_000_000, 1_000_010], "nothing before the server began"
    assert shop["now"]["requests"] == shop["now"]["errors"] == 0
    for name in ("p50", "p99", "unknown", "drift", "at_export", "worst"):
        assert shop["now"][name] is None
    assert figures([], clock(), {})["models"] == {}


def test_the_first_bucket_counts_from_the_start_of_the_server() -> None:
    clock = Clock(1_000_008.0)
    history = History(clock)
    for _ in range(4):
        history.answered("shop", "1", 200, 0.004)
    clock.now = 1_000_013.0
    (point,) = figures([history.record()], clock(), LOADED)["models"]["shop"]["points"]
    assert point["requests"] == pytest.approx(2.0)


def test_versions_are_counted_apart() -> None:
    clock = Clock()
    history = History(clock)
    loaded = {"shop": {**LOADED["shop"], "2": References({}, True, None, 3)}}
    history.answered("shop", "1", 200, 0.004)
    history.scored("shop", "1", {"C1": (30, 100), "C2": (100, 100)}, 0.05)
    for _ in range(9):
        history.answered("shop", "2", 200, 0.004)
    history.scored("shop", "2", {"C1": (0, 100)}, 0.3)
    clock.now += 10
    shop = figures([history.record()], clock(), loaded)["models"]["shop"]
    assert {name: of["requests"] for name, of in shop["versions"].items()} == pytest.approx({"1": 0.1, "2": 0.9})
    now = shop["now"]
    assert (now["drift"], now["drifted"]) == (0.3, "2")
    assert now["unknown"] == pytest.approx(130 / 300)
    assert (now["worst"], now["worst_unknown"], now["worst_at_export"]) == ("C1", 0.3, 0.1)
    assert now["at_export"] == pytest.approx(0.1), "of what is known at export alone"


@pytest.mark.parametrize(("counts", "expected"), [([], None), ([0] * 15, None), ([0, 0, 4] + [0] * 12, 3.5)])
def test_quantiles(counts: list[int], expected: float | None) -> None:
    assert quantile(0.5, counts) == (None if expected is None else pytest.approx(expected))


def test_a_latency_beyond_the_last_limit() -> None:
    clock = Clock()
    history = History(clock)
    history.answered("shop", "1", 504, 99.0)
    clock.now += 10
    assert figures([history.record()], clock(), LOADED)["models"]["shop"]["now"]["p99"] == pytest.approx(30_000)
