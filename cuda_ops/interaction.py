"""DLRM's dot interaction (Naumov et al. 2019, arXiv:1906.00091, section 2.1): the operator `rayrec::dot_interaction`.

CPU and any device without a kernel of its own use the reference in this file; CUDA uses the Triton kernels of
`cuda_ops.interaction_kernels`, which never hold a (B, n, n) matrix, or the reference where Triton cannot work.

Shapes: B rows, F embeddings, D width, n = F + 1 vectors with a dense vector, F without; P = n (n - 1) / 2 pairs.
"""

import functools
import logging
from subprocess import CalledProcessError
from types import ModuleType
from typing import Any, Optional

import torch
from torch import Tensor

_LOG = logging.getLogger(__name__)
_NUMBERS_IN_CACHE = 2**20
_FAST_MULTIPLE = 8
"""On a CPU, batched products of a multiple of so many vectors take less time, though there are more of them."""


def dot_interaction(dense: Tensor | None, embeddings: Tensor, padding: int = 0) -> Tensor:
    """Return the dense vector, then the dot products of all pairs of vectors.

    Vector 0 is `dense`, vectors 1 ... F are the embeddings (without `dense`: 0 ... F - 1 are the embeddings). Pair
    (i, j), i > j, is at place i (i - 1) / 2 + j after the dense vector: the strict lower triangle, row by row.

    Args:
        dense: (B, D), or None.
        embeddings: (B, F, D). The two may differ in dtype: float64, float32, float16 or bfloat16.
        padding: Columns of 0 at the end of the result, which a matrix product may need to be fast (`aligned_padding`).

    Returns:
        (B, D + P + padding) with `dense`, (B, P + padding) without; in autocast's dtype where autocast is on, else in
        the wider dtype of the two. Inputs are rounded to that dtype; products are summed in float32 (float64 for
        float64).

    Differentiable once; a second backward raises. Raises ValueError on shapes that do not fit.
    """
    if embeddings.dim() != 3:
        raise ValueError(f"embeddings must be (B, F, D), not {tuple(embeddings.shape)}")
    if dense is not None and dense.shape != (embeddings.shape[0], embeddings.shape[2]):
        raise ValueError(f"dense must be (B, D) of embeddings {tuple(embeddings.shape)}, not {tuple(dense.shape)}")
    device = embeddings.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    else:
        dtype = embeddings.dtype if dense is None else torch.promote_types(dense.dtype, embeddings.dtype)
    if device == "cpu" and not torch.is_grad_enabled() and not torch.compiler.is_compiling():
        # The operator is for gradients, and its first call imports torch's compiler, which takes a second or two.
        return reference_forward(dense, embeddings, dtype, padding)
    return _forward(dense, embeddings, dtype, padding)


def aligned_padding(width: int, device: torch.device) -> int:
    """Return the number of columns that a matrix of `width` columns lacks to be multiplied at full speed on a device.

    The tensor cores of a GPU take rows that begin at multiples of 16 bytes: 8 numbers of 16 bits.
    """
    return -width % _COLUMN_MULTIPLES.get(device.type, 1)


_COLUMN_MULTIPLES = {"cuda": 8}


def output_width(vectors: int, dim: int, has_dense: bool) -> int:
    """Return the number of columns of the result for `vectors` interacting vectors, the dense one included."""
    return vectors * (vectors - 1) // 2 + (dim if has_dense else 0)


# torch.library infers the operator's schema from Optional[...]; the older torch does not read "Tensor | None".
def reference_forward(
    dense: Optional[Tensor],  # noqa: UP045
    embeddings: Tensor,
    dtype: torch.dtype,
    padding: int = 0,
) -> Tensor:
    """Compute `dot_interaction` by batched matrix products, in `dtype`."""
    rows, count, dim = embeddings.shape
    n, width = count + (dense is not None), 0 if dense is None else dim
    side = n + -n % _FAST_MULTIPLE
    triangle = _triangle(n, side, embeddings.device)
    parts = _parts(embeddings, n)
    if len(parts) == 1 and not padding:  # what is copied around below takes as long as the products of a few rows
        vectors = _stack(dense, embeddings, None, dtype, zeros=side - n)
        pairs = _columns(torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1), triangle)
        return pairs if dense is None else torch.cat([dense.to(dtype), pairs], dim=1)
    end = width + triangle.numel()
    result = embeddings.new_empty(rows, end + padding, dtype=dtype)
    result[:, end:] = 0.0
    for part in parts:
        vectors = _stack(dense, embeddings, part, dtype, zeros=side - n)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        result[part, width:end] = _columns(products, triangle)
        if dense is not None:
            result[part, :width] = dense[part]
    return result


def reference_backward(grad: Tensor, dense: Optional[Tensor], embeddings: Tensor) -> tuple[Tensor, Tensor]:  # noqa: UP045
    """Return the gradients of dense ((B, 0) where there is none) and of embeddings: (G + G^T) X, with G the triangle of
    `grad`.

    Padding at the end of `grad` is not read.
    """
    rows, count, dim = embeddings.shape
    n, width = count + (dense is not None), 0 if dense is None else dim
    places = _symmetric(n, width, grad.device)
    grad_dense = grad.new_empty(rows, 0) if dense is None else dense.new_empty(dense.shape)
    grad_embeddings = embeddings.new_empty(embeddings.shape)
    for part in _parts(embeddings, n):
        symmetric = _columns(grad[part], places).view(-1, n, n)
        symmetric.diagonal(dim1=1, dim2=2).zero_()
        gradient = torch.bmm(symmetric, _stack(dense, embeddings, part, grad.dtype))
        grad_embeddings[part] = gradient[:, n - count :]
        if dense is not None:
            grad_dense[part] = gradient[:, 0] + grad[part, :width]
    return grad_dense, grad_embeddings


_forward = torch.library.custom_op("rayrec::dot_interaction", reference_forward, mutates_args=())
_backward = torch.library.custom_op("rayrec::dot_interaction_backward", reference_backward, mutates_args=())


def _parts(embeddings: Tensor, n: int) -> list[slice]:
    """Return the rows that are computed at a time: all, but on a CPU as many as its caches hold with what is made of
    them.
    """
    rows, _, dim = embeddings.shape
    step = max(1, rows)
    if embeddings.device.type == "cpu":
        step = max(1, _NUMBERS_IN_CACHE // max(1, n * dim))
    return [slice(start, start + step) for start in range(0, rows, step)]


def _stack(dense: Tensor | None, embeddings: Tensor, part: slice | None, dtype: torch.dtype, zeros: int = 0) -> Tensor:
    """Return all vectors of some rows (None: all), and as many `zeros` behind them: (rows, n + zeros, D), in
    `dtype`.
    """
    if part is not None:
        embeddings, dense = embeddings[part], None if dense is None else dense[part]
    found = embeddings.to(dtype)
    pieces = [found] if dense is None else [dense.to(dtype).unsqueeze(1), found]
    if zeros:
        pieces.append(found.new_zeros(len(found), zeros, found.shape[2]))
    return torch.cat(pieces, dim=1) if len(pieces) > 1 else found


def _columns(matrix: Tensor, places: Tensor) -> Tensor:
    """Return the columns of a matrix. By way of float32: torch takes those of 16-bit numbers one by one on a CPU."""
    return matrix.to(torch.promote_types(matrix.dtype, torch.float32)).index_select(1, places).to(matrix.dtype)


@functools.cache
def _triangle(n: int, side: int, device: torch.device) -> Tensor:
    """Return the places of the strict lower triangle of n rows, row by row, in a flattened (side, side) matrix."""
    row, column = torch.tril_indices(n, n, -1, device=device)
    return row * side + column


@functools.cache
def _symmetric(n: int, width: int, device: torch.device) -> Tensor:
    """Return the column of the result (`width` dense ones first) that each cell of a flattened (n, n) matrix of pairs
    is in.

    The diagonal, which is in none, holds 0.
    """
    place = torch.zeros(n, n, dtype=torch.int64, device=device)
    row, column = torch.tril_indices(n, n, -1, device=device)
    place[row, column] = width + torch.arange(row.numel(), device=device)
    return (place + place.T).flatten()


@functools.cache
def _kernels() -> ModuleType | None:
    """Return the module of the kernels; None, with a warning, where Triton is absent or cannot build its driver."""
    try:
        import triton

        _ = triton.runtime.driver.active  # compiled with the machine's C compiler at the first use
        from cuda_ops import interaction_kernels
    except (ImportError, OSError, RuntimeError, CalledProcessError) as error:
        _LOG.warning(
            "DLRM's dot interaction runs by batched products, which are slower and need more memory, because Triton "
            "does not work here (`rayrec doctor` says why): %s",
            " ".join(str(error).split()),
        )
        return None
    return interaction_kernels


def triton_works() -> bool:
    """Tell whether Triton can compile kernels here; warn where it cannot."""
    return _kernels() is not None


@_forward.register_kernel("cuda")
def _forward_on_gpu(dense: Tensor | None, embeddings: Tensor, dtype: torch.dtype, padding: int = 0) -> Tensor:
    # No kernel is worth it for float64, which is for checks of gradients.
    if dtype == torch.float64 or (kernels := _kernels()) is None:
        return reference_forward(dense, embeddings, dtype, padding)
    result: Tensor = kernels.forward(dense, embeddings, dtype, padding)
    return result


@_backward.register_kernel("cuda")
def _backward_on_gpu(grad: Tensor, dense: Tensor | None, embeddings: Tensor) -> tuple[Tensor, Tensor]:
    if grad.dtype == torch.float64 or (kernels := _kernels()) is None:
        return reference_backward(grad, dense, embeddings)
    result: tuple[Tensor, Tensor] = kernels.backward(grad, dense, embeddings)
    return result


@_forward.register_fake
def _(dense: Tensor | None, embeddings: Tensor, dtype: torch.dtype, padding: int = 0) -> Tensor:
    rows, embedding_count, dim = embeddings.shape
    width = output_width(embedding_count + (dense is not None), dim, dense is not None)
    return embeddings.new_empty(rows, width + padding, dtype=dtype)


@_backward.register_fake
def _(grad: Tensor, dense: Tensor | None, embeddings: Tensor) -> tuple[Tensor, Tensor]:
    grad_dense = grad.new_empty(grad.shape[0], 0) if dense is None else dense.new_empty(dense.shape)
    return grad_dense, embeddings.new_empty(embeddings.shape)


def _setup_context(ctx: Any, inputs: tuple[Tensor | None, Tensor, torch.dtype, int], output: Tensor) -> None:
    dense, embeddings, _, _ = inputs
    ctx.save_for_backward(dense, embeddings)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
    dense, embeddings = ctx.saved_tensors
    grad_dense, grad_embeddings = _backward(grad, dense, embeddings)
    return (None if dense is None else grad_dense), grad_embeddings, None, None


_forward.register_autograd(_differentiate, setup_context=_setup_context)
