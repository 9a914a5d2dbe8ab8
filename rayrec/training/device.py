"""Which kind of device a run computes on. Needs no torch: the driver decides it before workers start."""

from typing import Literal

from rayrec.common.errors import ConfigError

DeviceName = Literal["cpu", "cuda"]


def resolve_device(wanted: Literal["auto", "cpu", "cuda"], *, gpus: float) -> DeviceName:
    """`auto` is cuda where the cluster has GPUs. Raises ConfigError where cuda is asked for and there is none."""
    if wanted == "cuda" and gpus < 1:
        raise ConfigError("train.device: 'cuda' was asked for, but the cluster has no GPU; use cpu or auto")
    if wanted == "auto":
        return "cuda" if gpus >= 1 else "cpu"
    return wanted
