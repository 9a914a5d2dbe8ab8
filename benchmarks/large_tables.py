"""Resident memory of `rayrec serve` with tables that are larger than it may hold, under a skewed stream of ids.

    python -m benchmarks.large_tables --gib 20 --folder /data/large --output benchmarks/results/large_tables.json

Writes a model folder whose four float32 tables have so many GiB together (kept at --folder, and used again), serves it
with one replica, and sends requests of 256 rows whose ids follow Zipf's law (exponent 1.1) over all rows of a table, as
rayrec numbers them: by descending frequency. Every answer is compared with the scores of the same rows computed here.
"""

import argparse
import json
import os
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from benchmarks.serving_overload import replicas
from jobs.serve import ServeRequest, serving
from rayrec.common.files import write_json
from rayrec.common.ports import free_port
from rayrec.common.progress import SilentProgress
from rayrec.config.transforms import Fill
from rayrec.features.schema import CategoricalFeature, NumericFeature, Schema
from rayrec.inference.folder.examples import write_examples
from rayrec.inference.folder.model_folder import new_model_folder
from rayrec.inference.predictor import load_model
from rayrec.models.common.tables import EmbeddingTable
from rayrec.models.dlrm.config import DLRMConfig
from rayrec.models.registry import build_model
from rayrec.recipes import Recipe

_DIM, _TABLES, _ROWS, _EXPONENT = 64, 4, 256, 1.1
_CLIENTS = 2
_CONFIG = DLRMConfig(embedding_dim=_DIM, bottom_mlp=(64, _DIM), top_mlp=(64,))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=1.0, help="of all tables")
    parser.add_argument("--folder", type=Path, required=True, help="where the model folder is or will be")
    parser.add_argument("--table-memory-gib", type=float, default=1.0, help="serve.table_memory_gib")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    rows = int(arguments.gib * 2**30 / (4 * _DIM * _TABLES))
    if not arguments.folder.exists():
        _make(arguments.folder, rows, arguments.table_memory_gib)
    with serving(ServeRequest(model=(arguments.folder,), port=free_port()), SilentProgress()) as url:
        (replica,) = replicas()
        at_start = replica.memory_info().rss
        stream = _Stream(f"{url}/v2/models/{arguments.folder.name}/infer", arguments.folder, rows)
        clients = [threading.Thread(target=stream.run, args=(seed, arguments.seconds)) for seed in range(_CLIENTS)]
        for client in clients:
            client.start()
        most = at_start
        while any(client.is_alive() for client in clients):
            most = max(most, replica.memory_info().rss)
            time.sleep(0.2)
    result = {
        "machine": {"cores": os.cpu_count(), "load_average_at_the_end": os.getloadavg()[0]},
        "tables_gib": round(sum(p.stat().st_size for p in arguments.folder.glob("weights/tables/*")) / 2**30, 3),
        "table_memory_gib": arguments.table_memory_gib,
        "seconds": arguments.seconds,
        "rows": stream.requests * _ROWS,
        "ids": stream.requests * _ROWS * _TABLES,
        "rows_per_second": round(stream.requests * _ROWS / arguments.seconds),
        "wrong_answers": stream.wrong,
        "p50_ms": round(1e3 * float(np.percentile(stream.times, 50)), 2),
        "p99_ms": round(1e3 * float(np.percentile(stream.times, 99)), 2),
        "resident_gib": {"at_start": round(at_start / 2**30, 3), "most": round(most / 2**30, 3)},
    }
    write_json(arguments.output, result)
    print(arguments.output.read_text())


def _make(folder: Path, rows: int, memory_gib: float) -> None:
    tables = [CategoricalFeature(name=f"C{i}", cardinality=rows, embedding_dim=_DIM) for i in range(_TABLES)]
    schema = Schema(label="label", features=(NumericFeature(name="I", transforms=(Fill(),)), *tables))
    folder.parent.mkdir(parents=True, exist_ok=True)
    schema.save(folder.parent)
    # One row of the network's own tables is enough: only its dense part is taken.
    small = schema.model_copy(
        update={"features": (schema.features[0], *(t.model_copy(update={"cardinality": 2}) for t in tables))}
    )
    network = build_model(_CONFIG, small, seed=0)
    meta = build_model(_CONFIG, schema, device="meta")
    recipe = Recipe.model_validate(
        {"name": "large", "model": _CONFIG.model_dump(), "serve": {"table_memory_gib": memory_gib}}
    )

    def fill(table: EmbeddingTable, weights: torch.Tensor) -> None:
        generator = torch.Generator().manual_seed(int(table.name[1:]))
        for block in weights.split(2**20):
            block.uniform_(-0.1, 0.1, generator=generator)

    with new_model_folder(
        folder,
        schema=meta.schema,
        tables=meta.tables,
        recipe=recipe,
        metrics={},
        card="# Tables of a benchmark\n",
        vocabularies_in=folder.parent,
        dense=network.dense_network.state_dict(),
        fill_table=fill,
    ) as written:
        write_examples(load_model(written))


class _Stream:
    """Clients that ask one request after the other, and check what they are told."""

    def __init__(self, address: str, folder: Path, rows: int) -> None:
        self.requests, self.wrong = 0, 0
        self.times: list[float] = []
        self._address, self._rows = address, rows
        self._predictor = load_model(folder)
        self._lock = threading.Lock()

    def run(self, seed: int, seconds: float) -> None:
        rng = np.random.default_rng(seed)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            ids = {f"C{i}": self._ids(rng) for i in range(_TABLES)}
            began = time.perf_counter()
            scores = self._ask(ids)
            took = time.perf_counter() - began
            columns = pa.RecordBatch.from_pydict(
                {"I": np.zeros(_ROWS, np.float32), **{name: pa.array(values) for name, values in ids.items()}}
            )
            expected = self._predictor.predict_encoded(columns)
            with self._lock:
                self.requests += 1
                self.times.append(took)
                self.wrong += not np.allclose(scores, expected, rtol=0, atol=1e-5)

    def _ids(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """Zipf's law cut at the number of rows: the id of rank r has a probability of about 1 / r^exponent."""
        ids = rng.zipf(_EXPONENT, 4 * _ROWS)
        while len(ids := ids[ids < self._rows]) < _ROWS:
            ids = np.concatenate([ids, rng.zipf(_EXPONENT, 4 * _ROWS)])
        return ids[:_ROWS]

    def _ask(self, ids: dict[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        inputs: list[dict[str, Any]] = [
            {"name": name, "datatype": "INT64", "shape": [_ROWS], "data": values.tolist()}
            for name, values in ids.items()
        ]
        body = json.dumps({"inputs": inputs}).encode()
        with urllib.request.urlopen(urllib.request.Request(self._address, body), timeout=60) as answer:
            return np.array(json.load(answer)["outputs"][0]["data"], np.float32)


if __name__ == "__main__":
    main()
