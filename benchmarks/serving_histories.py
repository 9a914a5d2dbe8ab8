"""What histories cost a request: a lone row and `:rank` of a model with them, beside the same model without.

    python -m benchmarks.serving_histories --output benchmarks/results/serving_histories.json

One log of people, items and times becomes three models: `without` histories; with `histories`, to which requests bring
key, item and time alone; and `given`, whose features are those of histories, too, but columns of the log, so that
requests bring their values, as where something else has looked them up. One server answers for all. The models take
turns, round after round, so that what else the machine does is on all sides: a ratio is of neighbouring measurements.
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
from rayrec.features.lookups import Lookups
from rayrec.features.schema import Schema
from rayrec.inference.raw_rows import RawRows
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
GIVEN: list[dict[str, Any]] = [
    {"columns": ["user_count", "item_count"], "transforms": [{"op": "log", "offset": 1}, "standardize"]},
    {"columns": ["user_rate", "item_rate"], "transforms": [{"op": "fill", "value": "mean"}, "standardize"]},
    {"columns": ["user_age", "item_age"], "transforms": [{"op": "fill", "value": "median"}, "quantile"]},
]
"""How the numbers of histories become features by themselves, as rules for columns of the log."""
SOURCES: dict[str, dict[str, Any]] = {
    "without": SOURCE,
    "histories": {**SOURCE, "histories": HISTORIES},
    "given": {
        **SOURCE,
        "features": [
            *SOURCE["features"],
            *({"kind": "numeric", **rule} for rule in GIVEN),
            {"kind": "list", "columns": "user_last_item_id", "max_length": 20, "share": "item_id"},
        ],
    },
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
        folders: list[Path] = []
        for name in SOURCES:
            if name == "given":
                with_past = Past(folders[-1].parent / "data")
                log = with_past.log(log)
            folders.append(exported(log, Path(temporary) / name, name))
        row = {"user_id": "7", "ts": int(pq.read_table(log, columns=["ts"])["ts"][-1].as_py()) + 60}
        rows = [{**row, "item_id": str(item)} for item in range(CANDIDATES)]
        asked = {name: with_past.rows(rows) if name == "given" else rows for name in SOURCES}
        bodies = {
            (verb, name): json.dumps(body).encode()
            for name, of_model in asked.items()
            for verb, body in (("predict", {"instances": of_model[:1]}), ("rank", ranked(of_model)))
        }
        with serving(ServeRequest(model=tuple(folders), port=free_port()), SilentProgress()) as url:
            posts = {
                (verb, name): json_post(f"{url}/v1/models/{name}:{verb}", body) for (verb, name), body in bodies.items()
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


class Past:
    """Completes rows from the histories of a dataset."""

    def __init__(self, dataset: Path) -> None:
        schema = Schema.load(dataset)
        self._raw_rows, self._lookups, self._columns = RawRows(schema), Lookups(schema, dataset), schema.looked_up

    def log(self, log: Path) -> Path:
        """Write a log again, with what is taken of the past of its rows."""
        table = pq.read_table(log)
        found = self._lookups.complete(self._raw_rows.from_batch(table.drop("click").combine_chunks().to_batches()[0]))
        for name in self._columns:
            table = table.append_column(name, found[name])
        pq.write_table(table, log.with_name("completed.parquet"))
        return log.with_name("completed.parquet")

    def rows(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return rows with what is taken of their past."""
        found = self._lookups.complete(self._raw_rows.from_rows(rows)).select(list(self._columns)).to_pylist()
        return [row | past for row, past in zip(rows, found, strict=True)]


def ranked(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a request for candidates: rows of one context."""
    of_item = [{name: value for name, value in row.items() if name.startswith("item_")} for row in rows]
    context = {name: value for name, value in rows[0].items() if name not in of_item[0]}
    names = [row["item_id"] if len(row) == 1 else row for row in of_item]
    return {"context": context, "candidates": names, "k": 10}


def exported(log: Path, folder: Path, name: str) -> Path:
    """Return the model folder of one of the models of the log."""
    recipe = {
        "name": name,
        "source": SOURCES[name],
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
    """Return by verb the medians of milliseconds, and of the ratio with histories to each other model."""
    found: dict[str, Any] = {}
    for verb in dict.fromkeys(one["verb"] for one in rounds):
        of = {
            name: [one["p50_ms"] for one in rounds if (one["verb"], one["model"]) == (verb, name)] for name in SOURCES
        }
        found[verb] = {f"{name}_ms": statistics.median(times) for name, times in of.items()}
        for name in ("without", "given"):
            each = [slow / fast for slow, fast in zip(of["histories"], of[name], strict=True)]
            found[verb][f"to_{name}"] = round(statistics.median(each), 3)
            found[verb][f"to_{name}_of_rounds"] = [round(ratio, 3) for ratio in each]
    return found


if __name__ == "__main__":
    main()
