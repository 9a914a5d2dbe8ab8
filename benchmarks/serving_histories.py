"""What histories cost a request: a lone row and `:rank` of a model with them, beside the same model without.

    python -m benchmarks.serving_histories --output benchmarks/results/serving_histories.json

One log of people, items and times becomes two models, of the same recipe with and without `source.histories`. One
server answers for both; requests bring key, item and time alone. The models take turns, round after round, so that what
else the machine does is on both sides: the ratio is of two neighbouring measurements.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import rayrec
from benchmarks.http_load import json_post
from jobs.benchmark_serve import measured
from jobs.serve import ServeRequest, serving
from rayrec.common.machine import Machine, free_port
from rayrec.common.progress import SilentProgress
from rayrec.store.files import write_json

HISTORIES = {
    "user": {"by": "user_id", "take": ["count", "rate", "age", {"op": "last", "column": "item_id", "length": 20}]},
    "item": {"by": "item_id", "take": ["count", "rate", "age"]},
}
SOURCE: dict[str, Any] = {
    "kind": "table",
    "label": "click",
    "candidate": "item_id",
    "time": {"column": "ts", "format": "s"},
    "features": [
        {"kind": "categorical", "columns": ["user_id", "item_id"]},
        {"kind": "timestamp", "columns": "ts", "format": "s", "derive": ["hour", "weekday"]},
    ],
}
CANDIDATES = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    machine = Machine()
    with tempfile.TemporaryDirectory() as temporary:
        log = write_log(Path(temporary) / "log.parquet", arguments.events)
        folders = tuple(exported(log, Path(temporary) / name, name) for name in ("without", "histories"))
        row = {"user_id": "7", "ts": int(pq.read_table(log, columns=["ts"])["ts"][-1].as_py()) + 60}
        candidates = [str(item) for item in range(CANDIDATES)]
        bodies = {
            "predict": {"instances": [{**row, "item_id": "3"}]},
            "rank": {"context": row, "candidates": candidates, "k": 10},
        }
        with serving(ServeRequest(model=folders, port=free_port()), SilentProgress()) as url:
            posts = {
                (verb, folder.name): json_post(f"{url}/v1/models/{folder.name}:{verb}", json.dumps(body).encode())
                for verb, body in bodies.items()
                for folder in folders
            }
            rounds = [
                {"round": number, "verb": verb, "model": model, **measured(post, 1, arguments.seconds)}
                for number in range(arguments.rounds)
                for (verb, model), post in posts.items()
            ]
    result = {"machine": machine.described(), "ratios": ratios(rounds), "rounds": rounds}
    write_json(arguments.output, result)
    print(json.dumps(result["ratios"], indent=1))


def write_log(path: Path, events: int) -> Path:
    """Write rows of people who like some items more than others, in order of time."""
    rng = np.random.default_rng(5)
    users, items = rng.zipf(1.3, events) % 5_000, rng.zipf(1.2, events) % 2_000
    likes = 0.2 + 0.6 * ((users * 7 + items * 3) % 10 < 5)
    columns = {
        "user_id": users.astype(str),
        "item_id": items.astype(str),
        "ts": 1_700_000_000 + np.sort(rng.integers(0, 30 * 86_400, events)),
        "click": (rng.random(events) < likes).astype(np.int64),
    }
    pq.write_table(pa.table(columns), path)
    return path


def exported(log: Path, folder: Path, name: str) -> Path:
    """Return the model folder of a model of the log, with histories or without."""
    source = {**SOURCE, "histories": HISTORIES} if name == "histories" else SOURCE
    recipe = {
        "name": name,
        "source": source,
        "preprocess": {"split": {"kind": "time", "test": 0.1}},
        "model": {"kind": "wide_deep", "embedding_dim": 16, "mlp": [64, 32]},
        "train": {"epochs": 1},
    }
    folder.mkdir()
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    written, data, run = folder / "recipe.yaml", folder / "data", folder / "run"
    rayrec.preprocess(recipe=written, input=[str(log)], output=data, on="process", progress=False)
    rayrec.train(recipe=written, data=data, output=run, on="process", progress=False)
    rayrec.export(run=folder / "run", output=folder / name, progress=False)
    return folder / name


def ratios(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians of milliseconds and of the ratio with histories to without, by verb."""
    found = {}
    for verb in dict.fromkeys(one["verb"] for one in rounds):
        without, histories = (
            [one["p50_ms"] for one in rounds if (one["verb"], one["model"]) == (verb, model)]
            for model in ("without", "histories")
        )
        of_rounds = [slow / fast for slow, fast in zip(histories, without, strict=True)]
        found[verb] = {
            "without_ms": statistics.median(without),
            "histories_ms": statistics.median(histories),
            "ratio": round(statistics.median(of_rounds), 3),
            "of_rounds": [round(ratio, 3) for ratio in of_rounds],
        }
    return found


if __name__ == "__main__":
    main()
