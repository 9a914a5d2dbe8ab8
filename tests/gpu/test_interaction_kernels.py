"""The Triton kernels against the reference in float64: on a GPU, or in Triton's interpreter on the CPU.

TRITON_INTERPRET=1 python -m pytest tests/gpu/test_interaction_kernels.py
"""

import os

import pytest
import torch

from cuda_ops.interaction import reference_backward, reference_forward

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
pytestmark = pytest.mark.skipif(not INTERPRETED and not torch.cuda.is_available(), reason="no GPU, no interpreter")

FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
TOLERANCE = {FP32: 1e-5, FP16: 1e-3, BF16: 8e-3}
"""Relative to the norms of what is multiplied: the roundings of the result and, for FP32, of a sum."""

SHAPES = [  # rows, embeddings, width, with a dense vector
    (3, 26, 128, True),
    (3, 26, 128, False),
    (2, 1, 1, True),
    (1, 2, 5, False),
    (4, 15, 16, True),
    (2, 16, 16, True),
    (2, 7, 130, True),
    (1, 31, 64, True),
    (1, 32, 33, True),
    (1, 63, 200, True),
    (1, 64, 40, True),
    (1, 129, 20, False),
    (2, 0, 8, True),
]


@pytest.mark.parametrize("dtype", [FP32, FP16, BF16], ids=["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equal_the_reference(shape: tuple[int, int, int, bool], dtype: torch.dtype) -> None:
    check(*make_inputs(shape, dtype, dtype), dtype)


@pytest.mark.parametrize("dtype", [FP16, BF16], ids=["fp16", "bf16"])
def test_float32_embeddings_under_autocast(dtype: torch.dtype) -> None:
    """A sharded collection returns float32 while the bottom MLP has computed in half precision."""
    dense, embeddings = make_inputs((3, 26, 128, True), dtype, FP32)
    if INTERPRETED:  # it truncates float32 to bfloat16 where a GPU rounds to nearest
        embeddings = embeddings.to(dtype).float()
    check(dense, embeddings, dtype)


def test_strided_inputs() -> None:
    dense, embeddings = make_inputs((6, 10, 48, True), FP32, FP32)
    check(dense[::2, ::2], embeddings[::2, ::2, ::2], FP32)
    check(dense[:, 8:40], embeddings.transpose(0, 1).contiguous().transpose(0, 1)[:, 1:8, 8:40], FP32)


@pytest.mark.parametrize("padding", [1, 7])
@pytest.mark.parametrize("shape", [(3, 26, 128, True), (1, 129, 20, False), (2, 0, 8, True), (2, 1, 8, False)], ids=str)
def test_padding(shape: tuple[int, int, int, bool], padding: int) -> None:
    """Columns of 0 at the end of the result, whose gradient nobody reads."""
    from cuda_ops import interaction_kernels

    dense, embeddings = make_inputs(shape, BF16, BF16)
    plain = interaction_kernels.forward(dense, embeddings, BF16)
    padded = interaction_kernels.forward(dense, embeddings, BF16, padding)
    assert torch.equal(padded, torch.nn.functional.pad(plain, (0, padding)))
    grad = torch.randn(padded.shape, generator=torch.Generator().manual_seed(1)).to(padded)
    grad[:, plain.shape[1] :] = torch.nan
    gradients = interaction_kernels.backward(grad, dense, embeddings)
    expected = interaction_kernels.backward(grad[:, : plain.shape[1]].contiguous(), dense, embeddings)
    assert all(torch.equal(one, other) for one, other in zip(gradients, expected, strict=True))


def test_no_rows() -> None:
    check(*make_inputs((0, 5, 8, True), FP32, FP32), FP32)


@pytest.mark.skipif(INTERPRETED, reason="too large for the interpreter")
@pytest.mark.parametrize("dtype", [FP32, FP16, BF16], ids=["fp32", "fp16", "bf16"])
def test_large_batch(dtype: torch.dtype) -> None:
    check(*make_inputs((70_000, 26, 128, True), dtype, dtype), dtype)


@pytest.mark.skipif(INTERPRETED, reason="too large for the interpreter")
def test_offsets_beyond_two_to_the_31() -> None:
    dense, embeddings = make_inputs((1, 26, 128, True), BF16, BF16)
    rows = 2**31 // embeddings.numel() + 2
    many = torch.ops.rayrec.dot_interaction(dense.expand(rows, -1), embeddings.expand(rows, -1, -1).contiguous(), BF16)
    assert torch.equal(many[-1], many[0])


@pytest.mark.skipif(INTERPRETED, reason="the interpreter multiplies float32 exactly")
def test_tf32_follows_torch() -> None:
    dense, embeddings = make_inputs((64, 26, 128, True), FP32, FP32)
    exact = torch.ops.rayrec.dot_interaction(dense, embeddings, FP32)
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        rounded = torch.ops.rayrec.dot_interaction(dense, embeddings, FP32)
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    difference = (rounded - exact).abs().max().item()
    assert 0 < difference < 0.1


def make_inputs(
    shape: tuple[int, int, int, bool], dense_dtype: torch.dtype, embeddings_dtype: torch.dtype
) -> tuple[torch.Tensor | None, torch.Tensor]:
    rows, count, dim, has_dense = shape
    generator = torch.Generator().manual_seed(rows + count + dim)
    embeddings = torch.randn(rows, count, dim, generator=generator).to(embeddings_dtype)
    dense = torch.randn(rows, dim, generator=generator).to(dense_dtype) if has_dense else None
    return None if dense is None else dense.to(DEVICE), embeddings.to(DEVICE)


def check(dense: torch.Tensor | None, embeddings: torch.Tensor, dtype: torch.dtype) -> None:
    """Both passes within TOLERANCE of the float64 reference on the same, rounded, inputs; nothing left unwritten."""
    from cuda_ops import interaction_kernels

    exact_dense = None if dense is None else dense.to(dtype).double()
    exact_embeddings = embeddings.to(dtype).double()
    result = interaction_kernels.forward(dense, embeddings, dtype)
    expected = reference_forward(exact_dense, exact_embeddings, torch.float64)
    assert result.dtype == dtype and result.shape == expected.shape
    assert_near(result, expected, dtype, scale=exact_embeddings.shape[2] ** 0.5)

    grad = torch.randn(result.shape, generator=torch.Generator().manual_seed(1)).to(result)
    gradients = interaction_kernels.backward(grad, dense, embeddings)
    expected_gradients = reference_backward(grad.double(), exact_dense, exact_embeddings)
    for gradient, exact, source in zip(gradients, expected_gradients, (dense, embeddings), strict=True):
        assert gradient.shape == exact.shape
        assert source is None or gradient.dtype == source.dtype
        assert_near(gradient, exact, dtype, scale=(embeddings.shape[1] + 1) ** 0.5)


def assert_near(result: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype, scale: float) -> None:
    """Sums of `scale`^2 products of unit normals have a deviation of `scale`."""
    assert result.isfinite().all()
    bound = TOLERANCE[dtype] * (expected.abs() + scale)
    worst = ((result.double() - expected).abs() / bound).max().item() if result.numel() else 0.0
    assert worst <= 1, f"{worst:.2f} times the tolerance"
