"""The processes of a distributed test.

They are forked from a server that has imported torch and TorchRec once: the imports take longer than most tests.
"""

import multiprocessing
from collections.abc import Callable
from typing import Any

import torch.multiprocessing as mp

multiprocessing.set_forkserver_preload(["torchrec.distributed.model_parallel", "torch.distributed.checkpoint"])


def run_ranks(function: Callable[..., None], *arguments: Any, ranks: int) -> None:
    """Call `function(rank, *arguments)` in a process a rank and wait; raises what one of them raises."""
    mp.start_processes(function, arguments, nprocs=ranks, start_method="forkserver")
