"""Where a process stands among the workers of a run."""

import os
from dataclasses import dataclass

import torch

from rayrec.common.allocator import keep_freed_memory


@dataclass(frozen=True)
class Place:
    """This process among `world_size`; ranks of one machine are counted by the local numbers."""

    rank: int
    world_size: int
    local_world_size: int
    device: torch.device

    def prepare_process(self) -> None:
        """Settings of a worker's whole process: on a CPU its share of the threads, and memory that it keeps."""
        if self.device.type == "cpu":
            torch.set_num_threads(max(1, (os.cpu_count() or 1) // self.local_world_size))
            keep_freed_memory()

    def memory_per_worker(self) -> int:
        """Bytes that one worker may use: of its GPU, or its share of the machine's memory that is free now."""
        if self.device.type == "cuda":
            return torch.cuda.get_device_properties(self.device).total_memory
        import psutil

        return psutil.virtual_memory().available // self.local_world_size
