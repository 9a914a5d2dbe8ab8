"""Where a process stands among the workers of a run."""

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist

from rayrec.common.allocator import keep_freed_memory
from rayrec.common.units import parse_bytes
from rayrec.config.train import ShardingConfig


@dataclass(frozen=True)
class RankContext:
    """One process among `world_size`, of which `local_world_size` run on its machine."""

    rank: int
    world_size: int
    local_world_size: int
    device: torch.device

    def prepare_process(self) -> None:
        """Give the process, on a CPU, its share of the threads, and let it keep the memory that it frees."""
        if self.device.type == "cpu":
            torch.set_num_threads(max(1, (os.cpu_count() or 1) // self.local_world_size))
            keep_freed_memory()

    def memory_per_worker(self, config: ShardingConfig) -> int:
        """Bytes that every worker may use: what the recipe says, or what the smallest worker has. A collective."""
        if config.memory_per_worker is not None:
            return parse_bytes(config.memory_per_worker)
        if self.device.type == "cuda":
            own = torch.cuda.get_device_properties(self.device).total_memory
        else:
            import psutil

            own = psutil.virtual_memory().available // self.local_world_size
        return min(_of_all_ranks(own))

    def workers_per_node(self) -> int:
        """The same on every rank, as TorchRec needs it: 1 where machines have different numbers. A collective."""
        sizes = set(_of_all_ranks(self.local_world_size))
        return sizes.pop() if len(sizes) == 1 else 1


def _of_all_ranks(value: int) -> list[int]:
    values = [0] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
