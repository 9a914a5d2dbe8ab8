"""Samples per second of negative sampling on the CPU, and the memory of `exact` with 20M interactions.

    python -m benchmarks.negative_sampling --output benchmarks/results/negative_sampling.json

Each case runs in a process of its own, whose peak resident memory (torch and TorchRec included) is the figure. The
interactions are generated: users and items skewed, pairs repeated now and then. Every repeat makes batches of the
loader, from building the epoch on; the best counts, all are written down.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from rayrec.common.machine import Machine
from rayrec.config.train import NegativesConfig
from rayrec.features.schema import CategoricalFeature, InteractionColumns, Schema
from rayrec.ingest.interactions import Positives, SampledLoader, SampledSplit
from rayrec.ingest.order import BatchOrder, RowGroup
from rayrec.store.files import write_json

_SHAPES = {"ml-1m": (994_169, 6_040, 3_706), "20M x 140k x 27k": (20_000_000, 140_000, 27_000)}
"""Interactions, users, items."""
_CONFIGS = {
    "exact": NegativesConfig(),
    "exact, popularity^0.75": NegativesConfig(popularity_exponent=0.75),
    "unchecked": NegativesConfig(check="unchecked"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=10_000_000, help="samples of one repeat")
    parser.add_argument("--batch-size", type=int, default=65_536)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--case", nargs=2, metavar=("SHAPE", "CONFIG"), help="measure this one and print it as JSON")
    arguments = parser.parse_args()
    if arguments.case:
        shape, config = arguments.case
        print(json.dumps(_measure(shape, config, arguments.samples, arguments.batch_size, arguments.repeats)))
        return
    machine = Machine()
    cases = [
        {"interactions": shape, "negatives": config, **_in_own_process(shape, config)}
        for shape in _SHAPES
        for config in _CONFIGS
    ]
    result = {
        "global_batch_size": arguments.batch_size,
        "samples_per_repeat": arguments.samples,
        "machine": machine.described(),
        "threads": torch.get_num_threads(),
        "cases": cases,
    }
    write_json(arguments.output, result)
    print(arguments.output.read_text())


def _in_own_process(shape: str, config: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.negative_sampling", *sys.argv[1:], "--case", shape, config]
    measured: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return measured


def _measure(shape: str, config: str, samples: int, batch_size: int, repeats: int) -> dict[str, Any]:
    memory_before = _peak_memory()
    interactions, users, items = _SHAPES[shape]
    schema = Schema(
        label="label",
        features=(
            CategoricalFeature(name="user", cardinality=users + 1),
            CategoricalFeature(name="item", cardinality=items + 1),
        ),
        interactions=InteractionColumns(user="user", item="item"),
    )
    positives = _generate(interactions, users, items)
    started = time.perf_counter()
    split = SampledSplit.of(positives, positives, schema, _CONFIGS[config])
    build_seconds = time.perf_counter() - started
    runs = [_samples_per_second(split, schema, samples, batch_size, epoch) for epoch in range(repeats)]
    return {
        "samples_per_second": max(runs),
        "runs": runs,
        "build_seconds": build_seconds,
        "peak_rss_bytes": _peak_memory(),
        "peak_rss_bytes_of_the_imports_alone": memory_before,
    }


def _samples_per_second(split: SampledSplit, schema: Schema, samples: int, batch_size: int, epoch: int) -> float:
    started = time.perf_counter()
    order = BatchOrder(row_groups=[RowGroup.of_samples(len(split))], global_batch_size=batch_size, epoch=epoch)
    made = 0
    with SampledLoader(split, schema, order) as batches:
        for batch in batches:
            made += batch.size
            if made >= samples:
                break
    return made / (time.perf_counter() - started)


def _generate(interactions: int, users: int, items: int) -> Positives:
    random = torch.Generator().manual_seed(0)

    def skewed(count: int) -> torch.Tensor:
        ids = torch.rand(interactions, generator=random).square_().mul_(count).int().clamp_(max=count - 1)
        return ids.add_(1)

    return Positives(skewed(users), skewed(items))


def _peak_memory() -> int:
    """Return the bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
