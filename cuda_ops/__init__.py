"""GPU kernels as torch custom operators, each with a CPU reference; imports torch, and Triton on first use on a GPU."""

from cuda_ops.interaction import aligned_padding, dot_interaction, output_width, triton_works

__all__ = ["aligned_padding", "dot_interaction", "output_width", "triton_works"]
