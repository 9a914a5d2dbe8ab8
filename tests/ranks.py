"""The processes of a distributed test.

They are forked from a server that has imported torch and TorchRec once: the imports take longer than most tests. With a
GPU each imports for itself: a process whose parent has touched CUDA, as the imports do, cannot use it.
"""

import multiprocessing
from collections.abc import Callable
from typing import Any

import torch
import torch.multiprocessing as mp

multiprocessing.set_forkserver_preload(["torchrec.distributed.model_parallel", "torch.distributed.checkpoint"])


def run_ranks(function: Callable[..., None], *arguments: Any, ranks: int) -> None:
    """Call `function(rank, *arguments)` in a process a rank and wait; raises what one of them raises."""
    start_method = "spawn" if torch.cuda.is_available() else "forkserver"
    mp.start_processes(function, arguments, nprocs=ranks, start_method=start_method)
