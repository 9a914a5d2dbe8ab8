"""What clients of `rayrec serve` get while versions change, replicas die, and the server itself starts and ends.

    python -m benchmarks.serving_switch --output benchmarks/results/serving_switch.json
    python -m benchmarks.serving_switch --deltas --output benchmarks/results/serving_deltas.json
    python -m benchmarks.serving_switch --life --output benchmarks/results/serving_life.json

Two replicas answer 16 clients, as many requests a second as the machine gives; after a third of the time version 2 is
added, after two thirds version 3, whose stored scores are wrong. No request may fail, and version 2 must answer at the
end.

With `--deltas`, 10,000 requests come at a rate of 100 a second while ten deltas are published one after the other; as
many come before the first and after the last, for comparison. Measured, too: the seconds from the publishing of each
to the first answer with its score, and to the last with the score before it.

With `--life`, clients ask from before the command starts until after it has ended: half of them over connections that
they keep, a few with bodies that HAProxy cannot send a second time. In between a version is added, a replica is killed,
and SIGTERM ends the server, and a second one its drain. Counted are the answers by status in each of these spans, and
connections that were refused, or broke off (`broken`) before the answer, as only the large requests to the replica
that died may.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks.http_load import at_rate, json_post, of_clients, summary
from benchmarks.killable import started
from jobs.benchmark_serve import BROKEN, REFUSED, Post, answer_to, load_of_clients
from jobs.serve import ServeRequest, serving
from rayrec.common.machine import Machine, free_port
from rayrec.common.progress import SilentProgress
from rayrec.inference.folder.delta import write_delta
from rayrec.inference.folder.model_folder import ModelFolder, copy
from rayrec.inference.predictor import load_model
from rayrec.models.dlrm.config import DLRMConfig
from rayrec.recipes import dump_recipe, load_recipe
from rayrec.store.files import write_json
from tests.model_days import ModelDays, raw_rows
from tests.model_folders import make_model_folder, make_raw_rows

_CONFIG = DLRMConfig(embedding_dim=64, bottom_mlp=(512, 256, 64), top_mlp=(512, 256))
_CLIENTS = 16
_DELTAS = 10
_LOOK_SECONDS = 0.05
_DRAIN_SECONDS = 2.0
"""Until the second SIGTERM ends a drain of 5 seconds."""
LARGE_CLIENTS = 2
_ANSWERS = {REFUSED: "refused", BROKEN: "broken"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=45, help="length of the load, without --deltas")
    parser.add_argument("--deltas", action="store_true")
    parser.add_argument("--life", action="store_true")
    parser.add_argument("--requests", type=int, default=10_000, help="requests before, during and after the deltas")
    parser.add_argument("--per-second", type=float, default=100.0, help="requests a second, with --deltas")
    parser.add_argument("--values", type=int, default=20_000, help="rows of each of the 26 tables, with --deltas")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    machine = Machine()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if arguments.life:
            found = measure_life(folder, arguments.seconds)
        elif arguments.deltas:
            found = measure_deltas(folder, arguments.requests, arguments.per_second, arguments.values)
        else:
            found = measure_switch(folder, arguments.seconds)
    write_json(arguments.output, {"machine": machine.described(), **found})
    print(arguments.output.read_text())


def measure_switch(folder: Path, seconds: int) -> dict[str, Any]:
    """Measure a switch and a failed one."""
    made, models = folder / "made", folder / "models" / "ctr"
    models.mkdir(parents=True)
    for version in ("1", "2", "3"):
        _make(made / version, int(version))
    examples = made / "3" / "examples.json"
    examples.write_text(examples.read_text().replace('"tolerance": 1e-05', '"tolerance": -1.00'))
    body = json.dumps(make_raw_rows(load_model(made / "1").schema, 1)[0]).encode()
    _add(made, models, "1")
    with serving(ServeRequest(model=(models.parent,), port=free_port()), SilentProgress()) as url:
        post = json_post(f"{url}/v1/models/ctr:predict", body)
        of_clients(post, _CLIENTS, 3)
        adding = threading.Thread(target=_add_in_time, args=(made, models, seconds / 3))
        adding.start()
        samples = of_clients(post, _CLIENTS, seconds)
        adding.join()
        with urllib.request.urlopen(f"{url}/v1/models/ctr", timeout=60) as answer:
            states: dict[str, Any] = json.load(answer)["versions"]
    return {
        "seconds": seconds,
        "clients": _CLIENTS,
        "requests_per_second": round(len(samples) / seconds),
        **summary(samples),
        "versions_at_the_end": states,
    }


def measure_deltas(folder: Path, requests: int, per_second: float, values: int) -> dict[str, Any]:
    """Return ten deltas under load, and the same load before and after them."""
    made, models = folder / "made", folder / "models" / "ctr"
    models.mkdir(parents=True)
    days = ModelDays(folder / "whole", values=values, plain=22, config=_CONFIG, settings=("replicas=2",))
    delta_bytes = _make_deltas(days, made, changed=values // 10)
    seconds = requests / per_second
    _add(made, models, "1")
    with serving(ServeRequest(model=(models.parent,), port=free_port()), SilentProgress()) as url:
        post = json_post(f"{url}/v1/models/ctr:predict", json.dumps(raw_rows(days, 1)[0]).encode())
        of_clients(post, 4, 3)
        before = summary(at_rate(post, per_second, seconds))
        publishing = _Publishing(made, models, post, seconds / _DELTAS)
        publishing.start()
        during = summary(at_rate(post, per_second, seconds))
        publishing.join()
        after = summary(at_rate(post, per_second, seconds))
    return {
        "requests_per_second": per_second,
        "tables": 26,
        "rows_of_a_table": values,
        "bytes_of_a_delta": round(statistics.median(delta_bytes)),
        "failed": sum(count for status, count in during["statuses"].items() if status != "200"),
        "before": before,
        "during_ten_deltas": during,
        "after": after,
        "seconds_to_the_first_new_score": _spread(publishing.first),
        "seconds_to_the_last_old_score": _spread(publishing.last),
    }


def measure_life(folder: Path, seconds: float) -> dict[str, Any]:
    """Measure the life of a server: start, `seconds` of work, a version switch, the death of a replica, SIGTERM."""
    made, models, log = folder / "made", folder / "models" / "ctr", folder / "log"
    models.mkdir(parents=True)
    for version in ("1", "2"):
        _make(made / version, int(version))
    rows = make_raw_rows(load_model(made / "1").schema, 200)
    _add(made, models, "1")
    port = free_port()
    url = f"http://127.0.0.1:{port}/v1/models/ctr:predict"
    one, many = json.dumps(rows[0]).encode(), json.dumps({"instances": rows}).encode()
    assert len(many) > 16 * 2**10, "HAProxy could send it again"
    kept = json_post(url, one)
    new = replace(kept, headers={**kept.headers, "Connection": "close"})
    loads = [(kept, _CLIENTS // 2), (new, _CLIENTS // 2), (json_post(url, many), LARGE_CLIENTS)]
    is_over = threading.Event()
    spans: list[tuple[str, float]] = []
    words: list[object] = ["rayrec.cli", "serve", str(models.parent), "--port", str(port), "--drain-seconds", "5"]
    with started(words, log) as server, ThreadPoolExecutor(len(loads)) as pool:
        began = time.perf_counter()
        running = [pool.submit(load_of_clients, *load, lambda _: is_over.is_set()) for load in loads]

        def begin(span: str) -> None:
            spans.append((span, time.perf_counter() - began))

        try:
            begin("start")
            _wait_until(lambda: "Ctrl-C stops" in log.read_text(), server, log)
            begin("work")
            time.sleep(seconds / 3)
            begin("version switch")
            _add(made, models, "2")
            time.sleep(seconds / 3)
            # A span lasts until its work is done, which a busy machine may take long for.
            _wait_until(lambda: _version_at(url.removesuffix(":predict")) == "2", server, log)
            begin("death of a replica")
            _replicas_of(server.pid)[0].kill()
            time.sleep(seconds / 3)
            _wait_until(lambda: len(_replicas_of(server.pid)) == 2, server, log)
            time.sleep(seconds / 3)
            begin("SIGTERM, drain")
            server.terminate()
            time.sleep(_DRAIN_SECONDS)
            begin("SIGTERM again, end")
            server.terminate()
            server.wait(120)
            begin("gone")
            time.sleep(1)
        finally:
            is_over.set()
        samples = [sample for load in running for sample in load.result()]
    answers: dict[str, Counter[str]] = {span: Counter() for span, _ in spans}
    for sample in samples:
        at = sample.began + sample.seconds
        span = next((span for span, begins in reversed(spans) if begins <= at), "start")
        answers[span][_ANSWERS.get(sample.status, str(sample.status))] += 1
    return {
        "clients": sum(clients for _, clients in loads),
        "exit_code": server.returncode,
        "requests": len(samples),
        "answers": dict(sum(answers.values(), Counter())),
        "spans": {span: {"begins_at_seconds": round(begins, 1), "answers": answers[span]} for span, begins in spans},
    }


def _wait_until(is_done: Callable[[], bool], server: subprocess.Popen[bytes], log: Path) -> None:
    while not is_done():
        assert server.poll() is None, log.read_text()
        time.sleep(_LOOK_SECONDS)


def _version_at(model: str) -> str:
    with urllib.request.urlopen(model, timeout=60) as answer:
        return str(json.load(answer)["version"])


def _replicas_of(server: int) -> list[psutil.Process]:
    found = []
    for one in psutil.Process(server).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it ended since
            if "ServeReplica" in "".join(one.cmdline()):
                found.append(one)
    return found


class _Publishing(threading.Thread):
    """Publishes the deltas one after the other, and asks for a score all the time."""

    def __init__(self, made: Path, models: Path, post: Post, seconds: float) -> None:
        super().__init__()
        self._made, self._models, self._post, self._seconds = made, models, post, seconds
        self.first: list[float] = []
        self.last: list[float] = []

    def run(self) -> None:
        for version in range(2, 2 + _DELTAS):
            old = self._score()
            _add(self._made, self._models, str(version))
            published = time.perf_counter()
            answers: list[tuple[float, bool]] = []
            while (passed := time.perf_counter() - published) < self._seconds:
                answers.append((passed, self._score() == old))
                time.sleep(_LOOK_SECONDS)
            self.first.append(next((passed for passed, is_old in answers if not is_old), float("inf")))
            self.last.append(max(passed for passed, is_old in answers if is_old))

    def _score(self) -> float:
        status, body = answer_to(self._post)
        assert status == 200, body
        (score,) = json.loads(body)["predictions"]
        return float(score)


def _spread(seconds: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(seconds), 2), "most": round(max(seconds), 2)}


def _make_deltas(days: ModelDays, made: Path, changed: int) -> list[int]:
    """Write version 1 whole and the others as deltas; return the bytes of each of these."""
    copy(days.write("1"), made / "1")
    sizes = []
    for version in range(2, 2 + _DELTAS):
        days.pass_day(new=changed // 10, removed=changed // 100, changed=changed)
        days.write(str(version))
        manifest = write_delta(days.open(str(version)), ModelFolder.open(made / str(version - 1)), made / str(version))
        sizes.append(sum(file.bytes for file in manifest.files))
        shutil.rmtree(days.folder / str(version))
    return sizes


def _make(folder: Path, seed: int) -> None:
    make_model_folder(folder, config=_CONFIG, numeric=13, categorical=26, seed=seed)
    settings = ["serve.replicas=2", "serve.poll_seconds=0.5"]
    (folder / "config.yaml").write_text(dump_recipe(load_recipe(folder / "config.yaml", settings)))


def _add(made: Path, models: Path, version: str) -> None:
    """As a user should: copied beside, then renamed."""
    shutil.copytree(made / version, models / ".coming")
    (models / ".coming").rename(models / version)


def _add_in_time(made: Path, models: Path, seconds: float) -> None:
    for version in ("2", "3"):
        time.sleep(seconds)
        _add(made, models, version)


if __name__ == "__main__":
    main()
