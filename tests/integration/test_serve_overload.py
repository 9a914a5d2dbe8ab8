"""A server that is asked for more than it can do answers 503 for what does not fit its queue, and recovers."""

import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import requests

from jobs.serve import ServeRequest, serving
from rayrec.common.progress import SilentProgress
from rayrec.config import load_recipe
from rayrec.config.recipe import dump_recipe
from rayrec.inference.predictor import load_model
from tests.model_folders import make_model_folder, make_raw_rows

TIMEOUT = 120


def test_overload_is_503_and_passes(ray_cluster: str, tmp_path: Path) -> None:
    folder = tmp_path / "dlrm"
    make_model_folder(folder)
    recipe = load_recipe(folder / "config.yaml", ["serve.max_batch_size=1", "serve.max_queued_requests=2"])
    (folder / "config.yaml").write_text(dump_recipe(recipe))
    body = {"instances": make_raw_rows(load_model(folder).schema, 4_000)}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with serving(ServeRequest(model=(folder,), port=port), SilentProgress()) as url:
        address = f"{url}/v1/models/dlrm:predict"

        def ask(_: int) -> int:
            answer = requests.post(address, json=body, timeout=TIMEOUT)
            assert answer.headers.get("Retry-After") == ("1" if answer.status_code == 503 else None)
            return answer.status_code

        with ThreadPoolExecutor(24) as pool:
            statuses = Counter(pool.map(ask, range(48)))
        assert set(statuses) == {200, 503}
        assert requests.post(address, json=body, timeout=TIMEOUT).status_code == 200
