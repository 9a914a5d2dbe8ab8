"""Resident memory of `rayrec serve` with tables and vocabularies that are larger than it may hold, under a skewed load.

    python -m benchmarks.large_tables --gib 20 --folder /data/large --output benchmarks/results/large_tables.json

Writes a model folder whose four float32 tables have so many GiB together, each with a vocabulary of a value for every
row but the first (kept at --folder, and used again): 84 million values at 20 GiB. Serves it with one replica, and sends
requests of 256 rows of raw values, whose ranks follow Zipf's law (exponent 1.1) over a whole vocabulary; one value in
50 is unknown. Every answer is compared with the scores of the same rows computed here. 20 GiB take 28 GiB of disk, with
--folder on one that is fast to read at random; --gib 2 with --table-memory-gib 0.1 shows the same in a tenth of it.
"""

import argparse
import json
import shutil
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from benchmarks.serving_overload import replicas
from jobs.serve import ServeRequest, serving
from rayrec.common.machine import Machine, free_port
from rayrec.common.progress import SilentProgress
from rayrec.config.transforms import Fill, Vocabulary
from rayrec.features.schema import CategoricalFeature, NumericFeature, Schema
from rayrec.features.vocabulary import VOCABULARY_SCHEMA, write_index
from rayrec.inference.examples import write_examples
from rayrec.inference.folder.model_folder import ModelFolder, new_model_folder
from rayrec.inference.predictor import Predictor, load_model
from rayrec.models.common.embedding_tables import EmbeddingTable
from rayrec.models.dlrm.config import DLRMConfig
from rayrec.models.registry import build_model
from rayrec.random.arrays import hash_integers
from rayrec.recipes import Recipe
from rayrec.store.files import write_json

_DIM, _TABLES, _ROWS, _EXPONENT, _UNKNOWN = 64, 4, 256, 1.1, 0.02
_VALUES_PER_FILE = 4_194_304
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
    machine = Machine()
    rows = int(arguments.gib * 2**30 / (4 * _DIM * _TABLES))
    made = _make(arguments.folder, rows, arguments.table_memory_gib) if not arguments.folder.exists() else {}
    began = time.perf_counter()
    load_model(arguments.folder)
    opened = time.perf_counter() - began
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
        "machine": machine.described(),
        "tables_gib": _gib(arguments.folder, "weights/tables/*"),
        "values": _TABLES * (rows - 1),
        "vocabularies_gib": _gib(arguments.folder, "vocabulary/*/index.arrow"),
        **made,
        "seconds_to_open": round(opened, 2),
        "table_memory_gib": arguments.table_memory_gib,
        "seconds": arguments.seconds,
        "rows": stream.requests * _ROWS,
        "values_looked_up": stream.requests * _ROWS * _TABLES,
        "rows_per_second": round(stream.requests * _ROWS / arguments.seconds),
        "wrong_answers": stream.wrong,
        "p50_ms": round(1e3 * float(np.percentile(stream.times, 50)), 2),
        "p99_ms": round(1e3 * float(np.percentile(stream.times, 99)), 2),
        "resident_gib": {"at_start": round(at_start / 2**30, 3), "most": round(most / 2**30, 3)},
    }
    write_json(arguments.output, result)
    print(arguments.output.read_text())


def _gib(folder: Path, pattern: str) -> float:
    return round(sum(path.stat().st_size for path in folder.glob(pattern)) / 2**30, 3)


def _values(table: int, ids: NDArray[np.int64]) -> pa.Array:
    """Return (n,) strings, the raw values of ids of a table: 16 hexadecimal digits, different for every id."""
    digits = hash_integers(ids + (table << 40)).astype(">u8").tobytes().hex().encode()
    offsets = np.arange(0, 16 * len(ids) + 1, 16, dtype=np.int32)
    return pa.StringArray.from_buffers(len(ids), pa.py_buffer(offsets), pa.py_buffer(digits))


def _write_vocabulary(folder: Path, table: int, size: int) -> Vocabulary:
    file = f"vocabulary/C{table}"
    (folder / file).mkdir(parents=True)
    for part, first in enumerate(range(1, size + 1, _VALUES_PER_FILE)):
        ids = np.arange(first, min(first + _VALUES_PER_FILE, size + 1))
        columns = [_values(table, ids), pa.array(ids), pa.array(size + 1 - ids)]
        pq.write_table(pa.table(columns, schema=VOCABULARY_SCHEMA), folder / file / f"part-{part:05d}.parquet")
    write_index(folder / file)
    return Vocabulary(file=file, size=size)


def _make(folder: Path, rows: int, memory_gib: float) -> dict[str, float]:
    """Write the model folder; return the seconds that the vocabularies took."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    source = folder.with_name(f"{folder.name}-vocabularies")
    began = time.perf_counter()
    vocabularies = [_write_vocabulary(source, number, rows - 1) for number in range(_TABLES)]
    seconds = time.perf_counter() - began
    tables = [
        CategoricalFeature(name=f"C{number}", cardinality=rows, embedding_dim=_DIM, transforms=(vocabulary,))
        for number, vocabulary in enumerate(vocabularies)
    ]
    schema = Schema(label="label", features=(NumericFeature(name="I", transforms=(Fill(),)), *tables))
    schema.save(source)
    # One row of the network's own tables is enough: only its dense part is taken.
    small = schema.model_copy(
        update={"features": (schema.features[0], *(t.model_copy(update={"cardinality": 2}) for t in tables))}
    )
    network = build_model(_CONFIG, small, seed=0)
    meta = build_model(_CONFIG, schema, device="meta")
    recipe = Recipe.model_validate(
        {
            "name": "large",
            "source": {"kind": "criteo"},
            "model": _CONFIG.model_dump(),
            "serve": {"table_memory_gib": memory_gib},
        }
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
        vocabularies_in=source,
        dense=network.dense_network.state_dict(),
        fill_table=fill,
    ) as written:
        write_examples(Predictor(ModelFolder.open_unfinished(written)))
    shutil.rmtree(source)
    return {"seconds_to_write_vocabularies": round(seconds, 1)}


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
            values = {f"C{table}": _values(table, self._ids(rng)) for table in range(_TABLES)}
            began = time.perf_counter()
            scores = self._ask(values)
            took = time.perf_counter() - began
            expected = self._predictor.predict(pa.RecordBatch.from_pydict({"I": np.zeros(_ROWS), **values}))
            with self._lock:
                self.requests += 1
                self.times.append(took)
                self.wrong += not np.allclose(scores, expected, rtol=0, atol=1e-5)

    def _ids(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """Zipf's law cut at the number of rows: the id of rank r has a probability of about 1 / r^exponent."""
        ids = rng.zipf(_EXPONENT, 4 * _ROWS)
        while len(ids := ids[ids < self._rows]) < _ROWS:
            ids = np.concatenate([ids, rng.zipf(_EXPONENT, 4 * _ROWS)])
        return np.where(rng.random(_ROWS) < _UNKNOWN, self._rows + ids[:_ROWS], ids[:_ROWS])

    def _ask(self, columns: dict[str, pa.Array]) -> NDArray[np.float32]:
        inputs: list[dict[str, Any]] = [{"name": "I", "datatype": "FP32", "shape": [_ROWS], "data": [0.0] * _ROWS}]
        for name, values in columns.items():
            inputs.append({"name": name, "datatype": "BYTES", "shape": [_ROWS], "data": values.to_pylist()})
        body = json.dumps({"inputs": inputs}).encode()
        with urllib.request.urlopen(urllib.request.Request(self._address, body), timeout=60) as answer:
            return np.array(json.load(answer)["outputs"][0]["data"], np.float32)


if __name__ == "__main__":
    main()
