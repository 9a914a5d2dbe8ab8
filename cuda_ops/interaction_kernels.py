"""Triton kernels of the dot interaction; notation as in `cuda_ops.interaction`.

Both passes read the vectors once, keep the (n, n) products in registers, and write the result once: for n = 27 and
D = 128 they are bound by memory. A program handles one row of the batch and one tile of BLOCK_N vectors (a pair of
tiles in the forward pass), over blocks of BLOCK_D columns; up to 64 vectors there is one tile.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from cuda_ops.interaction import output_width

MAX_BLOCK_N = 64
MAX_BLOCK_D = 128
MIN_BLOCK = 16
"""tl.dot takes no smaller sides."""
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
"""Whether the kernels run in Triton's interpreter on the CPU (environment: TRITON_INTERPRET=1)."""


def forward(dense: Tensor | None, embeddings: Tensor, dtype: torch.dtype, padding: int = 0) -> Tensor:
    """See `cuda_ops.dot_interaction`; `dtype` is of the result and of the products' operands."""
    rows, count, dim = embeddings.shape
    vectors = count + (dense is not None)
    width = output_width(vectors, dim, has_dense=dense is not None)
    out = torch.empty(rows, width + padding, dtype=dtype, device=embeddings.device)
    if out.numel() == 0:
        return out
    embeddings = _with_unit_stride(embeddings)
    source = embeddings if dense is None else _with_unit_stride(dense)
    tiling = choose_tiling(vectors, dim, dtype)
    tiles = triton.cdiv(vectors, tiling.block_n)
    with torch.cuda.device_of(embeddings):
        _forward_kernel[(rows, tiles, tiles)](
            out,
            source,  # not read without a dense vector
            embeddings,
            source.stride(0),
            embeddings.stride(0),
            embeddings.stride(1),
            VECTORS=vectors,
            DIM=dim,
            HAS_DENSE=dense is not None,
            PADDING=padding,
            BLOCK_N=tiling.block_n,
            BLOCK_D=tiling.block_d,
            PRECISION=tiling.precision,
            num_warps=tiling.forward_warps,
        )
    return out


def backward(grad: Tensor, dense: Tensor | None, embeddings: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of dense ((B, 0) where there is none) and of embeddings, in their dtypes."""
    rows, count, dim = embeddings.shape
    vectors = count + (dense is not None)
    grad_dense = grad.new_empty(rows, 0) if dense is None else dense.new_empty(dense.shape)
    grad_embeddings = embeddings.new_empty(embeddings.shape)
    if rows == 0 or vectors * dim == 0:
        return grad_dense, grad_embeddings
    grad = _with_unit_stride(grad)
    embeddings = _with_unit_stride(embeddings)
    source = embeddings if dense is None else _with_unit_stride(dense)
    tiling = choose_tiling(vectors, dim, grad.dtype)
    grid = (rows, triton.cdiv(vectors, tiling.block_n), triton.cdiv(dim, tiling.block_d))
    with torch.cuda.device_of(embeddings):
        _backward_kernel[grid](
            grad_dense,
            grad_embeddings,
            grad,
            source,  # not read without a dense vector
            embeddings,
            grad.stride(0),
            source.stride(0),
            embeddings.stride(0),
            embeddings.stride(1),
            VECTORS=vectors,
            DIM=dim,
            HAS_DENSE=dense is not None,
            BLOCK_N=tiling.block_n,
            BLOCK_D=tiling.block_d,
            PRECISION=tiling.precision,
            num_warps=tiling.backward_warps,
        )
    return grad_dense, grad_embeddings


def _with_unit_stride(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


class Tiling(NamedTuple):
    """Blocks of a problem, and the warps that work on one program; no choice changes with measured time, so that
    the order of sums, and with it every result, is the same in each run."""

    block_n: int
    block_d: int
    precision: str
    """How float32 operands are multiplied on tensor cores, as torch's own products are set to: in one product of
    numbers rounded to `tf32`, or, to the accuracy of float32, in the three of `tf32x3`. `ieee` for 16 bits."""
    forward_warps: int
    backward_warps: int


def choose_tiling(vectors: int, dim: int, dtype: torch.dtype) -> Tiling:
    """Return the blocks and warps that spill no register on sm_90 for whole tiles of aligned vectors.

    Few warps work on a program, so that many programs share a multiprocessor and keep enough loads in flight.
    """
    block_n = min(max(triton.next_power_of_2(vectors), MIN_BLOCK), MAX_BLOCK_N)
    block_d = min(max(triton.next_power_of_2(dim), MIN_BLOCK), MAX_BLOCK_D)
    warps = block_n // 16
    if dtype != torch.float32:
        return Tiling(block_n, block_d, "ieee", warps, 2 * warps)
    if torch.backends.cuda.matmul.fp32_precision == "tf32":
        return Tiling(block_n, block_d, "tf32", max(warps, 4), 2 * warps)
    # Ordinary cores would take seven times as long on an H100 as the tensor cores' three products.
    return Tiling(block_n, min(block_d, 64), "tf32x3", warps, warps)


@triton.jit
def _forward_kernel(
    out_ptr,
    dense_ptr,
    embeddings_ptr,
    dense_stride,
    row_stride,
    vector_stride,
    VECTORS: tl.constexpr,
    DIM: tl.constexpr,
    HAS_DENSE: tl.constexpr,
    PADDING: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
):
    # Offsets of a row pass 2^31 elements in large batches.
    batch_row = tl.program_id(0).to(tl.int64)
    tile_i = tl.program_id(1)
    tile_j = tl.program_id(2)
    if tile_j > tile_i:
        return
    dtype = out_ptr.dtype.element_ty
    PAIRS: tl.constexpr = VECTORS * (VECTORS - 1) // 2
    WIDTH: tl.constexpr = PAIRS + DIM if HAS_DENSE else PAIRS
    out_row = out_ptr + batch_row * (WIDTH + PADDING)
    dense_row = dense_ptr + batch_row * dense_stride
    embeddings_row = embeddings_ptr + batch_row * row_stride

    if tile_i == 0:
        for column in tl.static_range(WIDTH, WIDTH + PADDING):
            tl.store(out_row + column, 0.0)
    i = tile_i * BLOCK_N + tl.arange(0, BLOCK_N)
    j = tile_j * BLOCK_N + tl.arange(0, BLOCK_N)
    products = tl.full((BLOCK_N, BLOCK_N), 0.0, tl.float32)
    for first in range(0, DIM, BLOCK_D):
        d = first + tl.arange(0, BLOCK_D)
        right = _load_vectors(dense_row, embeddings_row, vector_stride, j, d, VECTORS, DIM, HAS_DENSE, dtype)
        left = right
        if VECTORS > BLOCK_N:
            left = _load_vectors(dense_row, embeddings_row, vector_stride, i, d, VECTORS, DIM, HAS_DENSE, dtype)
        products = _dot(left, tl.trans(right), products, PRECISION)
        if HAS_DENSE and tile_i == 0:
            dense = tl.load(dense_row + d, mask=d < DIM)
            tl.store(out_row + d, dense.to(dtype), mask=d < DIM)

    triangle = out_row + (DIM if HAS_DENSE else 0) + (i * (i - 1) // 2)[:, None] + j[None, :]
    tl.store(triangle, products.to(dtype), mask=(i[:, None] < VECTORS) & (j[None, :] < i[:, None]))


@triton.jit
def _backward_kernel(
    grad_dense_ptr,
    grad_embeddings_ptr,
    grad_ptr,
    dense_ptr,
    embeddings_ptr,
    grad_stride,
    dense_stride,
    row_stride,
    vector_stride,
    VECTORS: tl.constexpr,
    DIM: tl.constexpr,
    HAS_DENSE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
):
    # (G + G^T) X for the vectors of one tile: G + G^T is gathered from the triangle, tile by tile.
    batch_row = tl.program_id(0).to(tl.int64)
    dtype = grad_ptr.dtype.element_ty
    COUNT: tl.constexpr = VECTORS - 1 if HAS_DENSE else VECTORS
    grad_row = grad_ptr + batch_row * grad_stride
    dense_row = dense_ptr + batch_row * dense_stride
    embeddings_row = embeddings_ptr + batch_row * row_stride

    i = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    d = tl.program_id(2) * BLOCK_D + tl.arange(0, BLOCK_D)
    gradient = tl.full((BLOCK_N, BLOCK_D), 0.0, tl.float32)
    for first in range(0, VECTORS, BLOCK_N):
        j = first + tl.arange(0, BLOCK_N)
        high = tl.maximum(i[:, None], j[None, :])
        low = tl.minimum(i[:, None], j[None, :])
        place = (DIM if HAS_DENSE else 0) + high * (high - 1) // 2 + low
        weights = tl.load(grad_row + place, mask=(high < VECTORS) & (high != low), other=0.0)
        vectors = _load_vectors(dense_row, embeddings_row, vector_stride, j, d, VECTORS, DIM, HAS_DENSE, dtype)
        gradient = _dot(weights, vectors, gradient, PRECISION)

    inside = d[None, :] < DIM
    if HAS_DENSE:
        through = tl.load(grad_row + d, mask=d < DIM, other=0.0).to(tl.float32)
        cells = grad_dense_ptr + batch_row * DIM + i[:, None] + d[None, :]
        total = gradient + through[None, :]
        tl.store(cells, total.to(grad_dense_ptr.dtype.element_ty), mask=(i[:, None] == 0) & inside)
        embedding = i - 1
    else:
        embedding = i
    cells = grad_embeddings_ptr + batch_row * (COUNT * DIM) + embedding[:, None] * DIM + d[None, :]
    inside = inside & (embedding[:, None] >= 0) & (embedding[:, None] < COUNT)
    tl.store(cells, gradient.to(grad_embeddings_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _load_vectors(
    dense_row,
    embeddings_row,
    stride,
    index,
    d,
    VECTORS: tl.constexpr,
    DIM: tl.constexpr,
    HAS_DENSE: tl.constexpr,
    dtype: tl.constexpr,
):
    """Load vectors `index`, columns `d` of one row: (BLOCK_N, BLOCK_D) in `dtype`, 0 where there is none."""
    inside = d[None, :] < DIM
    if HAS_DENSE:
        embedding = index - 1
        mask = inside & (embedding[:, None] >= 0) & (index[:, None] < VECTORS)
        values = tl.load(embeddings_row + embedding[:, None] * stride + d[None, :], mask=mask, other=0.0).to(dtype)
        dense = tl.load(dense_row + d, mask=d < DIM, other=0.0).to(dtype)
        return tl.where(index[:, None] == 0, dense[None, :], values)
    mask = inside & (index[:, None] < VECTORS)
    return tl.load(embeddings_row + index[:, None] * stride + d[None, :], mask=mask, other=0.0).to(dtype)


@triton.jit
def _dot(left, right, total, PRECISION: tl.constexpr):
    """Return total + left @ right, summed in float32."""
    if INTERPRETED and left.dtype == tl.bfloat16:
        # The interpreter's tl.dot multiplies the bit patterns of bfloat16; products of float32 are what a GPU computes.
        left = left.to(tl.float32)
        right = right.to(tl.float32)
    return tl.dot(left, right, total, input_precision=PRECISION)
