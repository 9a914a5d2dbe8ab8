"""The Triton kernels without a GPU: in Triton's interpreter, and compiled for an H100."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cuda_ops import aligned_padding, output_width

REPOSITORY = Path(__file__).resolve().parents[2]


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
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/gpu"],
        cwd=REPOSITORY,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    passed = re.search(r"(\d+) passed", run.stdout)
    assert passed is not None and int(passed.group(1)) >= 48, run.stdout


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
    common = {
        "VECTORS": vectors,
        "DIM": dim,
        "HAS_DENSE": has_dense,
        "BLOCK_N": tiling.block_n,
        "BLOCK_D": tiling.block_d,
        "PRECISION": tiling.precision,
    }
    result, dense, embeddings = f"*{dtype}", f"*{dtype}", f"*{embeddings_dtype}"
    aligned = dim % 16 == 0
    width = output_width(vectors, dim, has_dense)
    padding = aligned_padding(width, torch.device("cuda"))
    for kernel, types, warps, more in (
        (
            kernels._forward_kernel,
            [result, dense, embeddings, "i32", "i32", "i32"],
            tiling.forward_warps,
            {"PADDING": padding},
        ),
        (
            kernels._backward_kernel,
            [dense, embeddings, result, dense, embeddings, "i32", "i32", "i32", "i32"],
            tiling.backward_warps,
            {},
        ),
    ):
        constants = common | more
        arguments = [name for name in kernel.arg_names if name not in constants]
        multiples = [
            place
            for place, (name, kind) in enumerate(zip(arguments, types, strict=True))
            if kind.startswith("*") or (aligned and (name != "grad_stride" or (width + padding) % 16 == 0))
        ]
        source = ASTSource(
            kernel,
            dict(zip(arguments, types, strict=True)) | dict.fromkeys(constants, "constexpr"),
            constexprs=constants,
            attrs={(place,): [["tt.divisibility", 16]] for place in multiples},
        )
        compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
        registers, stack = resource_usage(compiled.asm["cubin"], tmp_path)
        shared = compiled.metadata.shared + 1024  # what CUDA keeps for itself
        assert 2 * shared <= 228 * 1024 and 2 * registers * 32 * warps <= 65_536, "fewer than two programs fit"
        if aligned:
            assert stack == 0, f"{kernel.__name__} spills registers"


def test_rmsprops_kernel_compiles_for_hopper(tmp_path: Path) -> None:
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from cuda_ops import rmsprop_kernel

    kernel = rmsprop_kernel._kernel
    types = ["*fp32"] * 3 + ["fp32"] * 4 + ["i32", "constexpr"]
    source = ASTSource(
        kernel,
        dict(zip(kernel.arg_names, types, strict=True)),
        constexprs={"BLOCK": rmsprop_kernel.BLOCK},
        attrs={(place,): [["tt.divisibility", 16]] for place in (0, 1, 2, 7)},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    assert "ld.global.v4" in compiled.asm["ptx"], "four numbers at a time"
    assert resource_usage(compiled.asm["cubin"], tmp_path)[1] == 0


def resource_usage(cubin: bytes, folder: Path) -> tuple[int, int]:
    """Registers of a thread and bytes of its stack, as the machine code declares them."""
    import triton

    (folder / "kernel.cubin").write_bytes(cubin)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    usage = subprocess.run(
        [tool, "-res-usage", folder / "kernel.cubin"], capture_output=True, text=True, check=True
    ).stdout
    numbers = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    assert numbers is not None, usage
    return int(numbers[1]), int(numbers[2])
