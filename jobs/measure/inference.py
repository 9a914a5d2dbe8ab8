"""Latency and throughput of the model's forward pass on random rows, by batch size."""

import time
from collections.abc import Sequence
from typing import Any

from rayrec.ingest.dataset import Dataset
from rayrec.recipes import Recipe


def measure_inference(
    recipe: Recipe, dataset: Dataset, *, batch_sizes: Sequence[int], warmup_steps: int, steps: int
) -> list[dict[str, Any]]:
    """Mean and percentiles of the latency in milliseconds of one forward pass, host to host, in this process."""
    import numpy as np
    import torch

    from rayrec.common.allocator import keep_freed_memory
    from rayrec.models.registry import build_model
    from rayrec.training.loop.precision import resolve_precision
    from rayrec.training.run.preflight import resolve_device

    device = torch.device(resolve_device(recipe.train.device, gpus=torch.cuda.device_count()))
    precision = resolve_precision(recipe.train.precision, "cuda" if device.type == "cuda" else "cpu")
    precision.apply_to_process()
    keep_freed_memory()  # as the processes that predict do
    model = build_model(recipe.model, dataset.schema, device=device).eval()
    generator = torch.Generator().manual_seed(0)
    table = []
    for size in batch_sizes:
        batches = [_random_batch(model.schema, size, generator) for _ in range(4)]
        latencies = []
        with torch.inference_mode(), precision.autocast():
            for step in range(warmup_steps + steps):
                batch = batches[step % len(batches)]
                started = time.perf_counter()
                model(batch.to(device)).cpu()
                if step >= warmup_steps:
                    latencies.append(1000 * (time.perf_counter() - started))
        row: dict[str, Any] = {"batch_size": size, "device": str(device), "precision": precision.name}
        row["samples_per_second"] = size * len(latencies) / (sum(latencies) / 1000)
        row["mean_ms"] = float(np.mean(latencies))
        row |= {f"p{q}_ms": float(np.percentile(latencies, q)) for q in (50, 90, 95, 99)}
        table.append(row)
    return table


def _random_batch(schema: Any, rows: int, generator: Any) -> Any:
    """Uniform ids: the caches help least."""
    import torch
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    from rayrec.features.schema import MultiHotFeature
    from rayrec.models.common.batch import Batch

    ids, lengths = [], []
    for feature in schema.categorical:
        hotness = feature.hotness if isinstance(feature, MultiHotFeature) else 1
        ids.append(torch.randint(feature.cardinality, (rows * hotness,), generator=generator, dtype=torch.int32))
        lengths.append(torch.full((rows,), hotness, dtype=torch.int32))
    return Batch(
        dense=torch.randn(rows, len(schema.numeric), generator=generator),
        sparse=KeyedJaggedTensor(
            keys=[f.name for f in schema.categorical], values=torch.cat(ids), lengths=torch.cat(lengths)
        ),
        label=torch.zeros(rows),
        weight=torch.ones(rows),
    )
