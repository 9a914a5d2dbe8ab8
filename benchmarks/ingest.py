"""Rows per second from Parquet to batches: by tasks and by threads, from memory, by Ray Data's own reader; memory used.

    python -m benchmarks.ingest --rows 2000000 --output benchmarks/results/ingest.json

All variants read the same dataset of Criteo's shape (13 float32, 26 int32, label; lz4) in turns within one run, so
that they meet the same machine. Each is measured `--repeats` times after one warm-up; the best counts and all are
written down.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.process_tree import repeated
from cluster.ray_session import ray_session
from rayrec.common.machine import Machine
from rayrec.config.train import IngestConfig
from rayrec.ingest.batches import InMemorySplit
from rayrec.ingest.dataset import Dataset, DatasetManifest, SplitInfo
from rayrec.ingest.loader import open_batches
from rayrec.recipes import load_recipe
from rayrec.store.files import write_json
from tests.builders import make_rows, make_schema, write_part

_ROWS_PER_PART = 262_144
_ROWS_PER_ROW_GROUP = 32_768
_LARGER = 8
"""Rows of the larger dataset of the memory measurement, in multiples of the smaller."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--batch-size", type=int, default=65_536)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    machine = Machine()
    with tempfile.TemporaryDirectory() as folder, ray_session():
        dataset = _write_dataset(Path(folder) / "small", arguments.rows)
        result = {
            "rows": arguments.rows,
            "global_batch_size": arguments.batch_size,
            "rows_per_row_group": _ROWS_PER_ROW_GROUP,
            "throughput": _measure_throughput(dataset, arguments.batch_size, arguments.repeats),
            "memory": _measure_memory(Path(folder), arguments.rows, arguments.batch_size),
            "machine": machine.described(),
        }
    write_json(arguments.output, result)
    print(arguments.output.read_text())


def _measure_throughput(dataset: Dataset, batch_size: int, repeats: int) -> dict[str, Any]:
    started = time.perf_counter()
    store = InMemorySplit.read(dataset, "train")
    read_seconds = time.perf_counter() - started
    variants: dict[str, Callable[[int], Iterator[int]]] = {
        "pyarrow decode, one process": lambda epoch: _pyarrow(dataset),
        "batches from memory": lambda epoch: _rayrec(dataset, batch_size, epoch, store),
        "batches, by tasks of Ray Data": lambda epoch: _rayrec(dataset, batch_size, epoch, None, by_ray_data=True),
        "batches, by threads": lambda epoch: _rayrec(dataset, batch_size, epoch, None),
        "read_parquet, reader V1": lambda epoch: _read_parquet(dataset, batch_size, v2=False),
        "read_parquet, reader V2": lambda epoch: _read_parquet(dataset, batch_size, v2=True),
    }
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in variants}
    for repeat in range(repeats + 1):
        for name, variant in variants.items():
            run = _time(variant(repeat))
            if repeat:
                runs[name].append(run)
    best = {name: max(measured, key=lambda run: run["rows_per_second"]) for name, measured in runs.items()}
    return {"best": best, "runs": runs, "seconds_to_read_into_memory": read_seconds}


def _time(counts: Iterator[int]) -> dict[str, float]:
    started = time.perf_counter()
    rows = next(counts)
    first = time.perf_counter() - started
    rows += sum(counts)
    seconds = time.perf_counter() - started
    return {"rows_per_second": rows / seconds, "seconds_to_first_batch": first, "seconds": seconds}


def _pyarrow(dataset: Dataset) -> Iterator[int]:
    for part in dataset.split("train").parts:
        file = pq.ParquetFile(dataset.folder / part.path, memory_map=True)
        for group in range(file.num_row_groups):
            table = file.read_row_group(group)
            for column in table.columns:
                column.to_numpy()
            yield table.num_rows


def _rayrec(
    dataset: Dataset, batch_size: int, epoch: int, store: InMemorySplit | None, *, by_ray_data: bool = False
) -> Iterator[int]:
    with open_batches(
        dataset,
        "train",
        IngestConfig(),
        store=store,
        by_ray_data=by_ray_data,
        global_batch_size=batch_size,
        epoch=epoch,
        drop_last=True,
    ) as batches:
        for batch in batches:
            yield batch.size


def _read_parquet(dataset: Dataset, batch_size: int, *, v2: bool) -> Iterator[int]:
    import ray
    from ray.data import DataContext

    context = DataContext.get_current().copy()
    context.use_datasource_v2 = v2
    context.enable_progress_bars = False
    with DataContext.current(context):
        data = ray.data.read_parquet(str(dataset.folder / "train"))
    for table in data.iter_batches(batch_size=batch_size, batch_format="pyarrow", prefetch_batches=4, drop_last=True):
        for column in table.columns:
            column.to_numpy()
        yield table.num_rows


def _measure_memory(folder: Path, rows: int, batch_size: int) -> dict[str, Any]:
    """Return the peak memory of the consuming process while it streams; pages of the files that it maps do not
    count.
    """
    small, large = Dataset.open(folder / "small"), _write_dataset(folder / "large", _LARGER * rows)
    return {
        f"{dataset.split('train').rows} rows": {"peak_anonymous_bytes": _peak_memory(dataset, batch_size)}
        for dataset in (small, large)
    }


def _peak_memory(dataset: Dataset, batch_size: int) -> int:
    with _sampled_memory() as samples:
        for _ in _rayrec(dataset, batch_size, 0, None):
            pass
    return max(samples)


@contextmanager
def _sampled_memory() -> Iterator[list[int]]:
    samples = list[int]()
    with repeated(lambda: samples.append(_anonymous_bytes()), 0.05):
        yield samples


def _anonymous_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def _write_dataset(folder: Path, rows: int) -> Dataset:
    schema = make_schema(13, 26, cardinalities=(1_000_000, 10_000, 100, 10))
    parts, positives = [], 0.0
    for number, start in enumerate(range(0, rows, _ROWS_PER_PART)):
        table = make_rows(schema, min(_ROWS_PER_PART, rows - start), seed=number)
        positives += float(table[schema.label].to_numpy().sum())
        parts.append(write_part(folder, f"train/part-{number:05d}.parquet", table, _ROWS_PER_ROW_GROUP))
    schema.save(folder)
    split = SplitInfo(rows=rows, positives=positives, parts=tuple(parts))
    config = load_recipe("dlrm-criteo").model_dump(mode="json")
    DatasetManifest(splits={"train": split}, rejected={}, sources=(), config=config).save(folder)
    return Dataset.open(folder)


if __name__ == "__main__":
    main()
