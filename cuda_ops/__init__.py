"""GPU kernels, each with a CPU reference; imports torch, and Triton on first use on a GPU."""

from cuda_ops.interaction import aligned_padding, dot_interaction, output_width, triton_works
from cuda_ops.rmsprop import rmsprop_

__all__ = ["aligned_padding", "dot_interaction", "output_width", "rmsprop_", "triton_works"]
