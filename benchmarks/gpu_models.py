"""The dense networks of the published models on one device: speed, in each precision."""

import time
from typing import Any

import torch
from torch.nn import functional as F

from benchmarks.gpu_kernels import DTYPES, matmul_precision
from rayrec.features.schema import CategoricalFeature, NumericFeature, Schema
from rayrec.models.dcnv2.config import DCNv2Config
from rayrec.models.dlrm.config import DLRMConfig
from rayrec.models.registry import build_model

Row = dict[str, Any]
NUMERIC, CATEGORICAL = 13, 26


def criteo_schema(cardinality: int) -> Schema:
    """Return Criteo's columns, every table with the same number of rows."""
    return Schema(
        label="label",
        features=(
            *(NumericFeature(name=f"I{i + 1}") for i in range(NUMERIC)),
            *(CategoricalFeature(name=f"C{i + 1}", cardinality=cardinality) for i in range(CATEGORICAL)),
        ),
    )


def measure_dense_networks(device: str = "cuda", rows: int = 65_536, steps: int = 20) -> list[Row]:
    """Forward and backward of the published dense networks on random embeddings, eager and compiled."""
    results = []
    dense = torch.randn(rows, NUMERIC, device=device)
    for config in (DLRMConfig(), DCNv2Config()):
        network = build_model(config, criteo_schema(2), device).dense_network
        pooled = torch.randn(rows, CATEGORICAL * config.embedding_dim, device=device).mul_(0.05).requires_grad_()
        label = torch.randint(0, 2, (rows,), device=device).float()
        exact = network(dense, pooled).detach()
        for precision, dtype in DTYPES.items():
            row: Row = {"model": config.kind, "rows": rows, "precision": precision}
            for mode in ("eager", "compiled"):
                run = torch.compile(network) if mode == "compiled" else network

                def step(run: Any = run, dtype: torch.dtype = dtype, pooled: Any = pooled, label: Any = label) -> Any:
                    with torch.autocast(device, dtype, enabled=dtype != torch.float32):
                        logits = run(dense, pooled)
                    pooled.grad = None
                    F.binary_cross_entropy_with_logits(logits, label).backward()
                    return logits

                with matmul_precision(precision):
                    for _ in range(3):
                        logits = step()
                    _wait(device)
                    started = time.perf_counter()
                    for _ in range(steps):
                        step()
                    _wait(device)
                row[f"{mode} M samples/s"] = round(rows * steps / (time.perf_counter() - started) / 1e6, 3)
                row[f"{mode} error"] = f"{(logits.detach() - exact).abs().max().item():.1e}"
                row["ok"] = row.get("ok", True) and bool((logits.detach() - exact).abs().max() < 0.05)
            results.append(row)
    return results


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
