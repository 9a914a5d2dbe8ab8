"""Data sheets of accelerators; imports nothing, as the command line reads their names."""

from dataclasses import dataclass
from typing import Literal

AcceleratorName = Literal["a100", "h100", "h200"]
ArithmeticName = Literal["fp32", "tf32", "bf16", "fp16"]


@dataclass(frozen=True)
class Accelerator:
    """One GPU of an eight-GPU machine: its data sheet, for dense arithmetic and one direction of a link."""

    memory: float
    """Bytes."""
    memory_bandwidth: float
    """Bytes/s."""
    arithmetic: dict[ArithmeticName, float]
    """Operations/s, by precision."""
    link: float
    """Bytes/s out of the GPU to others of its machine."""
    network: float
    """Bytes/s out of the machine, the GPU's share."""
    cores: int
    """CPU cores of the machine, the GPU's share."""


_AMPERE: dict[ArithmeticName, float] = {"fp32": 19.5e12, "tf32": 156e12, "bf16": 312e12, "fp16": 312e12}
_HOPPER: dict[ArithmeticName, float] = {"fp32": 67e12, "tf32": 494e12, "bf16": 989e12, "fp16": 989e12}
ACCELERATORS: dict[AcceleratorName, Accelerator] = {
    # NVIDIA A100 80GB (SXM) and DGX A100 data sheets: NVLink 600 GB/s both ways, 8 x 200 Gb/s InfiniBand, 128 cores.
    "a100": Accelerator(memory=80e9, memory_bandwidth=2.039e12, arithmetic=_AMPERE, link=300e9, network=25e9, cores=16),
    # NVIDIA H100 (SXM) and DGX H100 data sheets, without sparsity: NVLink 900 GB/s both ways, 8 x 400 Gb/s, 112 cores.
    "h100": Accelerator(memory=80e9, memory_bandwidth=3.35e12, arithmetic=_HOPPER, link=450e9, network=50e9, cores=14),
    # NVIDIA H200 and DGX H200 data sheets: an H100 with 141 GB of faster memory.
    "h200": Accelerator(memory=141e9, memory_bandwidth=4.8e12, arithmetic=_HOPPER, link=450e9, network=50e9, cores=14),
}
