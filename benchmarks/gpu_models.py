"""The models in each precision on one device, without Ray: speed of the dense networks, and a short training."""

import math
import time
from typing import Any

import torch
from torch.nn import functional as F
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from benchmarks.gpu_kernels import DTYPES, matmul_precision
from rayrec.config import ModelConfig
from rayrec.features.schema import CategoricalFeature, NumericFeature, Schema
from rayrec.models.common.batch import Batch
from rayrec.models.dcnv2.config import DCNv2Config
from rayrec.models.dlrm.config import DLRMConfig
from rayrec.models.registry import build_model

Row = dict[str, Any]
NUMERIC, CATEGORICAL = 13, 26


def criteo_schema(cardinality: int) -> Schema:
    """Criteo's columns, every table with the same number of rows."""
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


def train_briefly(device: str = "cuda", steps: int = 300, rows: int = 4_096) -> list[Row]:
    """Log loss of each precision beside float32's, both models, on labels from a known additive click model."""
    configs: tuple[ModelConfig, ...] = (
        DLRMConfig(embedding_dim=16, bottom_mlp=(64, 16), top_mlp=(64, 32)),
        DCNv2Config(embedding_dim=16, bottom_mlp=(64, 16), cross_layers=2, cross_rank=16, top_mlp=(64, 32)),
    )
    results = []
    for config in configs:
        losses = {precision: _train(config, precision, device, steps, rows) for precision in DTYPES}
        for precision, (first, last, best) in losses.items():
            near = abs(last - losses["fp32"][1]) < 0.02
            results.append(
                {
                    "model": config.kind,
                    "precision": precision,
                    "first loss": round(first, 4),
                    "last loss": round(last, 4),
                    "best reachable": round(best, 4),
                    "ok": near and last < first - 0.5 * (first - best),
                }
            )
    return results


def _train(
    config: ModelConfig, precision: str, device: str, steps: int, rows: int, cardinality: int = 100
) -> tuple[float, float, float]:
    """Mean loss of the first and the last 20 steps, and the loss of the true click probabilities in the last 20."""
    generator = torch.Generator().manual_seed(0)
    effects = torch.randn(CATEGORICAL, cardinality, generator=generator) * 0.5
    model = build_model(config, criteo_schema(cardinality), device, seed=0)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    dtype = DTYPES[precision]
    scaler = torch.amp.GradScaler(device, enabled=dtype == torch.float16)
    losses, best = [], []
    for _ in range(steps):
        ids = torch.randint(0, cardinality, (CATEGORICAL, rows), generator=generator)
        true_logits = effects.gather(1, ids).sum(0)
        label = torch.bernoulli(true_logits.sigmoid(), generator=generator)
        sparse = KeyedJaggedTensor(
            keys=[f"C{i + 1}" for i in range(CATEGORICAL)],
            values=ids.flatten(),
            lengths=torch.ones(CATEGORICAL * rows, dtype=torch.int64),
        )
        dense = torch.randn(rows, NUMERIC, generator=generator)
        batch = Batch(dense, sparse, label, torch.ones(rows)).to(torch.device(device))
        with matmul_precision(precision), torch.autocast(device, dtype, enabled=dtype != torch.float32):
            logits = model(batch)
        loss = F.binary_cross_entropy_with_logits(logits, batch.label)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
        best.append(F.binary_cross_entropy_with_logits(true_logits, label))
    first, last, reachable = (torch.stack(values).mean().item() for values in (losses[:20], losses[-20:], best[-20:]))
    assert math.isfinite(last)
    return first, last, reachable


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
