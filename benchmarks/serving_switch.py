"""A version switch and a failed one while `rayrec serve` answers as many single rows a second as the machine gives.

    python -m benchmarks.serving_switch --output benchmarks/results/serving_switch.json

Two replicas answer 16 clients; after a third of the time version 2 is added, after two thirds version 3,
whose stored scores are wrong. No request may fail, and version 2 must answer at the end.
"""

import argparse
import json
import os
import shutil
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

from jobs.serve import ServeRequest, serving
from rayrec.common.files import write_json
from rayrec.common.ports import free_port
from rayrec.common.progress import SilentProgress
from rayrec.inference.predictor import load_model
from rayrec.models.dlrm.config import DLRMConfig
from rayrec.recipes import dump_recipe, load_recipe
from serve.operations.load import json_post, of_clients, summary
from tests.model_folders import make_model_folder, make_raw_rows

_CONFIG = DLRMConfig(embedding_dim=64, bottom_mlp=(512, 256, 64), top_mlp=(512, 256))
_CLIENTS = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=45)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        made, models = Path(temporary) / "made", Path(temporary) / "models" / "ctr"
        models.mkdir(parents=True)
        for version in ("1", "2", "3"):
            _make(made / version, int(version))
        examples = made / "3" / "examples.json"
        examples.write_text(examples.read_text().replace('"tolerance": 1e-05', '"tolerance": -1'))
        body = json.dumps(make_raw_rows(load_model(made / "1").schema, 1)[0]).encode()
        _add(made, models, "1")
        request = ServeRequest(model=(models.parent,), port=free_port())
        with serving(request, SilentProgress()) as url:
            post = json_post(f"{url}/v1/models/ctr:predict", body)
            of_clients(post, _CLIENTS, 3)
            adding = threading.Thread(target=_add_in_time, args=(made, models, arguments.seconds / 3))
            adding.start()
            samples = of_clients(post, _CLIENTS, arguments.seconds)
            adding.join()
            with urllib.request.urlopen(f"{url}/v1/models/ctr", timeout=60) as answer:
                states: dict[str, Any] = json.load(answer)["versions"]
    result = {
        "machine": {"cores": os.cpu_count(), "load_average_at_the_end": os.getloadavg()[0]},
        "seconds": arguments.seconds,
        "clients": _CLIENTS,
        "requests_per_second": round(len(samples) / arguments.seconds),
        **summary(samples),
        "versions_at_the_end": states,
    }
    write_json(arguments.output, result)
    print(arguments.output.read_text())


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
