"""Errors and speed of the dot interaction's Triton kernels; needs torch and Triton only."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cuda_ops.interaction import reference_backward, reference_forward

Row = dict[str, Any]
DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
TOLERANCE = {"fp32": 1e-5, "tf32": 5e-3, "fp16": 1e-3, "bf16": 8e-3}
SHAPES = {"criteo": (65_536, 26, 128), "narrow": (65_536, 10, 16), "many features": (8_192, 99, 64)}
"""Rows, embeddings, width; each with a dense vector."""


def measure_errors() -> list[Row]:
    """Return the largest error of each pass, relative to the standard deviation of its sums."""
    rows = []
    for shape in ((4_096, 26, 128), (1_000, 7, 130), (100, 99, 33)):
        for precision, dtype in DTYPES.items():
            with matmul_precision(precision):
                dense, embeddings = _inputs(shape, dtype, dtype)
                result = torch.ops.rayrec.dot_interaction(dense, embeddings, dtype)
                grad = torch.randn_like(result)
                gradients = torch.ops.rayrec.dot_interaction_backward(grad, dense, embeddings)
            exact = (dense.double(), embeddings.double())
            forward = _error(result, reference_forward(*exact, torch.float64), shape[2])
            backward = max(
                _error(ours, theirs, shape[1])
                for ours, theirs in zip(gradients, reference_backward(grad.double(), *exact), strict=True)
            )
            rows.append(
                {
                    "shape": "x".join(map(str, shape)),
                    "precision": precision,
                    "forward": f"{forward:.1e}",
                    "backward": f"{backward:.1e}",
                    "ok": max(forward, backward) <= TOLERANCE[precision],
                }
            )
    return rows


def measure_speed() -> list[Row]:
    """Return each pass by Triton, by torch and by compiled torch, as a share of what a plain copy reaches."""
    peak = copy_bandwidth()
    compiled_forward = torch.compile(reference_forward, dynamic=False)
    compiled_backward = torch.compile(reference_backward, dynamic=False)
    rows = []
    for name, shape in SHAPES.items():
        mixed = [("bf16 of fp32", "bf16", torch.float32)] if name == "criteo" else []
        for label, precision, embeddings_dtype in [*((p, p, DTYPES[p]) for p in DTYPES), *mixed]:
            dtype = DTYPES[precision]
            torch.compiler.reset()  # after eight compilations of a function torch would call it as it is
            dense, embeddings = _inputs(shape, dtype, embeddings_dtype)
            grad = torch.randn_like(torch.ops.rayrec.dot_interaction(dense, embeddings, dtype))
            vectors_bytes = _bytes(dense, embeddings)
            operator = torch.ops.rayrec
            passes: list[tuple[str, int, dict[str, Callable[[], Any]]]] = [
                (
                    "forward",
                    vectors_bytes + _bytes(grad),
                    {
                        "triton": partial(operator.dot_interaction, dense, embeddings, dtype),
                        "torch": partial(reference_forward, dense, embeddings, dtype),
                        "compiled": partial(compiled_forward, dense, embeddings, dtype),
                    },
                ),
                (
                    "backward",
                    2 * vectors_bytes + _bytes(grad),
                    {
                        "triton": partial(operator.dot_interaction_backward, grad, dense, embeddings),
                        "torch": partial(reference_backward, grad, dense, embeddings),
                        "compiled": partial(compiled_backward, grad, dense, embeddings),
                    },
                ),
            ]
            for direction, moved, implementations in passes:
                with matmul_precision(precision):
                    times = {key: _milliseconds(run) for key, run in implementations.items()}
                bandwidth = moved / times["triton"] * 1e3
                rows.append(
                    {
                        "case": name,
                        "shape": "x".join(map(str, shape)),
                        "precision": label,
                        "pass": direction,
                        **{f"{key} ms": round(time, 4) for key, time in times.items()},
                        "triton GB/s": round(bandwidth / 1e9),
                        "% of copy": round(100 * bandwidth / peak, 1),
                        "times torch": round(times["torch"] / times["triton"], 2),
                        "times compiled": round(times["compiled"] / times["triton"], 2),
                    }
                )
    return rows


def copy_bandwidth() -> float:
    """Return the bytes/s, read and written, of a device-to-device copy of 1 GiB: what a kernel bound by memory can
    reach.
    """
    source = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / _milliseconds(lambda: target.copy_(source)) * 1e3


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """TF32 for float32 products where `precision` is `tf32`, else IEEE; restored afterwards."""
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32" if precision == "tf32" else "ieee"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def _inputs(
    shape: tuple[int, int, int], dense_dtype: torch.dtype, embeddings_dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    rows, count, dim = shape
    generator = torch.Generator("cuda").manual_seed(0)
    embeddings = torch.randn(rows, count, dim, device="cuda", generator=generator).to(embeddings_dtype)
    return torch.randn(rows, dim, device="cuda", generator=generator).to(dense_dtype), embeddings


def _error(ours: Tensor, exact: Tensor, terms: int) -> float:
    """Return the largest relative error; sums of `terms` products of unit normals have a deviation of sqrt(terms)."""
    return ((ours.double() - exact).abs() / (exact.abs() + terms**0.5)).max().item()


def _bytes(*tensors: Tensor) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def _milliseconds(run: Callable[[], Any]) -> float:
    """Return the median time of a call, with the L2 cache flushed before each."""
    from triton.testing import do_bench

    return float(do_bench(run, warmup=50, rep=200, return_mode="median"))
