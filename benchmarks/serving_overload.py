"""What `rayrec serve` does at ten times the load it can bear, and when a replica is killed.

    python -m benchmarks.serving_overload --output benchmarks/results/serving_overload.json

1. Capacity: what one replica answers a second at most. 2. A light load, for comparison. 3. Ten times the capacity for a
minute: what was answered how fast, what was refused how fast, memory of Serve's processes. 4. The light load again:
seconds until its median is back. 5. Two replicas at half their capacity, of which one gets SIGKILL: share of requests
that fail, seconds until both answer again. 6. One replica that may become two, at a little more than one can
bear: seconds until the second one runs, and the median before and after. Requests come at their rate, whether earlier
ones were answered or not.
"""

import argparse
import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks.http_load import at_rate, json_post, percentiles, summary
from benchmarks.process_tree import repeated
from jobs.benchmark_serve import Post, TimedAnswer
from jobs.serve import ServeRequest, serving
from rayrec.common.machine import Machine, free_port
from rayrec.common.progress import SilentProgress
from rayrec.models.dlrm.config import DLRMConfig
from rayrec.recipes import dump_recipe, load_recipe
from rayrec.store.files import write_json
from tests.model_folders import make_model_folder

_CONFIG = DLRMConfig(embedding_dim=64, bottom_mlp=(512, 256, 64), top_mlp=(512, 256))
# Small for the client, dear for the server.
_BODY = json.dumps({"instances": [{}] * 500}).encode()
_TIMES = 10
_AFTER_SECONDS = 20.0
_SCALING_SECONDS = 90.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="of the overload")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    machine = Machine()
    result: dict[str, Any] = {"rows_per_request": 500}
    with server("replicas=1") as post:
        result["overload"] = overload(post, arguments.seconds)
    capacity = result["overload"]["capacity_per_second"]
    with server("replicas=2") as post:
        result["kill"] = kill(post, capacity)
    # By Little's law two requests in work, at the capacity, are a latency of two answers' time.
    with server("replicas=1", "max_replicas=2", "target_ongoing_requests=2") as post:
        result["autoscaling"] = autoscaling(post)
    write_json(arguments.output, {"machine": machine.described(), **result})
    print(arguments.output.read_text())


@contextmanager
def server(*settings: str) -> Iterator[Post]:
    """Yield the request to send."""
    chosen = [f"serve.{setting}" for setting in (*settings, "max_batch_size=4", "max_queued_requests=16")]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "dlrm"
        make_model_folder(folder, config=_CONFIG, numeric=13, categorical=26)
        (folder / "config.yaml").write_text(dump_recipe(load_recipe(folder / "config.yaml", chosen)))
        with serving(ServeRequest(model=(folder,), port=free_port()), SilentProgress()) as url:
            yield json_post(f"{url}/v1/models/dlrm:predict", _BODY)


def overload(post: Post, seconds: float) -> dict[str, Any]:
    """Return the steps 1 to 4."""
    capacity = capacity_per_second(post)
    light = capacity / 5
    before = at_rate(post, light, 10)
    memory: list[dict[str, float]] = []
    with repeated(lambda: memory.append(resident_mib()), 1.0):
        during = at_rate(post, _TIMES * capacity, seconds)
    after = at_rate(post, light, _AFTER_SECONDS)
    # What else the machine does may have changed meanwhile.
    settled = [sample for sample in after if sample.began > _AFTER_SECONDS - 5]
    usual = max(percentiles(before)["p50"], percentiles(settled)["p50"])
    return {
        "capacity_per_second": round(capacity, 1),
        "offered_per_second": round(len(during) / max(sample.began for sample in during), 1),
        "light_load_before": summary(before),
        "overload": summary(during),
        "answered_per_second": round(sum(sample.status == 200 for sample in during) / seconds, 1),
        "light_load_after": summary(after),
        "seconds_until_the_median_is_back": seconds_until_usual(after, usual),
        "resident_mib": {
            name: {"first": memory[0][name], "most": max(seen[name] for seen in memory if name in seen)}
            for name in memory[0]
        },
    }


def capacity_per_second(post: Post) -> float:
    """Return the answers a second at a rate that is too high: the queue is never empty."""
    at_rate(post, 20, 3)
    samples = at_rate(post, 200, 8)
    answered = [sample for sample in samples if sample.status == 200]
    return len(answered) / max(sample.began + sample.seconds for sample in answered)


def seconds_until_usual(samples: list[TimedAnswer], usual_ms: float) -> int | None:
    """Return the first second whose median is at most 1.5 times the usual one, which is that before or of the end."""
    for second in range(int(max(sample.began for sample in samples)) + 1):
        median = percentiles([sample for sample in samples if int(sample.began) == second]).get("p50")
        if median is not None and median <= 1.5 * usual_ms:
            return second
    return None


def kill(post: Post, capacity: float) -> dict[str, Any]:
    """Step 5."""
    at_rate(post, capacity / 5, 3)
    victims = replicas()
    killed: list[float] = []
    began = time.monotonic()

    def strike() -> None:
        time.sleep(5)
        os.kill(victims[0].pid, signal.SIGKILL)
        killed.append(time.monotonic() - began)
        while len(replicas()) < 2 and time.monotonic() - began < 60:
            time.sleep(0.2)
        killed.append(time.monotonic() - began)

    thread = threading.Thread(target=strike)
    thread.start()
    # Half of what two replicas bear, as far as the machine has a core for each.
    samples = at_rate(post, capacity / 2, 30)
    thread.join()
    failed = [sample for sample in samples if sample.status not in (200, 503)]
    return {
        **summary(samples),
        "failed_share": len(failed) / len(samples),
        "seconds_from_kill_to_the_last_failure": max((s.began + s.seconds - killed[0] for s in failed), default=0.0),
        "seconds_until_a_new_replica_runs": killed[1] - killed[0],
    }


def autoscaling(post: Post) -> dict[str, Any]:
    """Step 6; Ray Serve looks at half a minute, and waits another half before it adds a replica."""
    per_second = 1.1 * capacity_per_second(post)
    scaled: list[float] = []
    began = time.monotonic()

    def watch() -> None:
        while time.monotonic() - began < _SCALING_SECONDS and not scaled:
            if len(replicas()) > 1:
                scaled.append(time.monotonic() - began)
            time.sleep(0.5)

    thread = threading.Thread(target=watch)
    thread.start()
    samples = at_rate(post, per_second, _SCALING_SECONDS)
    thread.join()
    first = [sample for sample in samples if sample.began < 20]
    last = [sample for sample in samples if sample.began > _SCALING_SECONDS - 20]
    return {
        "offered_per_second": round(per_second, 1),
        **summary(samples),
        "seconds_until_the_second_replica_starts": round(scaled[0], 1) if scaled else None,
        "first_20_seconds": percentiles(first),
        "last_20_seconds": percentiles(last),
    }


def replicas() -> list[psutil.Process]:
    """Return the processes of replicas on this machine that this process or its Ray started."""
    return [process for process in psutil.Process().children(recursive=True) if "ServeReplica" in _title(process)]


def resident_mib() -> dict[str, float]:
    """Return the memory of Serve's processes by kind; of several of a kind, the last one's."""
    seen: dict[str, float] = {}
    for process in psutil.Process().children(recursive=True):
        name = next((kind for kind in _KINDS if kind in _title(process)), None)
        if name is not None:
            seen[name] = round(process.memory_info().rss / 2**20)
    return seen


_KINDS = ("ServeReplica", "HAProxyManager", "ProxyActor", "ServeController", "haproxy")


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


if __name__ == "__main__":
    main()
