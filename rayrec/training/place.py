"""Where a process stands among the workers of a run."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Place:
    """This process among `world_size`; ranks of one machine are counted by the local numbers."""

    rank: int
    world_size: int
    local_world_size: int
    device: torch.device

    def memory_per_worker(self) -> int:
        """Bytes that one worker may use: of its GPU, or its share of the machine's memory that is free now."""
        if self.device.type == "cuda":
            return torch.cuda.get_device_properties(self.device).total_memory
        import psutil

        return psutil.virtual_memory().available // self.local_world_size
