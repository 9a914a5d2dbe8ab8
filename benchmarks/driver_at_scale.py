"""Seconds and memory that a driver spends on plans, manifests and graphs of tasks, by the number of rows.

    python -m benchmarks.driver_at_scale --output benchmarks/results/driver_at_scale.json

Nothing is read or written but the manifest: files, chunks, segments, parts and row groups are those that preprocessing,
training and prediction would make of so many rows of Criteo's logs (24 days) for so many nodes. Each step runs in a
process of its own, whose memory is counted above what it had before the step.
"""

import argparse
import multiprocessing
import pickle
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rayrec.common.machine import Machine
from rayrec.config.preprocess import ShardLayoutConfig
from rayrec.features.text_forms import TextFacts
from rayrec.inference.batch.scoring import rows_of_parts, scoring_tasks
from rayrec.ingest.dataset import DatasetManifest, PartInfo, SplitInfo
from rayrec.ingest.order import BatchOrder, row_groups_of
from rayrec.preprocessing.engines.spark import packed_items
from rayrec.preprocessing.extract import ExtractedChunk, pieces_of
from rayrec.preprocessing.segments import Piece, Segment, make_segments, segments_by_part
from rayrec.preprocessing.write.shards import rows_of_a_part
from rayrec.raw.input_files import Chunk, InputFile, plan_chunks
from rayrec.store.files import write_json

_DAYS, _BYTES_A_ROW, _CHUNK_BYTES = 24, 245, 2**26
_GPUS_A_NODE, _BATCH_A_GPU, _BATCHES = 8, 65_536, 100
_MIB = 2**20


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
    sizes = [batch.nbytes for batch in packed_items(items)]
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


_STEPS: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "parse": _parse,
    "count values": _of_segments,
    "write parts": _of_parts,
    "manifest": _manifest,
    "order of batches": _batches,
    "predict": _predict,
}

if __name__ == "__main__":
    main()
