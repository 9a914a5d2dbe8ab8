"""A server that is asked for more than it can do answers 503 for what does not fit its queue, and recovers; when a
replica is killed the other one goes on."""

import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
import requests

from benchmarks.http_load import at_rate, json_post, percentiles
from benchmarks.serving_overload import replicas
from jobs.serve import ServeRequest, serving
from rayrec.common.machine import free_port
from rayrec.common.progress import SilentProgress
from rayrec.recipes import dump_recipe, load_recipe
from tests.model_folders import make_model_folder

SETTINGS = ["serve.replicas=2", "serve.max_batch_size=1", "serve.max_queued_requests=2"]
# Small to send; their scores take a while.
BODY = b'{"instances": [' + b",".join([b"{}"] * 8_000) + b"]}"


def test_overload_and_the_death_of_a_replica(ray_cluster: str, tmp_path: Path) -> None:
    folder = tmp_path / "dlrm"
    make_model_folder(folder)
    (folder / "config.yaml").write_text(dump_recipe(load_recipe(folder / "config.yaml", SETTINGS)))
    with serving(ServeRequest(model=(folder,), port=free_port()), SilentProgress()) as url:
        address = f"{url}/v1/models/dlrm:predict"
        assert requests.post(address, data=BODY, timeout=60).status_code == 200

        # Both replicas hold 4 requests at most, however many come, and a refusal waits for nobody.
        during = at_rate(json_post(address, BODY), per_second=300, seconds=4)
        statuses = Counter(sample.status for sample in during)
        assert set(statuses) == {200, 503}
        assert statuses[503] > statuses[200]
        assert percentiles(during, 503)["p50"] < percentiles(during, 200)["p50"]
        refused = _refusal(address)
        assert refused.headers["Retry-After"] == "1"
        after = at_rate(json_post(address, b"{}"), per_second=5, seconds=3)
        assert {sample.status for sample in after} == {200}

        assert len(replicas()) == 2
        victim = replicas()[0]
        threading.Timer(2.0, os.kill, (victim.pid, signal.SIGKILL)).start()
        during = at_rate(json_post(address, b"{}"), per_second=20, seconds=7)
        failed = [sample for sample in during if sample.status != 200]
        # What it was answering is sent to the other replica; of what it held none need fail, and nothing else may.
        assert len(failed) <= 4
        deadline = time.monotonic() + 300
        while len(replicas()) < 2:
            assert time.monotonic() < deadline, "the replica is not replaced"
            time.sleep(0.2)


def _refusal(address: str) -> requests.Response:
    """An answer 503, of as many askers as it takes."""
    found: list[requests.Response] = []

    def ask() -> None:
        while not found:
            answer = requests.post(address, data=BODY, timeout=60)
            if answer.status_code == 503:
                found.append(answer)

    askers = [threading.Thread(target=ask) for _ in range(16)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join(60)
    if not found:
        pytest.fail("no request was refused")
    return found[0]
