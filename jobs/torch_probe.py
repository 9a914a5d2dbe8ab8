"""What `rayrec doctor` asks PyTorch, in a process of its own: a broken native library can crash the interpreter.

`python -m jobs.torch_probe` prints one JSON object.
"""

import json
from typing import Any


def probe() -> dict[str, Any]:
    """Import torch, fbgemm and torchrec, run one fbgemm operator, and look at the devices."""
    import fbgemm_gpu  # noqa: F401  registers the operators
    import torch
    import torchrec  # noqa: F401  proves that it imports

    from rayrec.training.precision import cpu_flags, resolve_precision

    offsets = torch.ops.fbgemm.asynchronous_complete_cumsum(torch.tensor([1, 2, 3]))
    assert offsets.tolist() == [0, 1, 3, 6], offsets
    gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return {
        "torch": torch.__version__,
        "cuda_build": torch.version.cuda,
        "cpu_precision": resolve_precision("auto", "cpu").name,
        "cpu_precision_reason": resolve_precision("auto", "cpu").reason,
        "cpu_flags": sorted(cpu_flags()),
        "gpus": [{"name": g.name, "bytes": g.total_memory, "capability": [g.major, g.minor]} for g in gpus],
    }


if __name__ == "__main__":
    print(json.dumps(probe()))
