import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from cuda_ops import dot_interaction

REPOSITORY = Path(__file__).resolve().parents[2]
SHAPES = [  # rows, embeddings, width, with a dense vector
    (3, 26, 16, True),
    (3, 26, 16, False),
    (2, 1, 1, True),
    (4, 2, 5, False),
    (1, 70, 3, True),
    (2, 0, 4, True),
    (0, 3, 4, True),
]


def make_inputs(
    shape: tuple[int, int, int, bool], dtype: torch.dtype = torch.float64
) -> tuple[torch.Tensor | None, torch.Tensor]:
    rows, count, dim, has_dense = shape
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(rows, count, dim, generator=generator).to(dtype).requires_grad_()
    dense = torch.randn(rows, dim, generator=generator).to(dtype).requires_grad_() if has_dense else None
    return dense, embeddings


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_a_naive_computation(shape: tuple[int, int, int, bool]) -> None:
    dense, embeddings = make_inputs(shape)
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


@pytest.mark.parametrize("shape", [(2, 4, 3, True), (2, 4, 3, False), (1, 1, 2, True), (2, 0, 3, True)], ids=str)
def test_gradients(shape: tuple[int, int, int, bool]) -> None:
    dense, embeddings = make_inputs(shape)
    assert torch.autograd.gradcheck(dot_interaction, (dense, embeddings))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(3, 5, 8, True), (3, 5, 8, False)], ids=str)
def test_operator_keeps_torchs_rules(shape: tuple[int, int, int, bool], dtype: torch.dtype) -> None:
    """Schema, fake tensors, autograd registration and tracing with dynamic shapes agree with what it computes."""
    dense, embeddings = make_inputs(shape, dtype)
    torch.library.opcheck(torch.ops.rayrec.dot_interaction.default, (dense, embeddings, dtype))
    grad = torch.randn_like(dot_interaction(dense, embeddings)).detach()
    arguments = (grad, None if dense is None else dense.detach(), embeddings.detach())
    torch.library.opcheck(torch.ops.rayrec.dot_interaction_backward.default, arguments)


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
    exact_dense, exact_embeddings = make_inputs((4, 6, 8, True))
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


def test_compiled_without_a_graph_break_for_any_batch_size() -> None:
    compiled = torch.compile(dot_interaction, backend="aot_eager", fullgraph=True, dynamic=True)
    for rows in (3, 5, 8):
        dense, embeddings = make_inputs((rows, 5, 6, True))
        torch.testing.assert_close(compiled(dense, embeddings), dot_interaction(dense, embeddings))
        gradients = torch.autograd.grad(compiled(dense, embeddings).sum(), (dense, embeddings))
        expected = torch.autograd.grad(dot_interaction(dense, embeddings).sum(), (dense, embeddings))
        torch.testing.assert_close(gradients, expected)


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


def test_a_cpu_needs_no_triton() -> None:
    program = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch, cuda_ops; print(cuda_ops.dot_interaction(None, torch.ones(1, 2, 3)).item())"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "3.0", run.stderr


def test_kernels_in_the_interpreter() -> None:
    """The same cases that a GPU runs; a process of its own, since Triton reads the setting when it is imported."""
    pytest.importorskip("triton")
    unused = ("cacheprovider", "hypothesispytest", "schemathesis", "xdist")
    run = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "tests/gpu/test_interaction_kernels.py"),
            *(argument for plugin in unused for argument in ("-p", f"no:{plugin}")),
        ],
        cwd=REPOSITORY,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    passed = re.search(r"(\d+) passed", run.stdout)
    assert passed is not None and int(passed.group(1)) >= 40, run.stdout


@pytest.mark.parametrize("has_dense", [True, False], ids=["dense", "no-dense"])
@pytest.mark.parametrize(
    ("vectors", "dim", "dtype", "embeddings_dtype"),
    [
        (27, 128, "fp32", "fp32"),
        (27, 128, "bf16", "fp32"),
        (27, 128, "fp16", "fp16"),
        (64, 128, "fp32", "fp32"),
        (64, 512, "bf16", "bf16"),
        (5, 3, "fp32", "fp32"),
        (100, 37, "fp16", "fp32"),
    ],
)
def test_kernels_compile_for_hopper(
    vectors: int, dim: int, dtype: str, embeddings_dtype: str, has_dense: bool, tmp_path: Path
) -> None:
    """sm_90 machine code without a GPU: several programs fit on a multiprocessor, and aligned shapes spill nothing."""
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from cuda_ops import interaction_kernels as kernels

    torch_dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[dtype]
    tiling = kernels.choose_tiling(vectors, dim, torch_dtype)
    constants = {
        "VECTORS": vectors,
        "DIM": dim,
        "HAS_DENSE": has_dense,
        "BLOCK_N": tiling.block_n,
        "BLOCK_D": tiling.block_d,
        "PRECISION": tiling.precision,
    }
    result, dense, embeddings = f"*{dtype}", f"*{dtype}", f"*{embeddings_dtype}"
    aligned = dim % 16 == 0
    for kernel, types, warps in (
        (kernels._forward_kernel, [result, dense, embeddings, "i32", "i32", "i32"], tiling.forward_warps),
        (
            kernels._backward_kernel,
            [dense, embeddings, result, dense, embeddings, "i32", "i32", "i32", "i32"],
            tiling.backward_warps,
        ),
    ):
        arguments = [name for name in kernel.arg_names if name not in constants]
        multiples = [
            place
            for place, (name, kind) in enumerate(zip(arguments, types, strict=True))
            if kind.startswith("*") or (aligned and name != "grad_stride")
        ]
        source = ASTSource(
            kernel,
            dict(zip(arguments, types, strict=True)) | dict.fromkeys(constants, "constexpr"),
            constexprs=constants,
            attrs={(place,): [["tt.divisibility", 16]] for place in multiples},
        )
        compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
        registers, stack, shared = resource_usage(compiled.asm["cubin"], tmp_path)
        assert shared <= 64 * 1024 and registers * 32 * warps <= 65_536, "fewer than two programs fit"
        if aligned:
            assert stack == 0, f"{kernel.__name__} spills registers"


def resource_usage(cubin: bytes, folder: Path) -> tuple[int, int, int]:
    """Registers of a thread, bytes of its stack and bytes of shared memory, as the machine code declares them."""
    import triton

    (folder / "kernel.cubin").write_bytes(cubin)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    usage = subprocess.run(
        [tool, "-res-usage", folder / "kernel.cubin"], capture_output=True, text=True, check=True
    ).stdout
    numbers = re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)", usage)
    assert numbers is not None, usage
    return int(numbers[1]), int(numbers[2]), int(numbers[3])
