import numpy as np
import pytest
import torch

from cuda_ops import dot_interaction, interaction
from tests.naive_models import interaction_inputs

SHAPES = [  # rows, embeddings, width, with a dense vector
    (3, 26, 16, True),
    (3, 26, 16, False),
    (2, 1, 1, True),
    (4, 2, 5, False),
    (1, 70, 3, True),
    (2, 0, 4, True),
    (0, 3, 4, True),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_a_naive_computation(shape: tuple[int, int, int, bool]) -> None:
    dense, embeddings = interaction_inputs(shape)
    rows = []
    for b in range(shape[0]):
        vectors = [*([] if dense is None else [dense[b].detach().numpy()]), *embeddings[b].detach().numpy()]
        pairs = [vectors[i] @ vectors[j] for i in range(len(vectors)) for j in range(i)]
        rows.append(np.concatenate([[] if dense is None else vectors[0], pairs]))
    result = dot_interaction(dense, embeddings)
    vectors_count = shape[1] + shape[3]
    assert result.shape == (shape[0], shape[2] * shape[3] + vectors_count * (vectors_count - 1) // 2)
    if rows:
        np.testing.assert_allclose(result.detach().numpy(), np.stack(rows), rtol=1e-12, atol=1e-12)


def test_rows_that_are_computed_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    dense, embeddings = interaction_inputs((7, 4, 5, True))
    inputs = [dense, embeddings]
    whole = dot_interaction(dense, embeddings)
    expected = torch.autograd.grad(whole.sum(), inputs)
    monkeypatch.setattr(interaction, "_NUMBERS_IN_CACHE", 3 * 5 * 5)  # of 3 rows
    parts = dot_interaction(dense, embeddings)
    torch.testing.assert_close(parts, whole)
    torch.testing.assert_close(torch.autograd.grad(parts.sum(), inputs), expected)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_padding(shape: tuple[int, int, int, bool]) -> None:
    dense, embeddings = interaction_inputs(shape)
    result, padded = dot_interaction(dense, embeddings), dot_interaction(dense, embeddings, 5)
    assert torch.equal(padded, torch.nn.functional.pad(result, (0, 5)))
    inputs = [embeddings] if dense is None else [dense, embeddings]
    grad = torch.randn_like(padded)
    expected = torch.autograd.grad(result, inputs, grad[:, :-5])
    for ours, plain in zip(torch.autograd.grad(padded, inputs, grad), expected, strict=True):
        torch.testing.assert_close(ours, plain)


def test_padding_aligns_rows_of_16_bits_on_a_gpu() -> None:
    assert [interaction.aligned_padding(width, torch.device("cuda")) for width in (479, 480, 481, 8)] == [1, 0, 7, 0]
    assert interaction.aligned_padding(479, torch.device("cpu")) == 0


@pytest.mark.parametrize("shape", [(2, 4, 3, True), (2, 4, 3, False), (1, 1, 2, True), (2, 0, 3, True)], ids=str)
def test_gradients(shape: tuple[int, int, int, bool]) -> None:
    dense, embeddings = interaction_inputs(shape)
    assert torch.autograd.gradcheck(dot_interaction, (dense, embeddings))


@pytest.mark.parametrize(
    ("dense_dtype", "embeddings_dtype", "autocast", "expected"),
    [
        (torch.float32, torch.float32, None, torch.float32),
        (torch.bfloat16, torch.float32, None, torch.float32),
        (torch.bfloat16, torch.bfloat16, None, torch.bfloat16),
        (torch.bfloat16, torch.float32, torch.bfloat16, torch.bfloat16),
        (torch.float32, torch.float32, torch.float16, torch.float16),
    ],
    ids=str,
)
def test_dtypes(
    dense_dtype: torch.dtype, embeddings_dtype: torch.dtype, autocast: torch.dtype | None, expected: torch.dtype
) -> None:
    exact_dense, exact_embeddings = interaction_inputs((4, 6, 8, True))
    assert exact_dense is not None
    dense = exact_dense.detach().to(dense_dtype).requires_grad_()
    embeddings = exact_embeddings.detach().to(embeddings_dtype).requires_grad_()
    with torch.autocast("cpu", autocast or torch.bfloat16, enabled=autocast is not None):
        result = dot_interaction(dense, embeddings)
    assert result.dtype == expected
    exact = dot_interaction(exact_dense, exact_embeddings)
    torch.testing.assert_close(result.double(), exact, rtol=0.05, atol=0.1)
    result.sum().backward()
    exact.sum().backward()
    for tensor, exact_tensor in ((dense, exact_dense), (embeddings, exact_embeddings)):
        assert tensor.grad is not None and tensor.grad.dtype == tensor.dtype
        torch.testing.assert_close(tensor.grad.double(), exact_tensor.grad, rtol=0.05, atol=0.1)


@pytest.mark.parametrize(
    ("dense", "embeddings", "message"),
    [
        ((3, 4), (3, 20), "embeddings must be"),
        ((3, 5), (3, 5, 4), "dense must be"),
        ((2, 4), (3, 5, 4), "dense must be"),
        ((3, 1, 4), (3, 5, 4), "dense must be"),
    ],
)
def test_shapes_that_do_not_fit(dense: tuple[int, ...], embeddings: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dot_interaction(torch.zeros(dense), torch.zeros(embeddings))


def test_a_gpu_without_triton_runs_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the operator does on a GPU where Triton finds no compiler, with tensors of this machine's memory."""
    from triton.runtime import driver

    def no_compiler(self: object) -> None:
        raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable.")

    monkeypatch.setattr(type(driver), "active", property(no_compiler))
    warnings: list[str] = []
    monkeypatch.setattr(interaction._LOG, "warning", lambda text, *values: warnings.append(text % values))
    interaction._kernels.cache_clear()
    try:
        dense, embeddings = torch.randn(3, 4), torch.randn(3, 5, 4)
        result = interaction._forward_on_gpu(dense, embeddings, torch.float32)
        assert torch.equal(result, dot_interaction(dense, embeddings))
        found = interaction._backward_on_gpu(torch.ones_like(result), dense, embeddings)
        expected = interaction.reference_backward(torch.ones_like(result), dense, embeddings)
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    finally:
        interaction._kernels.cache_clear()
    (warning,) = warnings
    assert "Failed to find C compiler" in warning and "rayrec doctor" in warning
