"""The history of a real server: what two replicas counted, also after one of them was killed and replaced."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import requests

from benchmarks.serving_overload import replicas
from jobs.serve import ServeRequest, serving
from rayrec.common.machine import free_port
from rayrec.common.progress import SilentProgress
from tests.model_folders import make_model_folder

REQUESTS = 60


@pytest.mark.minutes
def test_two_replicas_and_a_restart(ray_cluster: str, tmp_path: Path) -> None:
    make_model_folder(tmp_path / "remembered", replicas=2)
    with serving(ServeRequest(model=(tmp_path / "remembered",), port=free_port()), SilentProgress()) as url:
        for _ in range(REQUESTS):
            # Without a connection that is kept, HAProxy sends each request to another replica.
            answer = requests.post(f"{url}/v1/models/remembered:predict", json={"I1": 3}, timeout=60)
            assert answer.status_code == 200
        assert requests.post(f"{url}/v1/models/remembered:predict", json={"I1": []}, timeout=60).status_code == 422
        wait_for(url, replicas=2, answers={"200": REQUESTS, "422": 1})
        before = {one.pid for one in replicas()}

        os.kill(replicas()[0].pid, signal.SIGKILL)
        deadline = time.monotonic() + 90
        while len(replicas()) < 2 or {one.pid for one in replicas()} == before:
            assert time.monotonic() < deadline, "the replica is not replaced"
            time.sleep(0.2)
        for _ in range(20):  # whichever replica answers, it knows what the dead one counted
            wait_for(url, answers={"200": REQUESTS, "422": 1})
        assert requests.post(f"{url}/v1/models/remembered:predict", json={"I1": 3}, timeout=60).status_code == 200
        seen = wait_for(url, replicas=2, answers={"200": REQUESTS + 1, "422": 1})
        points = seen["models"]["remembered"]["points"]
        assert sum(point["requests"] for point in points) > 0 and all(point["errors"] >= 0 for point in points)


def wait_for(url: str, answers: dict[str, int], replicas: int | None = None) -> dict[str, Any]:
    """Ask for the history until it has these counts, which the other replica writes every two seconds."""
    deadline = time.monotonic() + 30
    while True:
        seen: dict[str, Any] = requests.get(f"{url}/history.json", timeout=60).json()
        if seen["models"]["remembered"]["answers"] == answers and replicas in {None, seen["replicas"]}:
            return seen
        assert time.monotonic() < deadline, seen
        time.sleep(0.5)
