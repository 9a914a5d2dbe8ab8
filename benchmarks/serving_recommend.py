"""What `:recommend` takes over a large catalogue, with clients beside each other, beside exact NumPy in a process.

    python -m benchmarks.serving_recommend --output benchmarks/results/serving_recommend.json

A model of random weights that reads histories: how fast it answers does not depend on what it has learned. Requests
bring the events of somebody whom it does not know. NumPy multiplies the vectors of all items with a person's and takes
the best; the server also reads the history, leaves out what the person has, and answers over HTTP.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.http_load import json_post
from jobs.benchmark_serve import measured
from jobs.serve import ServeRequest, serving
from rayrec.common.machine import Machine, free_port
from rayrec.common.progress import SilentProgress
from rayrec.inference.recommender import load_recommender
from rayrec.models.sasrec.config import SASRecConfig
from rayrec.store.files import write_json
from tests.model_folders import make_recommender_folder

K = 10
EVENTS = 50


def by_numpy(vectors: np.ndarray, person: np.ndarray, rounds: int = 200) -> dict[str, float]:
    """Return how long one product, a softmax and the best items take."""
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        logits = vectors @ person
        odds = np.exp(logits - logits.max())
        best = np.argpartition(-odds, K)[:K]
        best = best[np.argsort(-odds[best])]
        odds[best] / odds.sum()
        taken.append(1e3 * (time.perf_counter() - began))
    return {"p50_ms": round(float(np.median(taken)), 2), "p99_ms": round(float(np.quantile(taken, 0.99)), 2)}


def measure(items: int, clients: tuple[int, ...], seconds: float, folder: Path) -> list[dict[str, Any]]:
    """Return a row for NumPy and one for each number of clients."""
    make_recommender_folder(folder / "sasrec", users=100, items=items, config=SASRecConfig())
    recommender = load_recommender(folder / "sasrec")
    events = [f"i-{item}" for item in np.random.default_rng(0).choice(items, EVENTS, replace=False)]
    person = recommender.predictor.person_vectors([np.arange(1, EVENTS + 1)])[0]
    rows = [{"items": items, "by": "NumPy", "clients": 1, **by_numpy(recommender.predictor.item_vectors, person)}]
    with serving(ServeRequest(model=(str(folder / "sasrec"),), port=free_port()), SilentProgress()) as url:
        post = json_post(f"{url}/v1/models/sasrec:recommend", json.dumps({"events": events, "k": K}).encode())
        asked = {number: measured(post, number, seconds) for number in clients}
    return rows + [{"items": items, "by": ":recommend", "clients": number, **found} for number, found in asked.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    machine = Machine()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(arguments.items, tuple(arguments.clients), arguments.seconds, Path(folder))
    result = {"machine": machine.described(), "table": rows}
    write_json(arguments.output, result)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
