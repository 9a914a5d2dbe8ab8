"""What a driver spends on plans, manifests and graphs of tasks, and what tasks send each other, by the number of rows.

    python -m benchmarks.driver_at_scale --output benchmarks/results/driver_at_scale.json

Files, chunks, segments, parts and row groups are those that preprocessing, training and prediction would make of so
many rows of Criteo's logs (24 days) for so many nodes. Each step runs in a process of its own, whose memory is counted
above what it had before the step: `mib` is the peak with mapped files, `anonymous_mib` what a cgroup cannot take back.

Of a shuffle one task is run that sends rows, and one that gets them; it gets as many messages, of as many rows, as from
all tasks. Their rows are random: encoded rows, and counts of values that are drawn by Zipf's law from tables of the
sizes of Criteo Terabyte.
"""

import argparse
import multiprocessing
import pickle
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks.criteo_terabyte import CARDINALITIES, TRAIN_ROWS
from rayrec.common.machine import Machine
from rayrec.config.preprocess import ShardLayoutConfig
from rayrec.features.hashes import hash_texts
from rayrec.features.text_forms import TextFacts
from rayrec.inference.batch.scoring import rows_of_parts, scoring_tasks
from rayrec.ingest.dataset import DatasetManifest, PartInfo, SplitInfo
from rayrec.ingest.order import BatchOrder, row_groups_of
from rayrec.preprocessing.engine import RowFile, messages_by_partition, partition_by_hash
from rayrec.preprocessing.extract import ExtractedChunk, pieces_of
from rayrec.preprocessing.parts import rows_of_a_part
from rayrec.preprocessing.segments import Piece, Segment, make_segments, segments_by_part
from rayrec.preprocessing.spark import joined_messages, sent_message
from rayrec.preprocessing.sql import SqlShare, query, set_share
from rayrec.raw.input_files import Chunk, InputFile, plan_chunks
from rayrec.store.files import write_json

_DAYS, _BYTES_A_ROW, _CHUNK_BYTES = 24, 245, 2**26
_GPUS_A_NODE, _BATCH_A_GPU, _BATCHES = 8, 65_536, 100
_MIB = 2**20
_QUERY_MEMORY = 3 * 2**27
"""That of a task of Spark."""
_ENCODED = pa.schema([
    ("place", pa.int64()), ("label", pa.float32()), *((f"I{n}", pa.float32()) for n in range(1, 14)),
    *((f"C{n}", pa.int32()) for n in range(1, 27)),
])  # fmt: skip
_COUNTED = pa.schema([
    ("hash", pa.int64()), ("feature", pa.int32()), ("value", pa.string()), ("count", pa.int64()), ("last", pa.int64())
])  # fmt: skip
_FOUND = pa.schema([("value", pa.string()), ("count", pa.int64())])
_random = np.random.default_rng(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[42_000_000, 420_000_000, 4_200_000_000])
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    machine = Machine()
    runs = []
    for rows in arguments.rows:
        steps = {}
        for name, step in _STEPS.items():
            steps[name] = _in_own_process(step, rows, arguments.nodes)
            print(f"{rows:,} {name}: {steps[name]}", flush=True)
        runs.append({"rows": rows, "steps": steps})
    report = {"nodes": arguments.nodes, "gpus_a_node": _GPUS_A_NODE, "runs": runs}
    write_json(arguments.output, {"machine": machine.described(), **report})


def _in_own_process(step: Callable[[int, int], dict[str, Any]], *arguments: int) -> dict[str, Any]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_measured, (step, *arguments))


def _measured(step: Callable[[int, int], dict[str, Any]], *arguments: int) -> dict[str, Any]:
    before = _peak()
    began = time.perf_counter()
    result = step(*arguments)
    seconds = round(time.perf_counter() - began, 2)
    return {"seconds": seconds, "mib": round((_peak() - before) / _MIB, 1), **result}


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _chunks(rows: int) -> list[Chunk]:
    size = rows * _BYTES_A_ROW // _DAYS
    files = [InputFile(f"/raw/day_{day}", Path(f"/raw/day_{day}"), size, 0.0, None) for day in range(_DAYS)]
    return plan_chunks(files, _CHUNK_BYTES)


def _segments(rows: int) -> list[Segment]:
    chunks = _chunks(rows)
    per_chunk = rows // len(chunks)
    return make_segments(
        Piece(Path(f"/out/.scratch/parse/rows/{n:06d}-00000.parquet"), 0, per_chunk) for n in range(len(chunks))
    )


def _parts(rows: int) -> tuple[PartInfo, ...]:
    layout = ShardLayoutConfig()
    size, group = rows_of_a_part(rows, layout), layout.rows_per_row_group
    groups = (group,) * (size // group)
    return tuple(
        PartInfo(path=f"train/part-{n:05d}.parquet", rows=size, row_groups=groups, bytes=100 * size, sha256=64 * "0")
        for n in range(rows // size)
    )


def _sent(items: list[Any]) -> dict[str, Any]:
    """Return the bytes that the tasks of `items` are sent."""
    sizes = [len(pickle.dumps(item)) for item in items]
    return {"tasks": len(sizes), "sent_mib": round(sum(sizes) / _MIB, 2), "most_bytes_of_a_task": max(sizes)}


def _parse(rows: int, nodes: int) -> dict[str, Any]:
    """Return the tasks that parse chunks, and what they report."""
    chunks = _chunks(rows)
    sent = _sent(list(enumerate(chunks)))
    per_chunk = rows // len(chunks)
    reports = [
        pickle.dumps(
            ExtractedChunk(
                chunk.file.name,
                chunk.file_index,
                per_chunk,
                {"": (Piece(Path(f"/out/.scratch/parse/rows/{n:06d}-00000.parquet"), 0, per_chunk),)},
                {},
                Path(f"/out/.scratch/parse/rejected/{n:06d}.parquet"),
                {f"C{number}": TextFacts() for number in range(1, 27)},
            )
        )
        for n, chunk in enumerate(chunks)
    ]
    make_segments(pieces_of(map(pickle.loads, reports)))
    return sent


def _of_segments(rows: int, nodes: int) -> dict[str, Any]:
    """Return the tasks of a stage that reads segments, such as the one that counts values."""
    return _sent(_segments(rows))


def _of_parts(rows: int, nodes: int) -> dict[str, Any]:
    """Return the tasks that write parts in the order of the input."""
    size = rows_of_a_part(rows, ShardLayoutConfig())
    return _sent(list(enumerate(segments_by_part(_segments(rows), size))))


def _manifest(rows: int, nodes: int) -> dict[str, Any]:
    """Return the manifest, written and read again."""
    split = SplitInfo(rows=rows, positives=0.0, parts=_parts(rows))
    manifest = DatasetManifest(splits={"train": split}, rejected={}, sources=(), config={})
    with tempfile.TemporaryDirectory() as folder:
        manifest.save(Path(folder))
        (path,) = Path(folder).iterdir()
        read = DatasetManifest.load(Path(folder))
        return {"file_mib": round(path.stat().st_size / _MIB, 2), "parts": len(read.splits["train"].parts)}


def _batches(rows: int, nodes: int) -> dict[str, Any]:
    """Return the order of the batches of an epoch, as one of the ranks computes it, and its reads of the first
    batches.
    """
    ranks = nodes * _GPUS_A_NODE
    order = BatchOrder(
        row_groups=row_groups_of(_parts(rows)),
        global_batch_size=ranks * _BATCH_A_GPU,
        world_size=ranks,
        rank=ranks // 2,
    )
    batches = min(_BATCHES, order.num_batches)
    slices = sum(len(list(order.slices(batch))) for batch in range(batches))
    return {
        "row_groups": len(order.row_groups),
        "needed_by_this_rank": len(order.needs),
        "decoded_by_this_rank": sum(need.decoder == order.rank for need in order.needs),
        "slices_a_batch": round(slices / max(1, batches), 1),
    }


def _predict(rows: int, nodes: int) -> dict[str, Any]:
    """Return the tasks that score row groups."""
    tasks = scoring_tasks(Path("/data"), _parts(rows), rows_of_parts(rows))
    sizes = [len(pickle.dumps(task)) for task in tasks]
    return {"tasks": len(tasks), "sent_mib": round(sum(sizes) / _MIB, 2), "most_bytes_of_a_task": max(sizes)}


def _send_rows(rows: int, nodes: int) -> dict[str, Any]:
    """Return what a task that encodes a segment sends to those that write parts."""
    parts = _tasks_of_parts(rows)
    return _sent_by_a_task(_encoded(rows), _ENCODED, parts, _random.integers(0, parts, _rows_of_a_segment(rows)))


def _gather_rows(rows: int, nodes: int) -> dict[str, Any]:
    """Return what a task that writes a part gets, and spends on its order."""
    order = "select * from rows order by place"
    return _got_by_a_task(_encoded(rows), _ENCODED, rows // _tasks_of_parts(rows), len(_segments(rows)), order)


def _send_counts(rows: int, nodes: int) -> dict[str, Any]:
    """Return what a task that counts the values of a segment sends to those that add up a range of hashes."""
    counts = _counts(rows)
    partitions = _files_of_counts(rows)
    return _sent_by_a_task(counts, _COUNTED, partitions, partition_by_hash(counts["hash"].to_numpy(), partitions))


def _gather_counts(rows: int, nodes: int) -> dict[str, Any]:
    """Return what a task that adds up a range of hashes gets, and spends on it."""
    counts, segments = _counts(rows), len(_segments(rows))
    sums = "select feature, value, sum(count) from rows group by hash, feature, value order by hash, feature, value"
    return _got_by_a_task(counts, _COUNTED, segments * len(counts) // _files_of_counts(rows), segments, sums)


def _gather_values(rows: int, nodes: int) -> dict[str, Any]:
    """Return what a task gets, and spends, that gives ids to a tenth of the values of the feature with most."""
    values = int(max(CARDINALITIES["none"]) * min(1.0, rows / TRAIN_ROWS)) // 10
    texts = pa.array([f"{value:08x}" for value in _random.integers(0, 2**32, 65_536).tolist()])
    found = pa.record_batch([texts, pa.array(_random.integers(1, 100, 65_536))], _FOUND)
    ranked = "select value, count from rows order by count desc, value"
    return _got_by_a_task(found, _FOUND, values, -(-values // 65_535), ranked)


def _sent_by_a_task(
    rows: pa.RecordBatch, schema: pa.Schema, partitions: int, partition: NDArray[np.integer]
) -> dict[str, Any]:
    began = time.process_time()
    cut = range(0, len(rows), 65_536)
    produced = ((partition[start : start + 65_536], rows.slice(start, 65_536)) for start in cut)
    sizes = [message.size for _, message in messages_by_partition(produced, schema, partitions)]
    return {
        "partitions": partitions,
        "rows": len(rows),
        "mib_sent": round(sum(sizes) / _MIB, 1),
        "messages": len(sizes),
        "kib_of_a_message": round(sum(sizes) / len(sizes) / 1024, 1),
        "bytes_beside_the_rows": round(sum(sizes) / rows.nbytes - 1, 3),
        "cpu_seconds": round(time.process_time() - began, 2),
    }


def _got_by_a_task(rows: pa.RecordBatch, schema: pa.Schema, wanted: int, messages: int, sql: str) -> dict[str, Any]:
    """Return what a task spends on `wanted` rows, which come in messages of the same size, and on a query over them."""
    size = max(1, wanted // messages)
    before, anonymous = _anonymous(), 0

    def messages_of_all() -> Iterator[bytes]:
        for start in range(0, wanted, size):
            yield sent_message(rows.slice(start % max(1, len(rows) - size), size).serialize(), 0)

    with tempfile.TemporaryDirectory() as folder, RowFile(schema, Path(folder)) as file:
        set_share(SqlShare(1, _QUERY_MEMORY, Path(folder)))
        began = time.process_time()
        for _, message in joined_messages(messages_of_all(), [schema]):
            file.append(0, message)
        table = file.table(0)
        found = 0
        for batch in query(sql, rows=table):
            found += len(batch)
            anonymous = max(anonymous, _anonymous() - before)
        return {
            "rows": table.num_rows,
            "rows_of_a_message": size,
            "mib_on_disk": round(table.nbytes / _MIB, 1),
            "batches": table.column(0).num_chunks,
            "rows_of_the_answer": found,
            "anonymous_mib": round(anonymous / _MIB, 1),
            "cpu_seconds": round(time.process_time() - began, 2),
        }


def _anonymous() -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def _encoded(rows: int) -> pa.RecordBatch:
    """Return a segment of encoded rows, with the places that they get."""
    size = _rows_of_a_segment(rows)
    columns = [_random.integers(0, rows, size), *(_random.random(size) for _ in range(14))]
    columns += [_random.integers(0, 10**6, size) for _ in range(26)]
    return pa.record_batch([pa.array(c).cast(f.type) for c, f in zip(columns, _ENCODED, strict=True)], _ENCODED)


def _counts(rows: int) -> pa.RecordBatch:
    """Return the counts of the values of a segment, as texts of eight characters."""
    size, batches = _rows_of_a_segment(rows), []
    for feature, cardinality in enumerate(CARDINALITIES["none"]):
        # The rank of a value, drawn by a density of 1 / rank up to the size of the table.
        ranks = np.exp(_random.random(size) * np.log(cardinality)).astype(np.int64)
        values, counts = np.unique(ranks, return_counts=True)
        texts = pa.array([f"{value:08x}" for value in values.tolist()])
        columns = [
            pa.array(hash_texts(texts)),
            pa.array(np.full(len(values), feature, np.int32)),
            texts,
            pa.array(counts),
            pa.array(np.zeros(len(values), np.int64)),
        ]
        batches.append(pa.record_batch(columns, _COUNTED))
    return pa.concat_batches(batches)


def _rows_of_a_segment(rows: int) -> int:
    return rows // len(_segments(rows))


def _tasks_of_parts(rows: int) -> int:
    return -(-rows // rows_of_a_part(rows, ShardLayoutConfig()))


def _files_of_counts(rows: int) -> int:
    return min(4_096, -(-26 * rows // 2**22))


_STEPS: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "parse": _parse,
    "count values": _of_segments,
    "write parts": _of_parts,
    "send counts": _send_counts,
    "gather counts": _gather_counts,
    "gather values": _gather_values,
    "send rows": _send_rows,
    "gather rows": _gather_rows,
    "manifest": _manifest,
    "order of batches": _batches,
    "predict": _predict,
}

if __name__ == "__main__":
    main()
